// Policies of a queue or of one group of it: retries, breaker, limits and fairness, in words and to be changed.

import { post } from "./api.js";
import { h } from "./dom.js";
import { duration, groupName, number, plural, setting } from "./format.js";
import { ask, input } from "./ui.js";

const STRATEGIES = [["", "as the settings of the queue say"], ["fixed", "the same pause each time"], ["exponential", "longer each time"], ["list", "one pause after the other"]];
const POISON = [["", "block: nothing behind it comes before it is settled"], ["skip", "skip: the others go on, it comes back later"], ["park", "park: when it is given up, its partition waits for you"]];
// Of each part: its name, what it is about, and its fields. An empty field is left out, and a part without any is taken back.
const PARTS = [
  ["retry", "When a message fails", [
    ["strategy", "It is tried again after", STRATEGIES],
    ["delayMs", "The (first) pause, in ms"],
    ["factor", "… each so many times as long (longer each time)"],
    ["maxDelayMs", "… at most, in ms"],
    ["delaysMs", "The pauses, in ms (one after the other)", "list"],
    ["jitter", "Part by which a pause may be shorter, 0 to 1"],
    ["limit", "Retries before it is given up"],
    ["poison", "Meanwhile its partition", POISON],
  ]],
  ["breaker", "Pause a group by itself", [["failures", "When more than so many"], ["of", "… of the last so many messages failed"], ["pauseSeconds", "… for so many seconds, then one batch is tried"]]],
  ["limits", "Limits", [["leases", "Leases at once"], ["rate", "Messages a second"], ["burst", "Messages at once after a pause"], ["perKey.leases", "Of each key: leases at once"], ["perKey.rate", "Of each key: messages a second"], ["perKey.burst", "Of each key: messages at once after a pause"]]],
  ["fairness", "Shares", [["separator", "Keys are what names of partitions have before", "text"], ["weights", "Weights of keys, as a JSON object of numbers", "json"]]],
];

/** What is set, each with the group that it is for. */
export function policyFacts(policies) {
  const about = (what, { consumerGroup }) => `${what}${consumerGroup ? ` in ${groupName(consumerGroup)}` : ""}`;
  return [
    ...policies.filter((row) => row.retry || row.breaker).map((row) => [about("Failures", row), retriesInWords(row)]),
    ...policies.filter((row) => row.limits).map((row) => [about("Limits", row), limitsInWords(row.limits)]),
    ...policies.filter((row) => row.fairness).map((row) => ["Fairness", fairnessInWords(row.fairness)]),
  ];
}

function retriesInWords({ retry, breaker }) {
  const { strategy, delayMs, delaysMs, maxDelayMs, limit, poison = "block" } = retry ?? {};
  const wait = strategy && `${(delaysMs ?? [delayMs]).map((ms) => duration(ms / 1000)).join(", ")}${strategy === "exponential" ? ` and longer, up to ${duration((maxDelayMs ?? 3600000) / 1000)}` : ""}`;
  return [retry && poison, wait, limit !== undefined && `limit ${number(limit)}`, breaker && `paused after more than ${number(breaker.failures)} of ${number(breaker.of)}`].filter(Boolean).join("; ");
}

function fairnessInWords({ separator, weights = {} }) {
  const some = Object.entries(weights).slice(0, 20).map(([key, weight]) => `${key} ${setting(weight)}`);
  return [`keys before ${separator} take turns`, some.length > 0 && `weights: ${some.join(", ")}`].filter(Boolean).join("; ");
}

function limitsInWords({ leases, rate, burst, perKey }) {
  const words = [leases && (leases === 1 ? "one lease at once" : `${number(leases)} leases at once`), rate && `${setting(rate)} messages a second`, burst && `${number(burst)} at once`];
  return [...words, perKey && `for each key ${limitsInWords(perKey)}`].filter(Boolean).join("; ");
}

/** Of a queue, or of one group of it. Only parts that were changed are sent, so that what somebody else sets meanwhile stays. */
export function changePolicies(queue, group, policies, page) {
  const before = policies.find((row) => (row.consumerGroup ?? null) === group) ?? {};
  const parts = PARTS.filter(([part]) => part !== "fairness" || !group);
  ask({
    title: `Policies of ${group ? groupName(group) : queue}`,
    text: group ? `For this group in ${queue}. What is left empty goes by what the queue has; of limits, both hold.` : "For each group that has none of its own; limits hold for all groups together.",
    action: "Set them",
    fields: parts.map(([part, what, fields]) => h("details", { open: Boolean(before[part]) }, h("summary", {}, what), h("div", { class: "settings" }, fields.map((field) => fieldOf(part, field, before[part]))))),
    act: async (form) => {
      const given = Object.fromEntries(parts.map(([part, , fields]) => [part, partGiven(form, part, fields)]).filter(([part, now]) => !same(now, before[part] ?? null)));
      const changed = Object.keys(given).length;
      if (!changed) throw new Error("Nothing is changed yet.");
      await post("/api/v1/policies", { queue, consumerGroup: group, ...given });
      return `${plural(changed, "policy is", "policies are")} changed.`;
    },
    done: page.reload,
  });
}

function fieldOf(part, [name, label, kind], given) {
  const value = name.split(".").reduce((inner, step) => inner?.[step], given);
  const full = `${part}.${name}`;
  if (Array.isArray(kind)) return h("label", { class: "field" }, h("span", {}, label), h("select", { name: full }, kind.map(([option, text]) => h("option", { value: option, selected: option === (value ?? "") }, text))));
  if (kind === "list") return input(full, label, { value: value?.join(", ") ?? "", placeholder: "1000, 5000, 60000" });
  if (kind === "json") return input(full, label, { value: value ? JSON.stringify(value) : "", placeholder: '{"acme": 3}' });
  return input(full, label, kind === "text" ? { value: value ?? "", maxlength: 16 } : { type: "number", step: "any", value: value ?? "" });
}

/** What the fields of a part say; null if all are empty. */
function partGiven(form, part, fields) {
  const given = {};
  for (const [name, label, kind] of fields) {
    const text = form.get(`${part}.${name}`);
    if (text.trim() === "") continue;
    const steps = name.split(".");
    const last = steps.pop();
    const inner = steps.reduce((outer, step) => (outer[step] ??= {}), given);
    inner[last] = Array.isArray(kind) || kind === "text" ? text : kind === "list" ? text.split(",").map(Number) : kind === "json" ? asJson(text, label) : Number(text);
  }
  return Object.keys(given).length ? given : null;
}

function asJson(text, label) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`“${label}” is no JSON: ${error.message}`);
  }
}

/** Whatever the order of their members. */
function same(one, other) {
  if (one === null || other === null || typeof one !== "object" || typeof other !== "object") return one === other;
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return [...names].every((name) => name in one && name in other && same(one[name], other[name]));
}
