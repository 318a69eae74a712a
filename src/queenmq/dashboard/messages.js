// Messages, and one message with its payload and what happened to it.

import { get, may, path, post, remove } from "./api.js";
import { attemptTable } from "./attempts.js";
import { h } from "./dom.js";
import { groupName, number, plural } from "./format.js";
import { ask, attempt, badge, button, choice, code, copyable, empty, facts, heading, json, link, moment, pager, panel, preview, problem, searchField, table, to, toolbar } from "./ui.js";

const PAGE = 50;
const HOUR_MS = 3600000;
const SPANS = { "": HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS, year: 364 * 24 * HOUR_MS };
const STATES = { pending: ["calm", "Pending"], processing: ["busy", "Processing"], completed: ["good", "Completed"], dead_letter: ["bad", "Dead letter"] };

export function messageState(status) {
  return badge(...(STATES[status] ?? ["calm", status]));
}

/** With the beginning of each payload, if the messages have them. */
export function messageTable(messages, none) {
  const withPayloads = messages.some((row) => row.payload !== undefined);
  return table({
    label: "Messages",
    rows: messages,
    key: (row) => row.id,
    none,
    columns: [
      { name: "Transaction", cell: (row) => link(to.message(row.partitionId, row.transactionId), row.transactionId, { class: "strong" }) },
      { name: "Queue", cell: (row) => link(to.queue(row.queue), row.queue) },
      { name: "Partition", cell: (row) => link(to.partition(row.queue, row.partition), row.partition) },
      ...(withPayloads ? [{ name: "Payload", wide: true, cell: (row) => (row.omitted ? "left out" : preview(row.payload)) }] : []),
      { name: "State", cell: (row) => messageState(row.status) },
      { name: "Read by", num: true, cell: (row) => (row.busStatus?.totalGroups ? `${number(row.busStatus.consumedBy)} of ${number(row.busStatus.totalGroups)}` : "–") },
      { name: "Pushed", cell: (row) => moment(row.createdAt) },
    ],
  });
}

