// Operations: pushes that wait under load, and long administration, with their progress.

import { get, may, path, post, readsEverything } from "./api.js";
import { bar } from "./chart.js";
import { h } from "./dom.js";
import { bytes, duration, number, percent } from "./format.js";
import { ask, badge, button, choice, code, doneOf, empty, facts, heading, json, link, moment, pager, panel, problem, shareOf, table, tile, tiles, to, toolbar } from "./ui.js";

const PAGE = 50;
const STATES = { pending: ["calm", "Waiting"], processing: ["busy", "Running"], blocked: ["bad", "Blocked"], completed: ["good", "Completed"], failed: ["bad", "Failed"], cancelled: ["warn", "Cancelled"] };

function state(operation) {
  return badge(...(STATES[operation.status] ?? ["calm", operation.status]));
}

function progress(operation) {
  const share = shareOf(operation);
  if (operation.progress && operation.status !== "completed") return h("span", { class: "with-bar" }, h("span", {}, doneOf(operation)), share !== null && bar(share, "one"));
  if (share === null) return operation.queuePosition === null ? h("span", { class: "note" }, "–") : h("span", { class: "note" }, `${number(operation.queuePosition)} before it${operation.estimatedWait ? `, about ${duration(operation.estimatedWait)}` : ""}`);
  return h("span", { class: "with-bar" }, h("span", {}, `${Math.round(share * 100)} %`), bar(share, operation.status === "completed" ? "three" : "one"));
}

function actions(operation, page) {
  if (!may("admin")) return null;
  const base = path`/api/v1/operations/${operation.id}`;
  const isPush = operation.operationType === "push";
  const inPlace = operation.status === "blocked" || Boolean(operation.nextAttemptAt);
  const retries = inPlace || operation.status === "failed" || (operation.status === "cancelled" && !isPush);
  const cancels = ["failed", "blocked", "pending"].includes(operation.status) || (operation.status === "processing" && !isPush);
  return h(
    "span",
    { class: "actions" },
    retries && button("Retry", () => ask({ title: "Retry the operation?", text: inPlace ? "It is tried now and keeps its place; then the operations behind it continue." : isPush ? "It runs after the later operations of its partition." : "It continues where it stopped.", action: "Retry now", act: async () => (await post(`${base}/retry`), "It waits for its turn."), done: page.reload })),
    cancels && button("Cancel", () => ask({ title: isPush ? "Cancel the operation?" : "Stop it?", text: isPush ? "Its messages are not stored. This cannot be undone." : "What it has done stays; it can be resumed later.", action: isPush ? "Drop the messages" : "Stop it", danger: true, act: async () => (await post(`${base}/cancel`)).message ?? "It was cancelled.", done: page.reload }), { kind: "danger" }),
  );
}

export const operations = {
  title: () => "Operations",
  every: 2000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const [stats, listed] = await Promise.all([readsEverything() ? get("/api/v1/operations/stats") : null, get("/api/v1/operations", { status: query.status, limit: PAGE + 1, offset })]);
    return { stats, rows: listed.operations.slice(0, PAGE), more: listed.operations.length > PAGE, offset };
  },

  view({ stats, rows, more, offset }, { query }, page) {
    return [
      heading("Operations", { note: "Work that was accepted and runs later: deferred pushes and long administration." }),
      stats && figures(stats),
      toolbar(choice({ label: "State", value: query.status, options: [["", "Every state"], ...Object.entries(STATES).map(([name, [, text]]) => [name, text])], onchoose: (status) => page.set({ status, offset: "" }) })),
      table({
        label: "Operations",
        rows,
        key: (row) => row.id,
        none: empty("No operation.", "Under load pushes are answered with 202 and wait here; see docs/overload.md."),
        columns: [
          { name: "Operation", cell: (row) => link(to.operation(row.id), row.operationType, { class: "strong" }) },
          { name: "State", wide: true, cell: (row) => [state(row), row.errorMessage && h("p", { class: "letter-error note" }, row.errorMessage)] },
          { name: "Where", wide: true, cell: (row) => (row.queue ? link(to.queue(row.queue), row.partition ? `${row.queue} / ${row.partition}` : row.queue) : "–") },
          { name: "Messages", num: true, cell: (row) => number(row.items) },
          { name: "Progress", cell: progress },
          { name: "Created", cell: (row) => moment(row.createdAt) },
          { name: "", actions: true, cell: (row) => actions(row, page) },
        ],
      }),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

export const operation = {
  title: ({ params }) => `Operation ${params[0]}`,
  every: 1000,
  load: ({ params: [id] }) => get(path`/api/v1/operations/${id}`),

  view(told, route, page) {
    return [
      heading(told.operationType, { kind: "Operation", crumbs: [["Operations", "#/operations"]], actions: actions(told, page) }),
      told.errorMessage && problem(told.errorMessage),
      panel(
        "Progress",
        {},
        facts(
          ["State", state(told)],
          ["Progress", progress(told)],
          ["Queue", told.queue ? link(to.queue(told.queue), told.queue) : "–"],
          ["Partition", told.partition ?? "–"],
          ["Messages", number(told.items)],
          ["Priority", number(told.priority)],
          ["Created", moment(told.createdAt, { absolute: true })],
          ["Started", moment(told.processingStartedAt, { absolute: true })],
          ["Ended", moment(told.processedAt, { absolute: true })],
          ["Repeated", number(told.retryCount)],
          ["Next attempt", moment(told.nextAttemptAt, { absolute: true })],
          ["Id", code(told.id)],
        ),
      ),
      panel("Result", {}, told.result === null ? empty("There is no result yet.") : json(told.result)),
    ];
  },
};

/** What all servers and queues have to do: not for a token that is for some queues. */
function figures({ stats, systemHealth: load, journal }) {
  const count = (status) => stats.filter((row) => row.status === status).reduce((sum, row) => sum + row.count, 0);
  return tiles(
    tile("Waiting", number(count("pending") + count("processing") + count("blocked")), { note: load.drainRate ? `${number(load.drainRate)} a second are done` : "nothing is being done" }),
    tile("Blocked or failed", number(count("blocked") + count("failed")), { tone: count("blocked") + count("failed") ? "bad" : "" }),
    tile("Connections in use", percent(load.poolUtilization), { note: `${number(load.poolWaiting)} calls wait` }),
    tile("Wait of pushes", duration(load.pushWaitSeconds), { note: `${number(load.queued)} queued, ${number(load.rejected)} refused` }),
    tile("Journal", journal ? number(journal.messages) : "none", { note: journal ? `messages, ${bytes(journal.bytes)}${journal.healthy ? "" : ", cannot be written"}${journal.stuck ? `, ${number(journal.stuck)} pushes cannot be stored for now` : ""}${journal.waitingForKey ? `, ${number(journal.waitingForKey)} pushes wait for their key` : ""}${journal.quarantined ? `, ${number(journal.quarantined)} records set aside` : ""}` : "no folder for it", tone: journal && (!journal.healthy || journal.stuck || journal.waitingForKey || journal.quarantined) ? "bad" : journal?.messages ? "warn" : "" }),
  );
}
