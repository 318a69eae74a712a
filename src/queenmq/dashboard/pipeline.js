// The data pipeline: declared pipelines with how they are, and runs of jobs.

import { get, path } from "./api.js";
import { lines } from "./chart.js";
import { h } from "./dom.js";
import { duration, number, rate } from "./format.js";
import { badge, choice, code, empty, facts, heading, json, link, moment, pager, panel, problem, table, tile, tiles, to, toolbar } from "./ui.js";

const PAGE = 25;
const STATES = { running: ["busy", "Running"], finished: ["good", "Finished"], failed: ["bad", "Failed"], lost: ["warn", "Lost"] };
const JOBS = ["archive", "replay", "window", "copy", "analytics", "audit", "backfill"];
const SHOWN = 200;
const CONDITIONS = {
  starting: ["busy", "Starting"],
  running: ["good", "Running"],
  draining: ["busy", "Draining"],
  waiting: ["warn", "Starts again soon"],
  failed: ["bad", "Failed"],
  stopped: ["calm", "Stopped"],
  unsupervised: ["bad", "No supervisor"],
};

export const pipeline = {
  title: () => "Pipelines",
  every: 5000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const [declared, answer] = await Promise.all([get("/api/v1/pipelines", { limit: SHOWN }), runs({ job: query.job, limit: PAGE + 1, offset })]);
    return { declared: declared.pipelines, rows: answer.runs.slice(0, PAGE), more: answer.runs.length > PAGE, offset };
  },

  view({ declared, rows, more, offset }, { query }, page) {
    return [
      heading("Pipelines", { note: ["Declared with ", code("queen pipeline apply"), " and kept running by ", code("queen pipeline run"), "."] }),
      table({
        label: "Declared pipelines",
        rows: declared,
        key: (row) => row.name,
        none: empty("No pipeline is declared.", "docs/how-to/pipelines-as-services.md says how."),
        columns: [
          { name: "Pipeline", cell: (row) => link(to.pipeline(row.name), row.name) },
          { name: "Kind", cell: (row) => row.kind },
          { name: "State", cell: (row) => badge(...CONDITIONS[row.state], row.error ?? undefined) },
          { name: "Lag", num: true, cell: (row) => number(row.lag) },
          { name: "Behind", num: true, cell: (row) => duration(row.lagSeconds) },
          { name: "A second", num: true, cell: (row) => rate(row.messagesPerSecond) },
          { name: "Last batch", num: true, cell: (row) => duration(row.lastBatch?.seconds) },
          { name: "Starts", num: true, cell: (row) => number(row.starts) },
        ],
      }),
      panel(
        "Runs of jobs",
        { note: "What the jobs of the data pipeline did, newest first." },
        toolbar(choice({ label: "Job", value: query.job, options: [["", "Every job"], ...JOBS.map((job) => [job, job])], onchoose: (job) => page.set({ job, offset: "" }) })),
        rows.length ? h("ul", { class: "letters" }, rows.map(run)) : empty("No run yet.", "Start one with ", code("queen pipeline archive --queue orders --lake /var/lib/queen/lake"), "; docs/pipeline.md has them all."),
        pager({ offset, limit: PAGE, shown: rows.length, more, go: (next) => page.set({ offset: next || "" }) }),
      ),
    ];
  },
};

/** A token that is restricted to some queues sees its pipelines, and no runs. */
async function runs(which) {
  try {
    return await get("/api/v1/pipeline/runs", which);
  } catch (refused) {
    if (refused.status !== 403) throw refused;
    return { runs: [] };
  }
}

export const declared = {
  title: ({ params }) => params[0],
  every: 5000,

  load({ params: [name] }) {
    return get(path`/api/v1/pipelines/${name}`);
  },

  view({ pipeline: row, declaration, batches, versions }) {
    const points = batches.map((batch) => ({ at: Date.parse(batch.endedAt), seconds: batch.seconds, rows: batch.rows })).reverse();
    const queues = (names) => names.flatMap((name, index) => [index ? ", " : "", link(to.queue(name), name)]);
    return [
      heading(row.name, { kind: "Pipeline", crumbs: [["Pipelines", "#/pipeline"]], note: [badge(...CONDITIONS[row.state]), ` ${row.kind}, version ${row.runningVersion ?? row.version}`] }),
      row.error && row.state !== "running" && problem(row.error, moment(row.errorAt)),
      tiles(
        tile("Lag", number(row.lag), { note: "messages that are stored and not done" }),
        tile("Behind", duration(row.lagSeconds)),
        tile("A second", rate(row.messagesPerSecond), { note: "messages, over the last minute" }),
        tile("Messages", number(row.rows)),
      ),
      panel("Batches", { note: "Seconds that each of the newest batches took" }, lines({ points, series: [{ key: "seconds", name: "seconds", tone: "one" }], format: duration, what: "Duration of the newest batches", empty: "No batch has ended yet." })),
      panel(
        "How it runs",
        {},
        facts(
          ["Reads", row.reads ? queues(row.reads) : "every queue"],
          ["Writes", row.writes.length ? queues(row.writes) : "–"],
          ["Supervisor", row.supervisor ? code(row.supervisor) : "–"],
          ["Started", moment(row.startedAt)],
          ["Starts", number(row.starts)],
          ["Failed in a row", number(row.failures)],
          ["Starts again", moment(row.nextStartAt, { absolute: true })],
          row.error && ["Last error", [row.error, ", ", moment(row.errorAt)]],
        ),
      ),
      panel("Declaration", {}, json(declaration)),
      panel("Versions", {}, h("ul", { class: "letters" }, versions.map((one) => h("li", { class: "letter", "data-key": one.version }, h("details", {}, h("summary", {}, `Version ${one.version}, applied `, moment(one.appliedAt, { absolute: true })), json(one.declaration)))))),
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