export const messages = {
  title: () => "Messages",
  every: 5000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const from = new Date(Date.now() - (SPANS[query.span ?? ""] ?? HOUR_MS)).toISOString();
    const answer = await get("/api/v1/messages", { queue: query.queue, partition: query.partition, status: query.status, header: query.header, payload: query.payload, from, limit: PAGE + 1, offset });
    return { rows: answer.messages.slice(0, PAGE), more: answer.messages.length > PAGE, offset };
  },

  view({ rows, more, offset }, { query }, page) {
    return [
      heading("Messages", { note: "The newest first." }),
      toolbar(
        searchField({ label: "Queue", value: query.queue, placeholder: "Every queue", onsearch: (queue) => page.set({ queue, offset: "" }) }),
        searchField({ label: "Partition", value: query.partition, placeholder: "Every partition", onsearch: (partition) => page.set({ partition, offset: "" }) }),
        searchField({ label: "Header", value: query.header, placeholder: "name:value", onsearch: (header) => page.set({ header, offset: "" }) }),
        choice({ label: "State", value: query.status, options: [["", "Every state"], ["pending", "Pending"], ["processing", "Processing"], ["completed", "Completed"], ["dead_letter", "Dead letter"]], onchoose: (status) => page.set({ status, offset: "" }) }),
        choice({ label: "Pushed in", value: query.span, options: [["", "the last hour"], ["day", "the last day"], ["week", "the last week"], ["year", "the last year"]], onchoose: (span) => page.set({ span, offset: "" }) }),
        choice({ label: "Payloads", value: query.payload, options: [["", "behind each message"], ["true", "in the list"]], onchoose: (payload) => page.set({ payload }) }),
      ),
      messageTable(rows, empty("No message matches.", "Queue and partition are matched as a whole; look further back with ", h("b", {}, "Pushed in"), ", or push one: ", code("queen push orders '{\"order\":1}'"))),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

export const message = {
  title: ({ params }) => params[1],
  every: 10000,

  async load({ params: [partitionId, transactionId] }) {
    const [told, { traces }, letters] = await Promise.all([
      get(path`/api/v1/messages/${partitionId}/${transactionId}`),
      get(path`/api/v1/traces/${partitionId}/${transactionId}`),
      null,
    ]);
    const isDead = told.status === "dead_letter";
    const dead = isDead ? (await get("/api/v1/dlq", { queue: told.queue, partition: told.partition, limit: 200 })).messages.filter((row) => row.transactionId === transactionId && row.partitionId === partitionId) : [];
    return { told, traces, isDead, dead };
  },

  view({ told, traces, isDead, dead }, route, page) {
    const key = path`/api/v1/messages/${told.partitionId}/${told.transactionId}`;
    return [
      heading(told.transactionId, {
        kind: "Message",
        crumbs: [["Queues", "#/queues"], [told.queue, to.queue(told.queue)], [told.partition, to.partition(told.queue, told.partition)]],
        actions: may("read-write") && [
          isDead && button("Redrive", () => redrive([told], page.reload), { kind: "primary" }),
          told.status !== "completed" && !isDead && button("To the dead letters", () => bury(key, told, page)),
          may("admin") && button("Delete", () => erase(key, told), { kind: "danger" }),
        ],
      }),
      told.errorMessage && problem(told.errorMessage),
      h(
        "div",
        { class: "columns" },
        panel("Payload", { note: told.isEncrypted ? "Decrypted for this page" : undefined }, told.undecryptable ? empty("This server has no key for the payload.", "Start it with QUEEN_ENCRYPTION_KEY.") : copyable(told.payload)),
        panel(
          "About",
          {},
          facts(
            ["State", messageState(told.status)],
            ["Queue", link(to.queue(told.queue), told.queue)],
            ["Partition", link(to.partition(told.queue, told.partition), told.partition)],
            ["Pushed", moment(told.createdAt, { absolute: true })],
            ["Pushed by", told.producerSub ?? "–"],
            ["Message id", code(told.id)],
            ["Trace id", told.traceId ? code(told.traceId) : "–"],
            ...Object.entries(told.headers ?? {}).map(([name, value]) => [`Header ${name}`, code(value)]),
            ["Failed attempts", number(told.retryCount)],
            ["Lease", told.leaseExpiresAt ? ["until ", moment(told.leaseExpiresAt)] : "none"],
          ),
        ),
      ),
      panel("Attempts that failed", { note: "The last ten of each group; marked is what the one before did not say" }, attemptTable(told.attempts)),
      panel("History", { note: plural(traces.length, "trace") }, timeline(told, traces, dead)),
      panel(
        "Groups",
        {},
        table({
          label: "Groups of this message",
          rows: told.consumerGroups,
          key: (row) => row.name,
          none: empty("No group has read this partition."),
          columns: [
            { name: "Group", cell: (row) => link(to.group(row.name, told.queue), groupName(row.name), { class: "strong" }) },
            { name: "State", cell: (row) => (row.status === "dead_letter" ? badge("bad", "Dead letter") : row.consumed ? badge("good", "Finished") : row.leaseExpiresAt ? badge("busy", "Leased") : badge("calm", "Not finished")) },
            { name: "Failed attempts", num: true, cell: (row) => (row.attempts ? badge("bad", number(row.attempts)) : "0") },
            { name: "Lease until", cell: (row) => moment(row.leaseExpiresAt) },
          ],
        }),
      ),
    ];
  },
};

function timeline(told, traces, dead) {
  const events = [
    { at: told.createdAt, tone: "calm", title: "Pushed", note: told.producerSub ? `by ${told.producerSub}` : `to ${told.queue} / ${told.partition}` },
    ...traces.map((trace) => ({ at: trace.created_at, tone: toneOf(trace.event_type), title: trace.event_type, note: [trace.consumer_group && groupName(trace.consumer_group), ...trace.trace_names].filter(Boolean).join(", "), data: trace.data })),
    ...told.attempts.map((one) => ({ at: one.endedAt, tone: one.outcome === "retry" ? "warn" : "bad", title: one.outcome === "expired" ? "Lease expired" : "Delivery failed", note: `${groupName(one.consumerGroup)}: ${attempt(one)}` })),
    ...dead.map((letter) => ({ at: letter.failedAt, tone: "bad", title: "Became a dead letter", note: `${groupName(letter.consumerGroup)}: ${letter.errorMessage}` })),
  ].sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  return h(
    "ol",
    { class: "timeline" },
    events.map((event) => h("li", { class: event.tone }, h("div", { class: "timeline-head" }, badge(event.tone, event.title), moment(event.at, { absolute: true }), event.note && h("span", { class: "note" }, event.note)), event.data !== undefined && event.data !== null && json(event.data))),
  );
}

export function toneOf(kind) {
  if (/error|fail/i.test(kind)) return "bad";
  if (/warn/i.test(kind)) return "warn";
  if (/complete|done|success/i.test(kind)) return "good";
  return "busy";
}

/** Deliver dead letters again, one after the other. */
export function redrive(letters, done) {
  const many = letters.length > 1;
  ask({
    title: many ? `Redrive ${number(letters.length)} dead letters?` : "Redrive this message?",
    text: many ? "Each message is delivered again, only to the groups in which it failed, and is no dead letter any more." : `Message ${letters[0].transactionId} is delivered again, only to the groups in which it failed, and is no dead letter any more.`,
    action: "Deliver again",
    act: (_, report) => deliverAgain(letters, report),
    done,
  });
}

async function deliverAgain(letters, report) {
  // A message that several groups gave up is one message.
  const keys = [...new Set(letters.map((letter) => path`/api/v1/messages/${letter.partitionId}/${letter.transactionId}/retry`))];
  if (keys.length === 1) return (await post(keys[0])).message;
  const refusals = [];
  for (const [index, key] of keys.entries()) {
    try {
      await post(key);
    } catch (error) {
      // Somebody else was faster, or another message has its place: the others are not concerned.
      if (error.status !== 404 && error.status !== 409) throw error;
      refusals.push(error.message);
    }
    if (!report((index + 1) / keys.length, `${number(index + 1)} of ${number(keys.length)}`)) {
      return `Stopped: ${plural(index + 1 - refusals.length, "message")} of ${number(keys.length)} will be delivered again.`;
    }
  }
  const rest = refusals.length ? ` ${number(refusals.length)} will not: ${[...new Set(refusals)].join(", ")}.` : "";
  return `${plural(keys.length - refusals.length, "message")} will be delivered again.${rest}`;
}

function bury(key, told, page) {
  ask({
    title: "Make this message a dead letter?",
    text: `Message ${told.transactionId} becomes a dead letter of every group that has not finished it. It can be redriven later.`,
    action: "To the dead letters",
    danger: true,
    act: async () => (await post(`${key}/dlq`)).message,
    done: page.reload,
  });
}

/** With `done` the page stays; without, that of the partition follows. */
export function erase(key, told, done) {
  ask({
    title: "Delete this message?",
    text: `Message ${told.transactionId} is deleted with its traces and dead letters. This cannot be undone.`,
    action: "Delete the message",
    danger: true,
    act: async () => (await remove(key)).message,
    done,
    next: done ? undefined : () => to.partition(told.queue, told.partition),
  });
}
