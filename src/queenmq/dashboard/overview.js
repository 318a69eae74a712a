// The first page: is it well, and if not, where to look.

import { get, readsEverything, session } from "./api.js";
import { lines, spark } from "./chart.js";
import { h } from "./dom.js";
import { bytes, compact, duration, grantsInWords, groupName, number, percent, plural, rate } from "./format.js";
import { history, rangeButtons, rangeTitle } from "./history.js";
import { isCurrent, live } from "./live.js";
import { badge, button, code, copy, empty, heading, link, moment, panel, prose, table, tile, tiles, to } from "./ui.js";

const LAGGING_S = 60;
const SEVERE = new Set(["failing", "full"]);
const LATE_S = 300;

export const overview = {
  title: () => "Overview",
  every: 15000,
  live: true,

  async load({ query }) {
    if (!readsEverything()) return { grants: session.grants };
    const [status, lagging, { troubles }] = await Promise.all([get("/api/v1/status"), get("/api/v1/consumer-groups/lagging", { minLagSeconds: LAGGING_S, limit: 6 }), get("/api/v1/troubles")]);
    return { status, lagging, troubles, past: await history(query.range, { hour: status }) };
  },

  view({ grants, status, lagging, troubles, past }, { query }, page) {
    if (grants) return [heading("Overview"), empty("The overview is about all queues, and your token is only for some.", "It is for ", code(grantsInWords(grants)), ". ", link("#/queues", "Queues"), " and ", link("#/groups", "Groups"), " have the figures of what it may read.")];
    const now = live.now;
    const { points } = past;
    const range = rangeTitle(query.range).toLowerCase();
    return [
      heading("Overview", { note: now ? `${now.server.id}, Queen ${now.server.version}, up for ${duration(now.server.uptimeSeconds)}` : "Waiting for the first live figures…" }),
      health(now, troubles),
      now && figures(now, status),
      h(
        "div",
        { class: "columns" },
        panel(
          "Now",
          { note: now && now.serversAlive > 1 ? "Messages a second on the server that answers, over the last two minutes" : "Messages a second over the last two minutes" },
          lines({ points: live.history, series: [{ key: "pushed", name: "pushed", tone: "one" }, { key: "popped", name: "delivered", tone: "two" }, { key: "acked", name: "acknowledged", tone: "three" }], format: rate, what: "Messages a second, live", empty: "The first line appears after two beats." }),
        ),
        panel(
          rangeTitle(query.range),
          { note: `Messages a second on all servers, by ${past.width}`, actions: rangeButtons(query, page) },
          lines({ points, series: [{ key: "ingestedPerSecond", name: "pushed", tone: "one" }, { key: "popPerSecond", name: "delivered", tone: "two" }, { key: "processedPerSecond", name: "acknowledged", tone: "three" }], format: rate, what: `Messages a second, ${range}` }),
        ),
        panel(
          "Age at delivery",
          { note: "Seconds that the oldest message of a delivery had waited" },
          lines({ points, series: [{ key: "maxLag", name: "longest", tone: "four" }], format: duration, what: `Longest wait before a delivery, ${range}` }),
        ),
        panel(
          "Errors",
          { note: `Refused acknowledgements, dead letters and database errors, by ${past.width}` },
          lines({ points, series: [{ key: "errors", name: "errors", tone: "bad" }], format: rate, what: `Errors, ${range}` }),
        ),
      ),
      panel(
        "Waiting longest",
        { note: `Partitions whose oldest unread message has been due for more than ${duration(LAGGING_S)}`, actions: link("#/groups", "All groups") },
        table({
          label: "Partitions that wait longest",
          rows: lagging,
          key: (row) => `${row.consumer_group}/${row.partition_id}`,
          none: empty("No group is behind.", "Groups whose oldest unread message has been due for more than a minute are listed here."),
          columns: [
            { name: "Partition", cell: (row) => link(to.partition(row.queue_name, row.partition_name), `${row.queue_name} / ${row.partition_name}`) },
            { name: "Group", cell: (row) => link(to.group(row.consumer_group, row.queue_name), groupName(row.consumer_group)) },
            { name: "Due", num: true, cell: (row) => number(row.offset_lag) },
            { name: "Due for", num: true, cell: (row) => duration(row.time_lag_seconds) },
            { name: "", actions: true, cell: (row) => link(to.partition(row.queue_name, row.partition_name), "Why?") },
          ],
        }),
      ),
      h(
        "div",
        { class: "columns" },
        panel(
          "Dead letters by error",
          { note: "Errors that differ only in numbers and names are one", actions: link("#/dead-letters", "All dead letters") },
          table({
            label: "Dead letters by error",
            rows: status.deadLetterQueue.topErrors,
            key: (row) => row.fingerprint,
            none: empty("No dead letters.", "Messages that fail more often than their queue allows are listed here."),
            columns: [
              { name: "Error", wide: true, cell: (row) => link(to.errors(row.fingerprint), row.error) },
              { name: "Messages", num: true, cell: (row) => number(row.count) },
              { name: "Last", cell: (row) => moment(row.lastFailedAt) },
            ],
          }),
        ),
        panel(
          "Waiting consumers",
          { note: "Long polls that wait at the server that answers" },
          table({
            label: "Waiting consumers",
            rows: now?.waitedFor ?? [],
            key: (row) => row.queue,
            none: empty("No consumer waits.", "A consumer that pops with ", code("wait=true"), " is held here until there is something for it."),
            columns: [
              { name: "Queue", cell: (row) => (row.queue ? link(to.queue(row.queue), row.queue) : "several queues") },
              { name: "Long polls", num: true, cell: (row) => number(row.waiters) },
            ],
          }),
        ),
      ),
    ];
  },
};

