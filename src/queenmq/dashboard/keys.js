// Values under keys of a namespace, and who holds a lock. Nothing lists namespaces or locks: they are looked up by name.

import { may, post } from "./api.js";
import { number } from "./format.js";
import { badge, code, empty, heading, link, moment, panel, preview, searchField, table, toolbar } from "./ui.js";

const PAGE = 100;

export const keys = {
  title: () => "Keys and locks",
  every: 10000,

  async load({ query }) {
    const [found, held] = await Promise.all([
      query.namespace && may("read-write") ? first("/api/v1/kv", { op: "getPrefix", ns: query.namespace, prefix: query.prefix ?? "", after: query.after ?? "", limit: PAGE }) : null,
      query.lock && may("read-write") ? first("/api/v1/locks", { op: "get", name: query.lock }) : null,
    ]);
    return { found, held };
  },

  view({ found, held }, { query }, page) {
    if (!may("read-write")) return [heading("Keys and locks"), empty("Your token may not ask for them.", "Keys and locks are read with the role read-write.")];
    return [
      heading("Keys and locks", { note: "What applications keep beside their queues. Namespaces and locks are matched as a whole." }),
      panel(
        "Keys",
        {},
        toolbar(
          searchField({ label: "Namespace", value: query.namespace, placeholder: "orders", onsearch: (namespace) => page.set({ namespace, after: "" }) }),
          searchField({ label: "Key begins with", value: query.prefix, placeholder: "Every key", onsearch: (prefix) => page.set({ prefix, after: "" }) }),
        ),
        found ? keyTable(found, query) : empty("Name a namespace to see its keys.", "An application stores one with ", code("queen.kv")),
      ),
      panel("Lock", {}, toolbar(searchField({ label: "Lock", value: query.lock, placeholder: "nightly-report", onsearch: (lock) => page.set({ lock }) })), held ? holderTable(held.holders) : empty("Name a lock to see who holds it.")),
    ];
  },
};

async function first(where, operation) {
  return (await post(where, { operations: [operation] })).results[0];
}

function keyTable({ rows, truncated, nextAfter }, query) {
  const more = new URLSearchParams({ ...query, after: nextAfter ?? "" });
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
    truncated && link(`#/keys?${more}`, "The next ones", { class: "button" }),
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
