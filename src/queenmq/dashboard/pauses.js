// Pauses: what is paused, by whom and since when; making and ending one.

import { may, post } from "./api.js";
import { groupName } from "./format.js";
import { ask, button, input, moment, table } from "./ui.js";

export function pauseTable(rows, page) {
  return table({
    label: "Pauses",
    rows,
    key: (row) => `${row.consumerGroup}/${row.partition}/${row.pausedBy}`,
    columns: [
      { name: "What", cell: (row) => [row.consumerGroup ? groupName(row.consumerGroup) : "All groups", row.partition && `, partition ${row.partition}`] },
      { name: "Since", cell: (row) => moment(row.pausedAt) },
      { name: "By", cell: (row) => row.pausedBy ?? "–" },
      { name: "Reason", cell: (row) => row.reason ?? "–" },
      { name: "Tried at", cell: (row) => moment(row.probeAt) },
      { name: "", cell: (row) => may("read-write") && button("Resume", () => resume(row, page)) },
    ],
  });
}

/** A queue for all groups, or one group of it. */
export function pause(name, page, group) {
  ask({
    title: `Pause ${group ? groupName(group) : name}?`,
    text: `Nothing of ${group ? name : "this queue"} is delivered to ${group ? "this" : "any"} group until it is resumed. Messages that are being processed can be acknowledged.`,
    action: group ? "Pause the group" : "Pause the queue",
    fields: [input("reason", "Reason", { maxlength: 200 })],
    act: async (form) => {
      await post("/api/v1/pause", { queue: name, consumerGroup: group, reason: form.get("reason") || null });
      return `The ${group ? "group" : "queue"} is paused.`;
    },
    done: page.reload,
  });
}

/** One partition for one group. */
export function pausePartition(queue, partition, group, page) {
  ask({
    title: `Pause ${partition} for ${groupName(group)}?`,
    text: `Nothing of this partition of ${queue} is delivered to this group until it is resumed. Messages that are being processed can be acknowledged.`,
    action: "Pause the partition",
    fields: [input("reason", "Reason", { maxlength: 200 })],
    act: async (form) => {
      await post("/api/v1/pause", { queue, consumerGroup: group, partition, reason: form.get("reason") || null });
      return "The partition is paused for this group.";
    },
    done: page.reload,
  });
}

function resume({ queue, consumerGroup, partition }, page) {
  ask({
    title: `Resume ${consumerGroup ? groupName(consumerGroup) : queue}?`,
    text: "Messages are delivered again, unless another pause keeps them back.",
    action: "Resume",
    act: async () => {
      await post("/api/v1/resume", { queue, consumerGroup, partition });
      return "It is resumed.";
    },
    done: page.reload,
  });
}