function figures(now, status) {
  const backlog = now.backlog;
  const history = live.history;
  const errors = status.errors.dbErrors + status.errors.ackFailed + status.errors.dlqMessages;
  return tiles(
    tile("Pushed a second", rate(history.at(-1)?.pushed ?? backlog?.pushedPerSecond), { extra: spark(history.map((beat) => beat.pushed), "one") }),
    tile("Delivered a second", rate(history.at(-1)?.popped ?? backlog?.poppedPerSecond), { extra: spark(history.map((beat) => beat.popped), "two") }),
    tile("Acknowledged a second", rate(history.at(-1)?.acked ?? backlog?.ackedPerSecond), { extra: spark(history.map((beat) => beat.acked), "three") }),
    tile("Unread messages", compact(backlog?.pending), { note: backlog ? `${compact(backlog.processing)} under ${plural(backlog.leases, "lease")}` : "not known", href: "#/queues" }),
    tile("Oldest due", backlog ? duration(backlog.lagSeconds) : "–", { note: backlog ? `at most ${plural(backlog.lagMessages, "message")} behind` : "not known", tone: backlog?.lagSeconds > LATE_S ? "warn" : "", href: "#/groups" }),
    tile("Waiting consumers", compact(now.waiters), { note: "long polls", extra: spark(history.map((beat) => beat.waiters), "four") }),
    tile("Dead letters", compact(backlog?.deadLetters), { note: backlog?.deadLetters ? "look at them" : "none", tone: backlog?.deadLetters ? "warn" : "", href: "#/dead-letters" }),
    tile("Errors in the last hour", compact(errors), { note: `${plural(status.errors.dbErrors, "database error")}, ${plural(status.errors.ackFailed, "refused ack")}, ${plural(status.errors.dlqMessages, "dead letter")}`, tone: errors ? "warn" : "" }),
    tile("Stored messages", compact(backlog?.total), { note: backlog ? `${compact(backlog.partitions)} partitions, ${plural(backlog.queues, "queue")}` : "not known" }),
    tile("Operations waiting", compact(now.operationsWaiting), { note: now.journal ? `${number(now.journal)} messages in the journal` : "journal empty", tone: now.journal ? "warn" : "", href: "#/operations" }),
    tile("Processor", percent(history.at(-1)?.processor ?? 0), { note: `${bytes(now.server.memoryBytes)} memory`, extra: spark(history.map((beat) => beat.processor), "one") }),
    tile("Servers", isCurrent() ? number(now.serversAlive) : "–", { note: !isCurrent() ? "not known" : now.serversDead ? `${number(now.serversDead)} dead` : "all alive", tone: now.serversDead || !isCurrent() ? "bad" : "", href: "#/cluster" }),
  );
}

/** Where a trouble is looked at and mended. */
function placeOf({ kind, reason, queue, partition, consumerGroup, fingerprint }) {
  if (kind === "dead_letters") return to.errors(fingerprint);
  if (kind === "token_expired") return "#/access";
  if (kind === "failing" && !partition) return to.partitions(queue, "failing");
  if (kind === "paused" || kind === "full" || kind === "gathering") return to.queue(queue, consumerGroup);
  if (kind === "behind" && reason === "deliverable") return to.group(consumerGroup, queue);
  return queue && to.partition(queue, partition, consumerGroup);
}

function health(now, troubles) {
  if (!now) return null;
  // What was true when the server was last heard says nothing about now; the frame of the page says that it is lost.
  if (!isCurrent()) return null;
  const worries = [];
  const add = (tone, sentence, { advice, href, action } = {}) => worries.push({ tone, sentence, advice, href, action });
  if (now.problem) add("bad", `The database does not answer: ${now.problem}. Pushes go to the journal meanwhile.`);
  if (now.pushMaintenance) add("warn", "Push maintenance is on: pushes are kept in the journals.", { href: "#/cluster" });
  if (now.popMaintenance) add("warn", "Pop maintenance is on: consumers get no messages.", { href: "#/cluster" });
  if (now.serversDead) add("bad", `${plural(now.serversDead, "server is", "servers are")} silent and counted as dead: ${now.silentServers.join(", ")}.`, { href: "#/cluster" });
  if (now.journal && !now.problem) add("busy", `${plural(now.journal, "message")} of the journal ${now.journal === 1 ? "is" : "are"} being replayed.`, { href: "#/operations" });
  for (const one of troubles) add(SEVERE.has(one.kind) ? "bad" : "warn", one.sentence, { advice: one.advice, href: placeOf(one), action: one.statement && button("Copy the statement", () => copy(one.statement), { title: one.statement }) });
  if (!worries.length) return h("div", { class: "health good", role: "status" }, badge("good", "All is well"), h("p", {}, "The database answers, no group is far behind, and nothing waits for a person."));
  return h(
    "ul",
    { class: "health", "aria-label": "What needs attention" },
    worries.map(({ tone, sentence, advice, href, action }) => h("li", {}, badge(tone, tone === "bad" ? "Trouble" : tone === "busy" ? "Under way" : "Look at this"), h("div", {}, h("p", {}, prose(sentence)), advice && h("p", { class: "note" }, prose(advice))), action, href && link(href, "Look"))),
  );
}
