// The search of the top bar: queues and groups by part of their name, a message by its ids.

import { get } from "./api.js";
import { number } from "./format.js";
import { groupTable } from "./queues.js";
import { empty, heading, link, panel, table, to } from "./ui.js";

const MOST = 20;

export const search = {
  title: ({ query }) => `Search ${query.q ?? ""}`,
  every: 0,

  async load({ query: { q } }) {
    if (!q) return { queues: [], groups: [], partitions: [] };
    const [queue, partition] = q.split("/", 2).map((part) => part.trim());
    const [listed, groups] = await Promise.all([get("/api/v1/resources/queues", { search: queue, limit: MOST }), get("/api/v1/consumer-groups", { search: q, limit: MOST })]);
    const where = listed.queues.find((one) => one.name === queue) ?? listed.queues[0];
    const heads = partition && where ? (await get(`/api/v1/resources/queues/${encodeURIComponent(where.name)}/partitions`, { search: partition, limit: MOST })).partitions : [];
    return { queues: listed.queues, groups, partitions: heads, where };
  },

  view({ queues, groups, partitions, where }, { query: { q } }) {
    return [
      heading(`Search: ${q ?? ""}`, { note: "Queues and groups by part of their name; “queue / partition” finds partitions." }),
      partitions.length > 0 && panel(`Partitions of ${where.name}`, {}, table({ label: "Partitions", rows: partitions, key: (row) => row.id, none: null, columns: [{ name: "Partition", cell: (row) => link(to.partition(where.name, row.name), row.name, { class: "strong" }) }, { name: "Stored", num: true, cell: (row) => number(row.stored) }] })),
      panel("Queues", {}, table({ label: "Queues", rows: queues, key: (row) => row.id, none: empty("No queue name contains that."), columns: [{ name: "Queue", cell: (row) => link(to.queue(row.name), row.name, { class: "strong" }) }, { name: "Partitions", num: true, cell: (row) => number(row.partitions) }, { name: "Stored", num: true, cell: (row) => number(row.messages.total) }, { name: "Pending", num: true, cell: (row) => number(row.messages.pending) }] })),
      panel("Groups", {}, groups.length ? groupTable(groups) : empty("No group name contains that.")),
    ];
  },
};
