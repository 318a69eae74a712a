// Runs of the data pipeline.

import { get } from "./api.js";
import { h } from "./dom.js";
import { duration, number } from "./format.js";
import { badge, choice, code, empty, facts, heading, json, link, moment, pager, to, toolbar } from "./ui.js";

const PAGE = 25;
const STATES = { running: ["busy", "Running"], finished: ["good", "Finished"], failed: ["bad", "Failed"], lost: ["warn", "Lost"] };
const JOBS = ["archive", "replay", "window", "analytics", "audit", "backfill"];

export const pipeline = {
  title: () => "Pipeline runs",
  every: 5000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const answer = await get("/api/v1/pipeline/runs", { job: query.job, limit: PAGE + 1, offset });
    return { rows: answer.runs.slice(0, PAGE), more: answer.runs.length > PAGE, offset };
  },

  view({ rows, more, offset }, { query }, page) {
    return [
      heading("Pipeline runs", { note: "What the jobs of the data pipeline did, newest first." }),
      toolbar(choice({ label: "Job", value: query.job, options: [["", "Every job"], ...JOBS.map((job) => [job, job])], onchoose: (job) => page.set({ job, offset: "" }) })),
      rows.length ? h("ul", { class: "letters" }, rows.map(run)) : empty("No run yet.", "Start one with ", code("queen pipeline archive --queue orders --lake /var/lib/queen/lake"), "; docs/pipeline.md has them all."),
      pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
    ];
  },
};

function run(row) {
  const seconds = (Date.parse(row.endedAt ?? row.seenAt) - Date.parse(row.startedAt)) / 1000;
  return h(
    "li",
    { class: "letter", "data-key": row.id },
    h("div", { class: "letter-head" }, h("div", { class: "letter-title" }, h("span", { class: "strong" }, row.job), row.error && h("p", { class: "letter-error" }, row.error)), badge(...STATES[row.state], row.state === "lost" ? "It has not reported for five minutes" : undefined)),
    facts(
      ["Queue", row.queue ? link(to.queue(row.queue), row.queue) : "–"],
      ["Rows", number(row.rows)],
      ["Took", duration(seconds)],
      ["A second", seconds > 0 ? number(row.rows / seconds) : "–"],
      ["Started", moment(row.startedAt, { absolute: true })],
      ["Spark", code(row.master)],
    ),
    h("details", {}, h("summary", {}, "Options and findings"), h("div", { class: "columns" }, json(row.options), json({ offsets: row.offsets, summary: row.summary }))),
  );
}
