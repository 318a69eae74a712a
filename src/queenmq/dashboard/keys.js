// Namespaces and the values under their keys; locks and who holds them.

import { get, may, post } from "./api.js";
import { number } from "./format.js";
import { badge, code, empty, heading, link, moment, panel, preview, searchField, table, toolbar } from "./ui.js";

const PAGE = 100;

export const keys = {
  title: () => "Keys and locks",
  every: 10000,

  async load({ query }) {
    const [namespaces, locks, found, held] = await Promise.all([
      query.namespace ? null : get("/api/v1/kv", { limit: PAGE, after: query.namespaces }),
      query.lock ? null : get("/api/v1/locks", { limit: PAGE, after: query.locks }),
      query.namespace && may("read-write") ? first("/api/v1/kv", { op: "getPrefix", ns: query.namespace, prefix: query.prefix ?? "", after: query.after ?? "", limit: PAGE }) : null,
      query.lock && may("read-write") ? first("/api/v1/locks", { op: "get", name: query.lock }) : null,
    ]);
    return { namespaces, locks, found, held };
  },

  view({ namespaces, locks, found, held }, { query }, page) {
    const refused = empty("Your token may not read them.", "Values and the holders of a lock are read with the role read-write.");
    return [
      heading("Keys and locks", { note: "What applications keep beside their queues. Namespaces and locks are matched as a whole." }),
      panel(
        "Keys",
        {},
        toolbar(
          searchField({ label: "Namespace", value: query.namespace, placeholder: "orders", onsearch: (namespace) => page.set({ namespace, after: "" }) }),
          searchField({ label: "Key begins with", value: query.prefix, placeholder: "Every key", onsearch: (prefix) => page.set({ prefix, after: "" }) }),
        ),
        namespaces ? namespaceTable(namespaces, query) : found ? keyTable(found, query) : refused,
      ),
      panel(
        "Locks",
        {},
        toolbar(searchField({ label: "Lock", value: query.lock, placeholder: "nightly-report", onsearch: (lock) => page.set({ lock }) })),
        locks ? lockTable(locks, query) : held ? holderTable(held.holders) : refused,
      ),
    ];
  },
};

async function first(where, operation) {
  return (await post(where, { operations: [operation] })).results[0];
}

function to(query, changes) {
  return `#/keys?${new URLSearchParams({ ...query, ...changes })}`;
}

function more(query, name, { nextAfter }) {
  return nextAfter && link(to(query, { [name]: nextAfter }), "The next ones", { class: "button" });
}

function namespaceTable(listed, query) {
  return [
    table({
      label: "Namespaces",
      rows: listed.namespaces,
      key: (row) => row.namespace,
      none: empty("No namespace has keys.", "An application stores one with ", code("queen.keys.put(namespace, key, value, ttl=None)")),
      columns: [
        { name: "Namespace", cell: (row) => link(to(query, { namespace: row.namespace }), row.namespace) },
        { name: "Keys", num: true, cell: (row) => `${number(row.keys)}${row.more ? "+" : ""}` },
      ],
    }),
    more(query, "namespaces", listed),
  ];
}

function lockTable(listed, query) {
  return [
    table({
      label: "Held locks",
      rows: listed.locks.flatMap(({ name, holders }) => holders.map((holder) => ({ name, ...holder }))),
      key: (row) => `${row.name} ${row.slot}`,
      none: empty("Nobody holds a lock.", "An application takes one with ", code("queen.keys.acquire(name, ttl=30, owner=me)")),
      columns: [
        { name: "Lock", cell: (row) => link(to(query, { lock: row.name }), row.name) },
        { name: "Holder", cell: (row) => row.owner ?? badge("warn", "Unknown") },
        { name: "Permit", num: true, cell: (row) => number(row.slot) },
        { name: "Held since", cell: (row) => moment(row.since) },
        { name: "Ends", cell: (row) => moment(row.expiresAt) },
      ],
    }),
    more(query, "locks", listed),
  ];
}

function keyTable({ rows, truncated, nextAfter }, query) {
  return [
    table({
      label: "Keys",
      rows,
      key: (row) => row.key,
      none: empty("No key matches."),
      columns: [
        { name: "Key", cell: (row) => code(row.key) },
        { name: "Value", wide: true, cell: (row) => (row.value === undefined ? "left out" : preview(row.value)) },
        { name: "Version", num: true, cell: (row) => number(row.version) },
        { name: "Changed", cell: (row) => moment(row.updatedAt) },
        { name: "Ends", cell: (row) => (row.expiresAt ? moment(row.expiresAt) : "never") },
      ],
    }),
    truncated && more(query, "after", { nextAfter }),
  ];
}

function holderTable(holders) {
  return table({
    label: "Holders",
    rows: holders,
    key: (row) => row.slot,
    none: empty("Nobody holds it.", "A lock exists only while somebody holds it."),
    columns: [
      { name: "Holder", cell: (row) => row.owner ?? badge("warn", "Unknown") },
      { name: "Permit", num: true, cell: (row) => number(row.slot) },
      { name: "Fencing number", num: true, cell: (row) => number(row.token) },
      { name: "Held since", cell: (row) => moment(row.since) },
      { name: "Renewed", cell: (row) => moment(row.renewedAt) },
      { name: "Ends", cell: (row) => moment(row.expiresAt) },
    ],
  });
}
