// Traces: what consumers have recorded about messages, by the names that they gave to it.

import { get, path } from "./api.js";
import { h } from "./dom.js";
import { groupName, number, plural } from "./format.js";
import { toneOf } from "./messages.js";
import { badge, button, code, empty, heading, input, json, link, moment, pager, table, to } from "./ui.js";

const PAGE = 50;
const COUNTED = 100;

export const traces = {
  title: () => "Traces",
  every: 10000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get("/api/v1/traces/names", { limit: PAGE + 1, offset });
    return { rows: answer.trace_names.slice(0, PAGE), more: answer.trace_names.length > PAGE, offset };
  },

  view({ rows, more, offset }, _, page) {
    return [
      heading("Traces", { note: "What consumers record about messages, by name. A name joins messages of several queues into one story." }),
      h("form", { class: "toolbar", role: "search", onsubmit: byName }, input("name", "Name", { required: true, placeholder: "The whole name" }), button("Show", null, { type: "submit" })),
      table({
        label: "Trace names",
        rows,
        key: (row) => row.trace_name,
        none: empty("No trace has a name.", "A consumer records one with ", code('await queen.trace(message, {"step": "paid"}, names="checkout")'), "; traces without a name are on the page of their message."),
        columns: [
          { name: "Name", cell: (row) => link(to.trace(row.trace_name), row.trace_name, { class: "strong" }) },
          { name: "Traces", num: true, cell: (row) => upTo(row.trace_count) },
          { name: "Messages", num: true, cell: (row) => upTo(row.message_count) },
          { name: "Last", cell: (row) => moment(row.last_seen) },
        ],
      }),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

function byName(event) {
  event.preventDefault();
  location.hash = to.trace(new FormData(event.currentTarget).get("name"));
}

/** The server counts up to a bound. */
function upTo(count) {
  return count >= COUNTED ? `${number(COUNTED)} or more` : number(count);
}

export const trace = {
  title: ({ params }) => params[0],
  every: 10000,

  async load({ params: [name], query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get(path`/api/v1/traces/by-name/${name}`, { limit: PAGE + 1, offset });
    return { rows: answer.traces.slice(0, PAGE), more: answer.traces.length > PAGE, offset };
  },

  view({ rows, more, offset }, { params: [name] }, page) {
    const messages = new Set(rows.map((row) => `${row.partition_id}/${row.transaction_id}`)).size;
    return [
      heading(name, { kind: "Traces", crumbs: [["Traces", "#/traces"]], note: rows.length ? `${plural(rows.length, "trace")} of ${plural(messages, "message")}, newest first` : undefined }),
      rows.length
        ? h("ol", { class: "timeline" }, rows.map((row) => h("li", { class: toneOf(row.event_type), "data-key": row.id }, traceHead(row), row.omitted ? h("p", { class: "note" }, "The data is on the page of the message.") : json(row.data))))
        : empty("No trace has this name.", "Names are matched as a whole."),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

function traceHead(row) {
  return h(
    "div",
    { class: "timeline-head" },
    badge(toneOf(row.event_type), row.event_type),
    moment(row.created_at, { absolute: true }),
    link(to.message(row.partition_id, row.transaction_id), row.transaction_id, { class: "strong" }),
    h("span", { class: "note" }, link(to.partition(row.queue_name, row.partition_name), `${row.queue_name} / ${row.partition_name}`), row.consumer_group && ` · ${groupName(row.consumer_group)}`),
  );
}
