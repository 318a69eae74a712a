// Dead letters: what failed too often, and delivering it again.

import { get, may, path, post } from "./api.js";
import { h } from "./dom.js";
import { groupName, number, plural } from "./format.js";
import { erase, redrive } from "./messages.js";
import { ask, button, code, empty, heading, json, link, moment, pager, searchField, to, toolbar } from "./ui.js";

const PAGE = 25;

export const deadLetters = {
  title: () => "Dead letters",
  every: 10000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get("/api/v1/dlq", { queue: query.queue, consumerGroup: query.group, partition: query.partition, limit: PAGE, offset });
    return { rows: answer.messages, total: answer.total, offset };
  },

  view({ rows, total, offset }, { query }, page) {
    const narrowed = query.queue || query.group || query.partition;
    return [
      heading("Dead letters", {
        note: total ? `${plural(total, "message")} failed, newest first. Fix the consumer, then redrive.` : "Messages that fail more often than their queue allows.",
        actions: rows.length > 1 && may("read-write") && redriveMany(rows, total, query, page),
      }),
      toolbar(
        searchField({ label: "Queue", value: query.queue, placeholder: "Every queue", onsearch: (queue) => page.set({ queue, offset: "" }) }),
        searchField({ label: "Group", value: query.group, placeholder: "Every group", onsearch: (group) => page.set({ group, offset: "" }) }),
        searchField({ label: "Partition", value: query.partition, placeholder: "Every partition", onsearch: (partition) => page.set({ partition, offset: "" }) }),
      ),
      rows.length
        ? h("ul", { class: "letters" }, rows.map((row) => letter(row, page)))
        : empty(narrowed ? "No dead letter matches." : "No dead letters.", narrowed ? "Queue, group and partition are matched as a whole." : ["When a consumer answers ", code("failed"), " too often, or ", code("dlq"), ", the message is kept here until you redrive or delete it."]),
      pager({ offset, limit: PAGE, shown: rows.length, more: offset + rows.length < total, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

/** All that match if a queue is named: the server does that in one go. Else those that are shown. */
function redriveMany(rows, total, query, page) {
  if (!query.queue) return button(`Redrive these ${number(rows.length)}`, () => redrive(rows, page.reload), { kind: "primary" });
  return button(`Redrive all ${number(total)}`, () => redriveAll(total, query, page), { kind: "primary" });
}

function redriveAll(total, { queue, group, partition }, page) {
  ask({
    title: `Redrive ${plural(total, "dead letter")} of ${queue}?`,
    text: "They are delivered again, in their order, only to the groups in which they failed, and are no dead letters any more.",
    action: "Deliver again",
    act: async () => {
      const answer = await post("/api/v1/dlq/redrive", { queue, consumerGroup: group, partition });
      return answer.operationId ? answer : `${plural(answer.redriven, "message")} will be delivered again.`;
    },
    done: page.reload,
  });
}

function letter(row, page) {
  const key = path`/api/v1/messages/${row.partitionId}/${row.transactionId}`;
  return h(
    "li",
    { class: "letter", "data-key": `${row.partitionId}/${row.transactionId}/${row.consumerGroup}` },
    h(
      "div",
      { class: "letter-head" },
      h("div", { class: "letter-title" }, link(to.message(row.partitionId, row.transactionId), row.transactionId, { class: "strong" }), h("p", { class: "letter-error" }, row.errorMessage)),
      may("read-write") && h("div", { class: "actions" }, button("Redrive", () => redrive([row], page.reload), { kind: "primary" }), may("admin") && button("Delete", () => erase(key, row, page.reload), { kind: "danger" })),
    ),
    h(
      "p",
      { class: "note" },
      link(to.partition(row.queue, row.partition), `${row.queue} / ${row.partition}`),
      " · group ",
      link(to.group(row.consumerGroup, row.queue), groupName(row.consumerGroup)),
      ` · ${plural(row.retryCount, "retry", "retries")} · failed `,
      moment(row.failedAt),
    ),
    h("details", {}, h("summary", {}, "Payload"), row.undecryptable ? h("p", { class: "note" }, "This server has no key for it.") : json(row.data)),
  );
}
