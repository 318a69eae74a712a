// Dead letters: what failed too often, and delivering it again.

import { get, may, path, post } from "./api.js";
import { h } from "./dom.js";
import { groupName, number, plural } from "./format.js";
import { erase, redrive } from "./messages.js";
import { ask, button, choice, code, copyable, empty, heading, link, moment, pager, preview, searchField, to, toolbar } from "./ui.js";

const PAGE = 25;
const HOUR_MS = 3600000;
const SPANS = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS };

const selected = new Set(); // of those that are shown

function keyOf(row) {
  return `${row.partitionId}/${row.transactionId}/${row.consumerGroup}`;
}

function filterOf({ queue, group, partition, error, span, fingerprint }) {
  return { queue, consumerGroup: group, partition, error, fingerprint, from: span && new Date(Date.now() - (SPANS[span] ?? HOUR_MS)).toISOString() };
}

export const deadLetters = {
  title: () => "Dead letters",
  every: 10000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get("/api/v1/dlq", { ...filterOf(query), limit: PAGE, offset });
    // The last page may have been redriven meanwhile.
    if (answer.total && offset >= answer.total) return deadLetters.load({ query: { ...query, offset: answer.total - 1 - ((answer.total - 1) % PAGE) } });
    const shown = new Set(answer.messages.map(keyOf));
    for (const key of selected) if (!shown.has(key)) selected.delete(key);
    return { rows: answer.messages, total: answer.total, offset, asked: query };
  },

  view({ rows, total, offset, asked }, { query }, page) {
    const narrowed = query.queue || query.group || query.partition || query.error || query.span || query.fingerprint;
    return [
      heading("Dead letters", {
        note: total ? `${plural(total, "message")} failed, newest first. Fix the consumer, then redrive.` : "Messages that fail more often than their queue allows.",
        actions: rows.length > 0 && may("read-write") && [selectionButtons(rows, page), total > 1 && button(`Redrive all ${number(total)}`, () => redriveAll(total, asked, page), { kind: "primary" })],
      }),
      toolbar(
        searchField({ label: "Queue", value: query.queue, placeholder: "Every queue", onsearch: (queue) => page.set({ queue, offset: "" }) }),
        searchField({ label: "Group", value: query.group, placeholder: "Every group", onsearch: (group) => page.set({ group, offset: "" }) }),
        searchField({ label: "Partition", value: query.partition, placeholder: "Every partition", onsearch: (partition) => page.set({ partition, offset: "" }) }),
        searchField({ label: "Error", value: query.error, placeholder: "Part of the error", onsearch: (error) => page.set({ error, offset: "" }) }),
        choice({ label: "Failed in", value: query.span, options: [["", "all the time"], ["hour", "the last hour"], ["day", "the last day"], ["week", "the last week"]], onchoose: (span) => page.set({ span, offset: "" }) }),
      ),
      query.fingerprint && h("p", { class: "chips" }, h("span", { class: "note" }, "Only errors like "), code(query.fingerprint), button("Every error", () => page.set({ fingerprint: "", offset: "" }), { kind: "chip" })),
      rows.length
        ? h("ul", { class: "letters" }, rows.map((row) => letter(row, page)))
        : empty(narrowed ? "No dead letter matches." : "No dead letters.", narrowed ? "Queue, group and partition are matched as a whole, errors by any part." : ["When a consumer answers ", code("failed"), " too often, or ", code("dlq"), ", the message is kept here until you redrive or delete it."]),
      pager({ offset, limit: PAGE, shown: rows.length, more: offset + rows.length < total, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

function selectionButtons(rows, page) {
  const chosen = rows.filter((row) => selected.has(keyOf(row)));
  const all = chosen.length === rows.length;
  const selectAll = () => {
    for (const row of rows) all ? selected.delete(keyOf(row)) : selected.add(keyOf(row));
    page.redraw();
  };
  return [
    button(all ? "Select none" : "Select all shown", selectAll),
    chosen.length > 0 && button(`Redrive ${number(chosen.length)} selected`, () => redrive(inOrder(chosen), page.reload)),
  ];
}

/** One after the other, the messages of a partition must come back in their order. */
function inOrder(rows) {
  return [...rows].sort((one, other) => Date.parse(one.createdAt) - Date.parse(other.createdAt) || (one.id < other.id ? -1 : 1));
}

/** All that match: the server redrives them, queue by queue. */
function redriveAll(total, query, page) {
  const { queue } = query;
  ask({
    title: `Redrive ${plural(total, "dead letter")}${queue ? ` of ${queue}` : ""}?`,
    text: "They are delivered again, in their order, only to the groups in which they failed, and are no dead letters any more.",
    action: "Deliver again",
    act: async (_, report) => {
      const filter = filterOf(query);
      const queues = queue ? [{ name: queue }] : (await get("/api/v1/dlq", { ...filter, byQueue: true, limit: 1 })).queues;
      return redriveQueues(queues.map(({ name }) => name), filter, report);
    },
    done: page.reload,
  });
}

async function redriveQueues(queues, filter, report) {
  // What is empty narrows nothing, and the server refuses it.
  const narrowed = Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
  let redriven = 0;
  let going = 0;
  for (const [index, queue] of queues.entries()) {
    const answer = await post("/api/v1/dlq/redrive", { ...narrowed, queue });
    if (answer.operationId && queues.length === 1) return answer;
    redriven += answer.redriven;
    going += answer.operationId ? 1 : 0;
    if (!report((index + 1) / queues.length, `${number(index + 1)} of ${plural(queues.length, "queue")}`)) break;
  }
  return `${plural(redriven, "message")} will be delivered again.${going ? ` Those of ${plural(going, "queue")} are still under way: see Operations.` : ""}`;
}

function select(row, on, page) {
  on ? selected.add(keyOf(row)) : selected.delete(keyOf(row));
  page.redraw();
}

function letter(row, page) {
  const key = path`/api/v1/messages/${row.partitionId}/${row.transactionId}`;
  return h(
    "li",
    { class: "letter", "data-key": keyOf(row) },
    h(
      "div",
      { class: "letter-head" },
      may("read-write") && h("input", { type: "checkbox", "aria-label": `Select ${row.transactionId}`, checked: selected.has(keyOf(row)), onchange: (event) => select(row, event.currentTarget.checked, page) }),
      h("div", { class: "letter-title" }, link(to.message(row.partitionId, row.transactionId), row.transactionId, { class: "strong" }), h("p", { class: "letter-error" }, row.errorMessage)),
      may("read-write") && h("div", { class: "actions" }, button("Redrive", () => redrive([row], page.reload), { kind: "primary" }), may("admin") && button("Delete", () => erase(key, row, page.reload), { kind: "danger" })),
    ),
    h(
      "p",
      { class: "note" },
      link(to.partition(row.queue, row.partition), `${row.queue} / ${row.partition}`),
      " · group ",
      link(to.group(row.consumerGroup, row.queue), groupName(row.consumerGroup)),
      ` · ${plural(row.retryCount, "retry", "retries")} · failed `,
      moment(row.failedAt),
    ),
    row.undecryptable
      ? h("p", { class: "note" }, "This server has no key for its payload.")
      : h("details", {}, h("summary", {}, "Payload ", row.omitted ? "is behind the message" : preview(row.data)), copyable(row.data)),
  );
}
