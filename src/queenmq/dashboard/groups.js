// Consumer groups: how far behind they are, and moving them.

import { get, may, path, post, remove } from "./api.js";
import { h } from "./dom.js";
import { duration, groupName, number, plural, rate } from "./format.js";
import { pause, pauseTable } from "./pauses.js";
import { changePolicies, policyFacts } from "./policies.js";
import { groupState, groupTable } from "./queues.js";
import { ask, button, choice, code, consumer, empty, explanation, facts, heading, input, lagBar, link, moment, pager, panel, reason, searchField, table, tile, tiles, to, toolbar } from "./ui.js";

const PAGE = 50;
const SHOWN = 100;
const READING_MS = 120000;
const WEEK_S = 604800;

export const groups = {
  title: () => "Consumer groups",
  every: 5000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const rows = await get("/api/v1/consumer-groups", { search: query.search, sort: query.sort, only: query.only, limit: PAGE + 1, offset });
    return { rows: rows.slice(0, PAGE), more: rows.length > PAGE, offset };
  },

  view({ rows, more, offset }, { query }, page) {
    return [
      heading("Consumer groups", { note: "One line for each queue that a group reads. Each group reads every message at its own pace." }),
      toolbar(
        searchField({ label: "Search groups", value: query.search, placeholder: "Part of the name", onsearch: (search) => page.set({ search, offset: "" }) }),
        choice({ label: "Show", value: query.only, options: [["", "all"], ["behind", "behind"], ["due", "with messages due"], ["unread", "with unread messages"], ["leased", "leased"], ["failing", "with failing heads"], ["dead_letters", "with dead letters"]], onchoose: (only) => page.set({ only, offset: "" }) }),
        choice({ label: "First", value: query.sort, options: [["", "by name"], ["lag", "due longest"], ["unread", "most unread"], ["leased", "most leases"], ["failing", "failing heads"], ["dead_letters", "most dead letters"]], onchoose: (sort) => page.set({ sort, offset: "" }) }),
      ),
      rows.length || !(query.search || query.only) ? groupTable(rows) : empty("No group matches."),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

export const group = {
  title: ({ params }) => groupName(params[0]),
  every: 5000,

  async load({ params: [name], query }) {
    const [standing, listed] = await Promise.all([get(path`/api/v1/consumer-groups/${name}`, { limit: SHOWN }), get("/api/v1/consumer-groups", { search: name, limit: 1000 })]);
    const entries = listed.filter((row) => row.name === name);
    const chosen = query.queue ?? entries[0]?.queueName;
    const lives = entries.some((row) => row.queueName === chosen && row.standing !== "Queue is gone");
    const [told, filter, conflation, reading, paused, policies] = chosen
      ? await Promise.all([
          get(path`/api/v1/explain/${chosen}`, { consumerGroup: name }),
          lives ? get(path`/api/v1/consumer-groups/${name}/queues/${chosen}/filter`) : null,
          lives ? get(path`/api/v1/consumer-groups/${name}/queues/${chosen}/conflation`) : null,
          lives ? get(path`/api/v1/queues/${chosen}/consumers`, { consumerGroup: name, limit: SHOWN, withinSeconds: WEEK_S }) : null,
          lives ? get("/api/v1/pauses", { queue: chosen }) : null,
          lives ? get("/api/v1/policies", { queue: chosen }) : null,
        ])
      : [null, null, null, null, null, null];
    const pauses = (paused?.pauses ?? []).filter((one) => !one.consumerGroup || one.consumerGroup === name);
    const known = reading?.consumers ?? [];
    const consumers = known.filter((one) => Date.now() - Date.parse(one.lastPopAt) < READING_MS || one.leases);
    return { standing, entries, chosen, told, filter, conflation, consumers, last: known[0], pauses, policies: policies && policies.policies.filter((row) => row.consumerGroup === name) };
  },

  view({ standing, entries, chosen, told, filter, conflation, consumers, last, pauses, policies }, { params: [name] }, page) {
    const crumbs = [["Consumer groups", "#/groups"]];
    const entry = entries.find((row) => row.queueName === chosen);
    if (!entry) {
      return [heading(groupName(name), { kind: "Group", crumbs }), empty("There is no such group.", "A group begins with its first pop: ", code(`GET /api/v1/pop/queue/…?consumerGroup=${name}`))];
    }
    const partitions = standing[chosen]?.partitions ?? [];
    const most = Math.max(1, ...partitions.map((row) => row.unread));
    return [
      heading(groupName(name), {
        kind: "Group",
        crumbs,
        note: [`in queue `, link(to.queue(chosen), chosen)],
        actions: [
          may("read-write") && button("Pause", () => pause(chosen, page, name)),
          may("read-write") && button("Skip to the end", () => seekDialog({ group: name, queue: chosen, done: page.reload, end: true })),
          may("read-write") && button("Rewind or skip", () => seekDialog({ group: name, queue: chosen, done: page.reload }), { kind: "primary" }),
          may("read-write") && filter && groupName(name) === name && button("Which messages", () => choose({ group: name, queue: chosen, filter, conflation }, page)),
          may("read-write") && policies && button("Policies", () => changePolicies(chosen, name, policies, page)),
          may("admin") && button("Forget", () => forget(name, chosen), { kind: "danger" }),
        ],
      }),
      entries.length > 1 && h("p", { class: "chips" }, h("span", { class: "note" }, "Reads "), entries.slice(0, 30).map((row) => button(row.queueName, () => page.set({ queue: row.queueName }), { kind: row.queueName === chosen ? "chip chosen" : "chip" }))),
      tiles(
        tile("State", groupState(entry)),
        tile("Unread", number(entry.unread ?? 0), { note: "not finished" }),
        tile("Due", number(entry.totalLag ?? 0), { note: `in ${plural(entry.partitionsWithLag, "partition")}` }),
        tile("Due for", entry.totalLag ? duration(entry.maxTimeLag) : "–", { tone: entry.state === "Lagging" ? "warn" : "" }),
        tile("Finished a second", rate(entry.finishedPerSecond), { note: "in the last half minute or more" }),
        tile("Leases", number(entry.members)),
        tile("Started", entry.subscriptionMode ?? "all", { note: entry.subscriptionTimestamp ? moment(entry.subscriptionTimestamp) : "from the first message" }),
      ),
      filter?.filter && panel("Filter", { note: `${plural(filter.passedOver, "message")} passed over` }, h("p", {}, "The group gets only what fits ", code(filter.filter), filter.setBy ? ` (set by ${filter.setBy})` : "", ".")),
      pauses.length > 0 && panel("Paused", { note: "Not delivered until it is resumed" }, pauseTable(pauses, page)),
      policies?.length > 0 && panel("Policies", { note: "Those of this group; the rest is the queue's" }, facts(...policyFacts(policies.map((row) => ({ ...row, consumerGroup: null }))))),
      conflation?.enabled && panel("Conflation", { note: `${plural(conflation.passedOver, "message")} passed over` }, h("p", {}, "The group gets only the newest message of each partition", conflation.setBy ? ` (set by ${conflation.setBy})` : "", ".")),
      panel("Why is nothing delivered?", { note: "The partition that comes next" }, explanation(told)),
      panel(
        "Consumers",
        { note: "Who has popped in the last two minutes, or holds a lease" },
        table({
          label: "Consumers of this group",
          rows: consumers,
          key: (row) => `${row.name} ${row.host} ${row.process} ${row.address} ${row.subject}`,
          none: empty("Nobody reads.", "No consumer of the group has popped from this queue in the last two minutes.", last && [" The last was ", consumer(last), ", ", moment(last.lastPopAt), "."]),
          columns: [
            { name: "Consumer", cell: (row) => consumer(row) },
            { name: "Address", cell: (row) => row.address ?? "–" },
            { name: "Reads since", cell: (row) => moment(row.since) },
            { name: "Last pop", cell: (row) => moment(row.lastPopAt) },
            { name: "Leases", num: true, cell: (row) => number(row.leases) },
            { name: "Oldest lease", cell: (row) => moment(row.oldestLeaseAt) },
            { name: "Partitions", wide: true, cell: (row) => row.partitions.map((name, index) => [index > 0 && ", ", link(to.partition(chosen, name), name)]) },
          ],
        }),
      ),
      panel(
        "Partitions",
        { note: `Those first that have waited longest; ${number(SHOWN)} at most` },
        table({
          label: "Partitions of this group",
          rows: partitions,
          key: (row) => row.partition,
          none: empty("The group has no position in any partition yet."),
          columns: [
            { name: "Partition", cell: (row) => link(to.partition(chosen, row.partition), row.partition, { class: "strong" }) },
            { name: "State", cell: (row) => [reason(row), !row.started && h("span", { class: "note" }, " not popped yet")] },
            { name: "Unread", num: true, cell: (row) => lagBar(row.unread, most) },
            { name: "Due", num: true, cell: (row) => number(row.offsetLag) },
            { name: "Due for", num: true, cell: (row) => (row.offsetLag ? duration(row.timeLagSeconds) : "–") },
            { name: "Read", num: true, cell: (row) => number(row.totalConsumed) },
            { name: "Last read", cell: (row) => moment(row.lastConsumedAt) },
          ],
        }),
      ),
    ];
  },
};

/** Which messages of a queue a group gets. Only what is changed is sent. */
function choose({ group: name, queue, filter, conflation }, page) {
  const base = path`/api/v1/consumer-groups/${name}/queues/${queue}`;
  ask({
    title: `Which messages ${groupName(name)} gets`,
    text: "It holds from the next pop on. What the group does not get is passed over, counted and never delivered.",
    action: "Change it",
    fields: [
      input("filter", "Only those that fit (empty: all)", { maxlength: 2000, value: filter.filter ?? "", placeholder: "headers.country = 'IT' AND payload.total > 100" }),
      h("label", { class: "flag" }, h("input", { type: "checkbox", name: "newest", checked: conflation.enabled }), h("span", {}, "Only the newest of each partition")),
    ],
    act: async (form) => {
      const text = form.get("filter").trim() || null;
      const newest = form.get("newest") !== null;
      if (text !== filter.filter) await post(`${base}/filter`, { filter: text });
      if (newest !== conflation.enabled) await post(`${base}/conflation`, { enabled: newest });
      return "The group goes by it from its next pop on.";
    },
    done: page.reload,
  });
}

/** Ask where to, unless to the `end`, and move the group in a queue or in one partition of it. */
export function seekDialog({ group: name, queue, partition, done, end = false }) {
  const where = partition ? `partition ${partition} of ${queue}` : `every partition of ${queue}`;
  const base = path`/api/v1/consumer-groups/${name}/queues/${queue}`;
  const effect = h("p", { class: "effect", role: "status" }, "Choose a target; the effect is shown here before you confirm.");
  let turn = 0;
  // Nothing is chosen beforehand, and nothing can be confirmed before the server has said what it would do.
  const foresee = async (target) => {
    turn += 1;
    const mine = turn;
    ready(false);
    effect.textContent = "Checking what the move would do…";
    try {
      const told = await get(`${base}/seek`, { ...target(), partition });
      if (mine !== turn) return;
      effect.textContent = inWords(told);
      ready(told.partitions > 0);
    } catch (error) {
      if (mine === turn) effect.textContent = error.message;
    }
  };
  const chosen = ({ currentTarget: { form } }) => foresee(() => seekBody(new FormData(form)));
  const when = h("input", {
    type: "datetime-local",
    name: "at",
    "aria-label": "Moment",
    value: localNow(),
    onchange: (event) => {
      event.currentTarget.closest("label").querySelector("input").checked = true;
      chosen(event);
    },
  });
  const option = (value, text, hint) => h("label", { class: "option" }, h("input", { type: "radio", name: "to", value, required: true, onchange: chosen }), h("span", {}, h("b", {}, text), hint));
  const ready = ask({
    title: end ? `Skip to the end: ${groupName(name)}` : `Move ${groupName(name)}`,
    text: `In ${where}. Leases that the group holds there end.`,
    ready: false,
    action: end ? "Skip the messages" : "Move the group",
    danger: end,
    fields: [!end && h(
      "fieldset",
      { class: "options" },
      h("legend", {}, "Where to"),
      option("beginning", "To the beginning", " – everything that is stored is read again"),
      option("moment", "To a time", [" – read again what came after ", when]),
      option("end", "To the end", " – skip everything that is unread"),
    ), effect].filter(Boolean),
    act: async (form) => {
      const target = partition ? `${base}${path`/partitions/${partition}`}/seek` : `${base}/seek`;
      const answer = await post(target, end ? { toEnd: true } : seekBody(form));
      if (answer.operationId) return answer;
      return partition ? "The group was moved." : `The group was moved in ${plural(answer.partitionsUpdated, "partition")}.`;
    },
    done,
  });
  if (end) foresee(() => ({ toEnd: true }));
}

function inWords({ partitions, deliveredAgain, skipped, more }) {
  if (!partitions) return "The group has no position there yet: there is nothing to move.";
  const least = more ? "at least " : "";
  const again = deliveredAgain ? `${least}${plural(deliveredAgain, "message")} that the group has finished will be delivered again` : "no finished message will be delivered again";
  const over = skipped ? `${least}${plural(skipped, "unread message")} will be skipped` : "no unread message will be skipped";
  return `In ${more ? "more than " : ""}${plural(partitions, "partition")}: ${again}; ${over}.`;
}

function seekBody(form) {
  if (form.get("to") === "end") return { toEnd: true };
  if (form.get("to") === "beginning") return { timestamp: "1970-01-01T00:00:00Z" };
  const at = new Date(form.get("at"));
  if (Number.isNaN(at.getTime())) throw new Error("Choose a time first.");
  return { timestamp: at.toISOString() };
}

function localNow() {
  const now = new Date(Date.now() - 3600000);
  return new Date(now.getTime() - now.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

function forget(name, queue) {
  ask({
    title: `Delete ${groupName(name)} in ${queue}?`,
    text: "Its positions are deleted. Its next pop starts as a new group, and may read every message again.",
    action: "Delete the group",
    danger: true,
    typed: groupName(name),
    act: async () => {
      const answer = await remove(path`/api/v1/consumer-groups/${name}/queues/${queue}`);
      return answer.operationId ? answer : "The group was deleted.";
    },
    next: () => "#/groups",
  });
}
