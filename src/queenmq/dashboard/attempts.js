// The attempts of a message that failed, and in what each differs from the one before it.

import { h } from "./dom.js";
import { NONE, duration, groupName } from "./format.js";
import { attempt, badge, consumer, empty, moment, table } from "./ui.js";

const OUTCOMES = { failed: "Failed", retry: "Handed back", dlq: "Dead letter", expired: "Lease expired" };
const MOST_WORDS = 200; // of an error that are compared
const VARIES = /"[^"]*"|'[^']*'|[0-9a-f]{8,}(-[0-9a-f]+)*|\d+(\.\d+)?/gi;

/** The newest first, as the server has them. */
export function attemptTable(attempts) {
  const before = new Map(attempts.map((row, index) => [row, attempts.slice(index + 1).find((older) => older.consumerGroup === row.consumerGroup)]));
  return table({
    label: "Attempts that failed",
    rows: attempts,
    key: (row) => `${row.consumerGroup} ${row.endedAt}`,
    none: empty("No delivery of this message has failed."),
    columns: [
      { name: "Failed", cell: (row) => moment(row.endedAt) },
      { name: "Group", cell: (row) => groupName(row.consumerGroup) },
      { name: "Error", wide: true, cell: (row) => marked(attempt(row), before.get(row) && attempt(before.get(row))) },
      { name: "Outcome", cell: (row) => badge(row.outcome === "retry" ? "warn" : "bad", OUTCOMES[row.outcome] ?? row.outcome) },
      { name: "Consumer", cell: (row) => consumer(row.consumer) },
      { name: "Took", num: true, cell: (row) => (took(row) === null ? NONE : duration(took(row))) },
      { name: "Other than before", wide: true, cell: (row) => differences(row, before.get(row)) },
    ],
  });
}

function took({ leasedAt, endedAt }) {
  return leasedAt ? Math.max(0, (Date.parse(endedAt) - Date.parse(leasedAt)) / 1000) : null;
}

function differences(row, before) {
  if (!before) return NONE;
  const told = [];
  const [error, earlier] = [attempt(row), attempt(before)];
  if (error !== earlier) told.push(error.replace(VARIES, "#") === earlier.replace(VARIES, "#") ? "details of the error" : "another error");
  if (row.outcome !== before.outcome) told.push(`${(OUTCOMES[before.outcome] ?? before.outcome).toLowerCase()} then`);
  for (const [part, words] of [["name", ""], ["host", "on "], ["process", "process "]]) {
    const then = before.consumer?.[part];
    if (then && row.consumer?.[part] && row.consumer[part] !== then) told.push(`${words}${then} then`);
  }
  const [now, then] = [took(row), took(before)];
  if (now !== null && then !== null && Math.abs(now - then) >= 1 && (now > 2 * then || then > 2 * now)) told.push(`took ${duration(then)} then`);
  return told.length ? told.join("; ") : h("span", { class: "note" }, "nothing");
}

/** The error, with the words marked that the one before has not. */
function marked(error, earlier) {
  const words = error.split(/(\s+)/);
  const others = earlier?.split(/(\s+)/);
  if (!others || error === earlier || words.length > MOST_WORDS || others.length > MOST_WORDS) return error;
  // How many words two rests have in common, in their order.
  const common = Array.from({ length: words.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let i = words.length - 1; i >= 0; i -= 1) {
    for (let j = others.length - 1; j >= 0; j -= 1) common[i][j] = words[i] === others[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  }
  const shown = [];
  let j = 0;
  words.forEach((word, i) => {
    while (j < others.length && words[i] !== others[j] && common[i][j + 1] >= common[i + 1][j]) j += 1;
    const kept = j < others.length && word === others[j];
    if (kept) j += 1;
    shown.push(kept || !word.trim() ? word : h("mark", {}, word));
  });
  return shown;
}
