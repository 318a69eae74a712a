// One partition: its head, where each group stands and why, its newest messages.

import { get, may, path, post, remove } from "./api.js";
import { h } from "./dom.js";
import { compact, groupName, number, plural } from "./format.js";
import { seekDialog } from "./groups.js";
import { messageTable } from "./messages.js";
import { pausePartition } from "./pauses.js";
import { ask, attempt, badge, button, consumer, empty, explanation, heading, lease, link, moment, panel, problem, reason, table, tile, tiles, to } from "./ui.js";

const MOST_EXPLAINED = 6;
const YEAR_MS = 364 * 86400000;

export const partition = {
  title: ({ params }) => `${params[0]} / ${params[1]}`,
  every: 5000,

  async load({ params: [queue, name], query }) {
    const [heads, listed] = await Promise.all([
      get(path`/api/v1/resources/queues/${queue}/partitions`, { partition: name }),
      get("/api/v1/messages", { queue, partition: name, limit: 20, from: new Date(Date.now() - YEAR_MS).toISOString() }),
    ]);
    const [head] = heads.partitions;
    if (!head) return { head: null };
    const asked = query.group ? [query.group] : head.groups.slice(0, MOST_EXPLAINED).map((group) => group.name);
    const told = await Promise.all(asked.map((consumerGroup) => get(path`/api/v1/explain/${queue}`, { partition: name, consumerGroup })));
    if (!asked.length) told.push(await get(path`/api/v1/explain/${queue}`, { partition: name }));
    return { head, told, messages: listed.messages };
  },

  view({ head, told, messages }, { params: [queue, name], query }, page) {
    const crumbs = [["Queues", "#/queues"], [queue, to.queue(queue)]];
    if (!head) return [heading(name, { kind: "Partition", crumbs }), problem(`Queue ${queue} has no partition ${name}. Check the name, or push a message to create it.`)];
    return [
      heading(name, {
        kind: "Partition",
        crumbs,
        actions: [link(to.messages(queue, name), "Messages", { class: "button" }), may("admin") && button("Clear", () => clear(queue, name, page), { kind: "danger" })],
      }),
      tiles(
        tile("Stored", compact(head.stored)),
        tile("First offset", head.stored ? number(head.firstOffset) : "–", { note: head.oldestMessageAt && moment(head.oldestMessageAt) }),
        tile("Head", number(head.lastOffset), { note: head.lastMessageAt ? moment(head.lastMessageAt) : "nothing stored" }),
        tile("Groups", number(head.groupCount)),
        tile("Dead letters", number(head.deadLetters), { tone: head.deadLetters ? "warn" : "", href: to.deadLetters(queue) }),
      ),
      panel("Why is nothing delivered?", { note: query.group ? "Now" : "For each group, now", actions: query.group && button("Every group", () => page.set({ group: "" })) }, h("div", { class: "explanations" }, told.map((one) => explanation(one, ...remedies(one, queue, name, head, page))))),
      panel(
        "Groups",
        {},
        table({
          label: "Groups of this partition",
          rows: head.groups,
          key: (row) => row.name,
          none: empty("No group has read this partition.", "A group gets a position with its first pop."),
          columns: [
            { name: "Group", cell: (row) => link(to.group(row.name, queue), groupName(row.name), { class: "strong" }) },
            { name: "Read up to", num: true, cell: (row) => number(row.position) },
            { name: "State", cell: (row) => [lease(row) ?? reason(row), row.leaseId && h("p", { class: "note" }, "held by ", consumer(row.heldBy))] },
            { name: "Unread", num: true, cell: (row) => number(row.unread) },
            { name: "Ready", num: true, cell: (row) => number(row.ready) },
            { name: "Failures", wide: true, cell: failures },
            { name: "Last read", cell: (row) => moment(row.lastConsumedAt) },
            { name: "", actions: true, cell: (row) => may("read-write") && h("div", { class: "actions" }, row.leaseId && button("Release", () => release(row, page), { title: "End the lease" }), row.reason !== "paused" && button("Pause", () => pausePartition(queue, name, row.name, page)), button("Seek", () => seekDialog({ group: row.name, queue, partition: name, done: page.reload }))) },
          ],
        }),
      ),
      panel("Newest messages", {}, messageTable(messages, empty("No message is stored here."))),
    ];
  },
};

function failures({ attempts, lastAttempt, retryAt }) {
  if (!attempts && !lastAttempt) return "–";
  return [
    attempts > 0 && badge("bad", plural(attempts, "failed attempt")),
    lastAttempt && h("p", { class: "note" }, moment(lastAttempt.endedAt), ": ", attempt(lastAttempt)),
    retryAt && h("p", { class: "note" }, "next try ", moment(retryAt)),
  ];
}

/** What can be done about it from here. */
function remedies(told, queue, name, head, page) {
  const [place] = told.partitions;
  const actions = [];
  if (place?.nextTransactionId && place.unread) actions.push(link(to.message(head.id, place.nextTransactionId), "See the message at the head", { class: "button" }));
  if (place?.leaseId && may("read-write")) actions.push(button("Release the lease", () => release({ name: told.consumerGroup, leaseId: place.leaseId }, page)));
  if (told.reason === "deliverable") actions.push(link(to.group(told.consumerGroup, queue), "See who reads", { class: "button" }));
  if (told.reason === "paused") actions.push(link(to.queue(queue), "See who has paused it", { class: "button" }));
  if (place?.attempts && place.nextTransactionId && may("read-write")) actions.push(button("Put the head to the dead letters", () => bury(head.id, place.nextTransactionId, page)));
  return actions;
}

function release({ name, leaseId }, page) {
  ask({
    title: `Release the lease of ${groupName(name)}?`,
    text: "Do this if its consumer is gone. What was delivered under the lease and is not finished, here and in its other partitions, is delivered again to whoever pops next. If the consumer is still at work, that is done twice, and its acknowledgements are refused.",
    action: "Release the lease",
    danger: true,
    act: async () => {
      const { messages } = await post(path`/api/v1/lease/${leaseId}/finish`, { status: "retry", error: "The lease was released in the dashboard" });
      return `The lease has ended; ${plural(messages, "message")} will be delivered again.`;
    },
    done: page.reload,
  });
}

function bury(partitionId, transactionId, page) {
  ask({
    title: "Make this message a dead letter?",
    text: `Message ${transactionId} becomes a dead letter of every group that has not finished it, and the partition continues. It can be redriven later.`,
    action: "To the dead letters",
    danger: true,
    act: async () => (await post(path`/api/v1/messages/${partitionId}/${transactionId}/dlq`)).message,
    done: page.reload,
  });
}

function clear(queue, name, page) {
  ask({
    title: `Clear partition ${name}?`,
    text: `Every message of this partition of ${queue} is deleted. This cannot be undone.`,
    action: "Delete the messages",
    danger: true,
    typed: name,
    act: async () => {
      const answer = await remove(path`/api/v1/queues/${queue}/clear?partition=${name}`);
      return answer.operationId ? answer : `${plural(answer.deleted, "message was", "messages were")} deleted.`;
    },
    done: page.reload,
  });
}
