// The search of the top bar: queues, groups and partitions by part of their name, messages by transactionId or header; and suggestions
// while one types.

import { get } from "./api.js";
import { h } from "./dom.js";
import { groupName } from "./format.js";
import { code, empty, heading, link, moment, panel, table, to } from "./ui.js";

const MOST = 20;
const SUGGESTED = 5;
const PAUSE_MS = 200;
const LEAST = 2;

export const search = {
  title: ({ query }) => `Search ${query.q ?? ""}`,
  every: 0,

  async load({ query: { q } }) {
    return q ? get("/api/v1/find", { q, limit: MOST }) : { queues: [], groups: [], partitions: [], messages: [], complete: true };
  },

  view(found, { query: { q } }) {
    const nothing = !found.queues.length && !found.groups.length && !found.partitions.length && !found.messages.length;
    return [
      heading(`Search: ${q ?? ""}`, { note: ["Queues, groups and partitions by part of their name, “queue / partition”, messages by the beginning of their transactionId or by a header, ", code("name:value"), "."] }),
      nothing && empty("Nothing was found.", "Partitions are found by any part of the name if there are few, else by the beginnings of words and numbers in it."),
      found.messages.length > 0 && panel("Messages", {}, table({ label: "Messages", rows: found.messages, key: (row) => `${row.partitionId} ${row.transactionId} ${row.byHeader}`, none: null, columns: [{ name: "Transaction", cell: (row) => link(to.message(row.partitionId, row.transactionId), row.transactionId, { class: "strong" }) }, { name: "Queue", cell: (row) => link(to.queue(row.queue), row.queue) }, { name: "Partition", cell: (row) => link(to.partition(row.queue, row.partition), row.partition) }, { name: "Found by", cell: (row) => (row.byHeader ? "Header" : "transactionId") }, { name: "Pushed", cell: (row) => moment(row.createdAt) }] })),
      !found.complete && h("p", { class: "note" }, "Not every message was examined. ", code("queen db index"), " makes an index with which they are."),
      found.partitions.length > 0 && panel("Partitions", {}, table({ label: "Partitions", rows: found.partitions, key: (row) => row.id, none: null, columns: [{ name: "Partition", cell: (row) => link(to.partition(row.queue, row.name), row.name, { class: "strong" }) }, { name: "Queue", cell: (row) => link(to.queue(row.queue), row.queue) }] })),
      found.queues.length > 0 && panel("Queues", {}, table({ label: "Queues", rows: found.queues, key: (row) => row.name, none: null, columns: [{ name: "Queue", cell: (row) => link(to.queue(row.name), row.name, { class: "strong" }) }, { name: "Namespace", cell: (row) => row.namespace || "–" }] })),
      found.groups.length > 0 && panel("Groups", {}, table({ label: "Groups", rows: found.groups, key: (row) => `${row.name} ${row.queue}`, none: null, columns: [{ name: "Group", cell: (row) => link(to.group(row.name, row.queue), groupName(row.name), { class: "strong" }) }, { name: "Queue", cell: (row) => link(to.queue(row.queue), row.queue) }] })),
    ];
  },
};

/** What is suggested below the field, and what to do with the keyboard there. `redraw` shows it. */
export const suggestions = {
  rows: [],
  turn: 0,
  timer: 0,

  ask(text, redraw) {
    clearTimeout(this.timer);
    this.turn += 1;
    const mine = this.turn;
    if (text.length < LEAST) return this.close(redraw);
    this.timer = setTimeout(async () => {
      try {
        const found = await get("/api/v1/find", { q: text, limit: SUGGESTED });
        if (mine !== this.turn) return;
        this.rows = [
          ...found.queues.map((one) => ["Queue", one.name, to.queue(one.name)]),
          ...found.partitions.map((one) => ["Partition", `${one.queue} / ${one.name}`, to.partition(one.queue, one.name)]),
          ...found.groups.map((one) => ["Group", `${groupName(one.name)} in ${one.queue}`, to.group(one.name, one.queue)]),
          ...found.messages.map((one) => ["Message", `${one.transactionId} in ${one.queue} / ${one.partition}`, to.message(one.partitionId, one.transactionId)]),
        ];
      } catch {
        this.rows = []; // the page itself says what is wrong with the server
      }
      redraw();
    }, PAUSE_MS);
  },

  close(redraw) {
    clearTimeout(this.timer);
    this.turn += 1;
    if (!this.rows.length) return;
    this.rows = [];
    redraw();
  },

  view(redraw) {
    if (!this.rows.length) return null;
    return h("nav", { class: "suggestions", "aria-label": "Suggestions" }, this.rows.map(([kind, text, href]) => h("a", { href, onclick: () => this.close(redraw) }, h("span", { class: "note" }, kind), h("span", {}, text))));
  },

  /** Up and down move through the field and what is below it. */
  key(event, form, redraw) {
    if (event.key === "Escape") return this.close(redraw);
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const places = [form.querySelector("input"), ...form.querySelectorAll(".suggestions a")];
    const next = places.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    if (places[next]) {
      event.preventDefault();
      places[next].focus();
    }
  },
};
