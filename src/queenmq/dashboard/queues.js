// Queues, and one queue with its partitions, groups and settings.

import { get, may, path, remove } from "./api.js";
import { lines } from "./chart.js";
import { h } from "./dom.js";
import { compact, duration, groupName, number, plural, rate } from "./format.js";
import { history, rangeButtons, rangeTitle } from "./history.js";
import { pause, pauseTable } from "./pauses.js";
import { changePolicies, policyFacts } from "./policies.js";
import { changeSettings, createQueue, pushMessage } from "./queue_forms.js";
import { growth } from "./rates.js";
import { ask, badge, button, choice, code, empty, explanation, facts, heading, lagBar, lease, link, moment, pager, panel, problem, reason, searchField, table, tile, tiles, to, toolbar } from "./ui.js";

const PAGE = 50;
const CURRENT_MS = 4000; // between two figures of a partition, which are of the moment
const BY_SETTINGS = ["window_open", "delayed", "expired"]; // what the settings of a queue keep back
const PARTITION_STATES = [["", "all, by name"], ["failing", "failing heads"], ["leased", "leased"], ["waiting", "waiting longest"], ["dead_letters", "with dead letters"], ["unread", "unread"]];

export const queues = {
  title: () => "Queues",
  every: 5000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get("/api/v1/resources/queues", { search: query.search, namespace: query.namespace, sort: query.sort, only: query.only, limit: PAGE + 1, offset });
    return { rows: answer.queues.slice(0, PAGE), more: answer.queues.length > PAGE, offset };
  },

  view({ rows, more, offset }, { query }, page) {
    const most = Math.max(1, ...rows.map((row) => row.messages.pending));
    return [
      heading("Queues", { note: "Pending and processing are those of the slowest group of each partition; messages a second those of the last whole minute.", actions: may("read-write") && button("Create a queue", createQueue, { kind: "primary" }) }),
      toolbar(
        searchField({ label: "Search queues", value: query.search, placeholder: "Part of the name", onsearch: (search) => page.set({ search, offset: "" }) }),
        choice({ label: "Show", value: query.only, options: [["", "all"], ["failing", "with failing heads"], ["leased", "leased"], ["due", "with messages due"], ["dead_letters", "with dead letters"], ["unread", "with unread messages"]], onchoose: (only) => page.set({ only, offset: "" }) }),
        choice({ label: "First", value: query.sort, options: [["", "by name"], ["failing", "failing heads"], ["leased", "most leases"], ["lag", "due longest"], ["pending", "most pending"], ["dead_letters", "most dead letters"]], onchoose: (sort) => page.set({ sort, offset: "" }) }),
      ),
      table({
        label: "Queues",
        rows,
        key: (row) => row.id,
        none: query.only ? empty("No queue matches.") : query.search ? empty("No queue name contains that.", "Try a shorter part of it.") : empty("There is no queue yet.", "The first push creates one: ", code(`curl ${location.origin}/api/v1/push -d '{"items":[{"queue":"orders","payload":{"order":1}}]}'`)),
        columns: [
          { name: "Queue", cell: (row) => link(to.queue(row.name), row.name, { class: "strong" }) },
          { name: "Partitions", num: true, cell: (row) => number(row.partitions) },
          { name: "Stored", num: true, cell: (row) => number(row.messages.total) },
          { name: "Pending", num: true, cell: (row) => lagBar(row.messages.pending, most) },
          { name: "Processing", num: true, cell: (row) => (row.leases ? link(to.partitions(row.name, "leased"), number(row.messages.processing), { title: plural(row.leases, "lease") }) : number(row.messages.processing)) },
          { name: "Due for", num: true, cell: (row) => (row.lagSeconds ? duration(row.lagSeconds) : "–") },
          { name: "In, out a second", num: true, cell: (row) => `${rate(row.pushedPerSecond)}, ${rate(row.poppedPerSecond)}` },
          { name: "Failing", num: true, cell: (row) => (row.failing ? link(to.partitions(row.name, "failing"), badge("bad", number(row.failing))) : "0") },
          { name: "Dead letters", num: true, cell: (row) => (row.deadLetters ? link(to.deadLetters(row.name), badge("warn", number(row.deadLetters))) : "0") },
        ],
      }),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

export const queue = {
  title: ({ params }) => params[0],
  every: 5000,

  async load({ params: [name], query }) {
    const offset = Number(query.offset ?? 0);
    const groups = await get("/api/v1/consumer-groups", { queue: name, limit: 100 });
    // Without a choice, ask for the group that is furthest behind.
    const asked = query.group ?? groups.reduce((worst, row) => ((row.unread ?? 0) > (worst?.unread ?? -1) ? row : worst), null)?.name;
    const [status, heads, told, past, policies, skipped, pauses, timers] = await Promise.all([
      get(path`/api/v1/status/queues/${name}`, { limit: 1 }),
      get(path`/api/v1/resources/queues/${name}/partitions`, { search: query.state ? "" : query.search, state: query.state, limit: PAGE + 1, offset }),
      get(path`/api/v1/explain/${name}`, { consumerGroup: asked }),
      history(query.range, { queue: name }),
      get("/api/v1/policies", { queue: name }),
      get(path`/api/v1/queues/${name}/skipped`, { limit: PAGE }),
      get("/api/v1/pauses", { queue: name }),
      get(path`/api/v1/timers/${name}`, { limit: PAGE }),
    ]);
    return { status, heads: heads.partitions.slice(0, PAGE), more: heads.partitions.length > PAGE, offset, groups, told, past, policies: policies.policies, skipped: skipped.messages, pauses: pauses.pauses, timers };
  },

  view({ status, heads, more, offset, groups, told, past, policies, skipped, pauses, timers }, { params: [name], query }, page) {
    const { totals, queue: about } = status;
    const { options } = about;
    const change = () => changeSettings(name, about, page);
    return [
      heading(name, {
        kind: "Queue",
        crumbs: [["Queues", "#/queues"]],
        actions: [
          link(to.messages(name), "Messages", { class: "button" }),
          may("read-write") && button("Push a message", () => pushMessage(name, page)),
          may("read-write") && button("Pause", () => pause(name, page)),
          may("admin") && button("Clear", () => clear(name, page), { kind: "danger" }),
          may("admin") && button("Delete", () => drop(name), { kind: "danger" }),
        ],
      }),
      options.maxSize > 0 && totals.pending + totals.processing >= options.maxSize && problem(`The queue is full: ${number(totals.pending + totals.processing)} of ${number(options.maxSize)} messages wait for its slowest group, and pushes are refused.`, may("read-write") && button("Raise the limit", change)),
      tiles(
        tile("Stored", compact(totals.total)),
        tile("Pending", compact(totals.pending), { note: "of the slowest groups" }),
        tile("Processing", compact(totals.processing), { note: "under leases" }),
        tile("Completed", compact(totals.completed), { note: "by every group" }),
        tile("Dead letters", compact(totals.deadLetter), { tone: totals.deadLetter ? "warn" : "", href: to.deadLetters(name) }),
      ),
      h(
        "div",
        { class: "columns" },
        panel("Why is nothing delivered?", { note: "The partition that comes next" }, explanation(told, ...(may("read-write") && BY_SETTINGS.includes(told.reason) ? [button("Change these settings", change)] : [])), groupChooser(told, query, page)),
        panel(rangeTitle(query.range), { note: `Messages a second, by ${past.width}`, actions: rangeButtons(query, page) }, lines({ points: past.points, series: [{ key: "ingestedPerSecond", name: "pushed", tone: "one" }, { key: "popPerSecond", name: "delivered", tone: "two" }, { key: "processedPerSecond", name: "acknowledged", tone: "three" }], format: rate, what: `Messages a second of ${name}, ${rangeTitle(query.range).toLowerCase()}` })),
      ),
      panel("Consumer groups", {}, groupTable(groups)),
      pauses.length > 0 && panel("Paused", { note: "Not delivered until it is resumed" }, pauseTable(pauses, page)),
      timers.rows.length > 0 && panel("Timers", { note: timers.truncated ? `The first ${number(PAGE)} by key` : "Messages that are pushed at their moment" }, timerTable(timers.rows, page)),
      skipped.length > 0 && panel("Kept back", { note: "Messages that failed and wait by a policy" }, skippedTable(skipped)),
      panel(
        "Partitions",
        { note: query.state ? "The worst first, with the group that is furthest behind" : "By name, with the group that is furthest behind" },
        toolbar(
          searchField({ label: "Search partitions", value: query.search, placeholder: "Part of the name", onsearch: (search) => page.set({ search, state: "", offset: "" }) }),
          choice({ label: "Show", value: query.state, options: PARTITION_STATES, onchoose: (state) => page.set({ state, search: "", offset: "" }) }),
        ),
        partitionTable(name, heads, query.search || query.state),
        pager({ offset, limit: PAGE, shown: heads.length, more, go: (next) => page.set({ offset: next || "" }) }),
      ),
      panel(
        "Settings",
        { note: "Also changed with queen queues set, POST /api/v1/configure or a client's create()", actions: may("read-write") && h("div", { class: "actions" }, button("Change settings", change), button("Change policies", () => changePolicies(name, null, policies, page))) },
        facts(
          ["Namespace", about.namespace || "–"],
          ["Task", about.task || "–"],
          ["Priority", number(about.priority)],
          ["Lease", duration(options.leaseTime)],
          ["Retries", `${number(options.retryLimit)}, ${duration(options.retryDelay / 1000)} apart`],
          ["Size limit", options.maxSize ? number(options.maxSize) : "none"],
          ...chosen(options),
          ...policyFacts(policies),
          ["Created", moment(about.createdAt, { absolute: true })],
        ),
      ),
    ];
  },
};

/** The settings that a queue has only if somebody chose them. */
function chosen(options) {
  return [
    ["Delay", options.delayedProcessing && duration(options.delayedProcessing)],
    ["Collects for", options.windowBuffer && duration(options.windowBuffer)],
    ["Not delivered after", options.ttl && duration(options.ttl)],
    ["Evicted after", options.maxWaitTimeSeconds && duration(options.maxWaitTimeSeconds)],
    ["Kept for", options.retentionEnabled && options.retentionSeconds && duration(options.retentionSeconds)],
    ["Kept when read for", options.retentionEnabled && options.completedRetentionSeconds && duration(options.completedRetentionSeconds)],
    ["Deleted", options.archiveBeforeDelete && "only when archived"],
    ["Accepted pushes that fail", options.setAsideFailedPushes && "are set aside"],
    ["Expired messages become", options.deadLetterQueue && "a dead letter"],
    ["Ended lease", options.dlqAfterMaxRetries && "counts as a failure"],
    ["Payloads", options.encryptionEnabled && "encrypted"],
    ["Long polls are probed", (options.popWaitBaseIntervalMs || options.popWaitMaxIntervalMs) && `after ${options.popWaitBaseIntervalMs ?? "…"} to ${options.popWaitMaxIntervalMs ?? "…"} ms`],
  ].filter(([, value]) => value);
}

function timerTable(rows, page) {
  return table({
    label: "Timers that wait",
    rows,
    key: (row) => row.timerKey,
    columns: [
      { name: "Key", cell: (row) => code(row.timerKey) },
      { name: "Partition", cell: (row) => row.partition },
      { name: "Pushed at", cell: (row) => moment(row.deliverAt) },
      { name: "Schedule", cell: (row) => (row.schedule ? [code(row.schedule), row.timeZone && ` ${row.timeZone}`] : "once") },
      { name: "Failed", num: true, cell: (row) => (row.attempts ? badge("bad", number(row.attempts)) : "0") },
      { name: "Error", wide: true, cell: (row) => row.lastError ?? "–" },
      { name: "", actions: true, cell: (row) => may("read-write") && button("Cancel", () => cancelTimer(row, page)) },
    ],
  });
}

function cancelTimer({ queue, timerKey }, page) {
  ask({
    title: `Cancel ${timerKey}?`,
    text: "Its message is not pushed any more. What it has pushed before stays.",
    action: "Cancel the timer",
    danger: true,
    act: async () => {
      const { status } = await remove(path`/api/v1/timers/${queue}/${timerKey}`);
      return status === "cancelled" ? "The timer is cancelled." : "There is no such timer any more: it was pushed or cancelled.";
    },
    done: page.reload,
  });
}

function skippedTable(rows) {
  return table({
    label: "Waiting by a policy",
    rows,
    key: (row) => `${row.partitionId}/${row.consumerGroup}/${row.offset}`,
    columns: [
      { name: "Message", cell: (row) => link(to.message(row.partitionId, row.transactionId), row.transactionId, { class: "strong" }) },
      { name: "Partition", cell: (row) => row.partition },
      { name: "Group", cell: (row) => link(to.group(row.consumerGroup), groupName(row.consumerGroup)) },
      { name: "Failed", num: true, cell: (row) => number(row.retryCount) },
      { name: "Again", cell: (row) => (row.parked ? badge("bad", "Parked", "All behind it waits until it is retried, made a dead letter or deleted") : moment(row.until)) },
    ],
  });
}

function groupChooser(told, query, page) {
  const others = told.groups.filter((group) => group !== told.consumerGroup);
  return others.length > 0 && h("p", { class: "chips" }, h("span", { class: "note" }, "Ask for "), others.slice(0, 12).map((group) => button(groupName(group), () => page.set({ group }), { kind: "chip" })));
}

export function groupTable(groups) {
  const most = Math.max(1, ...groups.map((row) => row.unread ?? 0));
  return table({
    label: "Consumer groups",
    rows: groups,
    key: (row) => `${row.name}/${row.queueName}`,
    none: empty("No group has read this queue.", "A group begins with its first pop: ", code("GET /api/v1/pop/queue/…?consumerGroup=billing")),
    columns: [
      { name: "Group", cell: (row) => link(to.group(row.name, row.queueName), groupName(row.name), { class: "strong" }) },
      { name: "Queue", cell: (row) => link(to.queue(row.queueName), row.queueName) },
      { name: "State", cell: (row) => groupState(row) },
      { name: "Unread", num: true, cell: (row) => lagBar(row.unread ?? 0, most, row.state === "Lagging" ? "bad" : "two") },
      { name: "Due", num: true, cell: (row) => number(row.totalLag ?? 0) },
      { name: "Due for", num: true, cell: (row) => (row.totalLag ? duration(row.maxTimeLag) : "–") },
      { name: "Finished/s", num: true, cell: (row) => rate(row.finishedPerSecond) },
      { name: "Failing", num: true, cell: (row) => (row.failing ? link(to.partitions(row.queueName, "failing"), badge("bad", number(row.failing))) : "0") },
      { name: "Dead", num: true, cell: (row) => (row.deadLetters ? link(to.deadLetters(row.queueName, row.name), badge("warn", number(row.deadLetters))) : "0") },
      { name: "Leases", num: true, cell: (row) => number(row.members) },
    ],
  });
}

const STANDINGS = {
  "Up to date": ["good", "The group has finished every stored message"],
  Waiting: ["calm", "No unread message is due yet"],
  Reading: ["busy", "The group holds a lease, has finished a message in the last minute, or has a long poll at this server"],
  Idle: ["warn", "Messages are due, but the group does not read: no lease, nothing finished for a minute, no long poll at this server"],
  Behind: ["bad", "A message has been due for more than five minutes"],
  Paused: ["bad", "Nothing is delivered to the group until it is resumed: it is paused, itself, with its queue or by its breaker, or pops are switched off"],
  "Queue is gone": ["bad", "The group waits for a queue that does not exist"],
};

export function groupState(row) {
  const [tone, title] = STANDINGS[row.standing] ?? ["warn"];
  const shown = badge(tone, row.standing, title);
  return row.standing === "Behind" && !row.reading ? h("span", { class: "badges" }, shown, badge("warn", "Idle", STANDINGS.Idle[1])) : shown;
}

function partitionTable(name, heads, search) {
  return table({
    label: "Partitions",
    rows: heads,
    key: (row) => row.id,
    none: search ? empty("No partition matches.") : empty("This queue has no partition yet.", "The first push to a partition creates it."),
    columns: [
      { name: "Partition", cell: (row) => link(to.partition(name, row.name), row.name, { class: "strong" }) },
      { name: "Stored", num: true, cell: (row) => number(row.stored) },
      { name: "Offsets", num: true, cell: (row) => (row.stored ? `${number(row.firstOffset)}–${number(row.lastOffset)}` : "–") },
      { name: "Pushed/s", num: true, cell: (row) => growth(row.id, row.lastOffset, CURRENT_MS) },
      { name: "Furthest behind", cell: (row) => furthest(row) },
      { name: "Due for", num: true, cell: (row) => dueFor(row) },
      { name: "State", cell: (row) => partitionState(row) },
      { name: "Last message", cell: (row) => moment(row.lastMessageAt) },
    ],
  });
}

function furthest(row) {
  const [group] = row.groups;
  if (!group) return h("span", { class: "note" }, "no group");
  return group.unread ? [`${groupName(group.name)}: ${number(group.unread)}`, row.groupCount > 1 && h("span", { class: "note" }, ` of ${number(row.groupCount)} groups`)] : h("span", { class: "note" }, "all read");
}

/** For how long something has been due to one of its groups: to the one that waits longest. */
function dueFor(row) {
  const waits = row.groups.map((group) => group.timeLagSeconds).filter((seconds) => seconds !== null);
  return waits.length ? duration(Math.max(...waits)) : "–";
}

const WORST_FIRST = ["parked", "retry_pause", "exhausted", "paused", "limited", "leased", "delayed", "window_open", "expired", "backpressure", "filtered", "deliverable"];

/** What is the matter with a partition, the worst first: each state that one of its groups is in. */
export function partitionState(row) {
  const shown = [];
  for (const name of WORST_FIRST) {
    const group = row.groups.find((one) => one.reason === name);
    if (!group) continue;
    const failed = group.attempts ? `, ${number(group.attempts)} failed` : "";
    shown.push(name === "leased" ? lease(group) : reason(group, failed));
  }
  if (row.deadLetters) shown.push(badge("warn", `${number(row.deadLetters)} dead`));
  if (!shown.length) shown.push(row.groups.length ? reason(row.groups[0]) : badge("calm", row.stored ? "No group" : "Empty"));
  return h("span", { class: "badges" }, shown);
}

function clear(name, page) {
  ask({
    title: `Clear ${name}?`,
    text: "Every message of this queue is deleted. Its settings, groups and dead letters stay. This cannot be undone.",
    action: "Delete the messages",
    danger: true,
    typed: name,
    act: async () => {
      const answer = await remove(path`/api/v1/queues/${name}/clear`);
      return answer.operationId ? answer : `${plural(answer.deleted, "message was", "messages were")} deleted.`;
    },
    done: page.reload,
  });
}

function drop(name) {
  ask({
    title: `Delete ${name}?`,
    text: "The queue is deleted with its messages, groups, dead letters and traces. This cannot be undone.",
    action: "Delete the queue",
    danger: true,
    typed: name,
    act: async () => {
      const answer = await remove(path`/api/v1/resources/queues/${name}`);
      return answer.operationId ? answer : "The queue was deleted.";
    },
    next: () => "#/queues",
  });
}
