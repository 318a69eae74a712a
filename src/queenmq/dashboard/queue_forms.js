// Dialogs that make a queue, change its settings and push a message to it.

import { get, path, post } from "./api.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { ask, input, to } from "./ui.js";

// The options of configure: name, label, and what kind of value it is; `ttl` is the only one that can be absent.
const OPTIONS = [
  ["leaseTime", "Lease, in seconds", "number"],
  ["retryLimit", "Retries of a message that fails", "number"],
  ["retryDelay", "Pause before a retry, in ms", "number"],
  ["maxSize", "Size limit, in messages (0: none)", "number"],
  ["priority", "Priority", "number"],
  ["delayedProcessing", "Deliver so many seconds after the push", "number"],
  ["windowBuffer", "Gather until nothing came for so many seconds", "number"],
  ["ttl", "Do not deliver after so many seconds (empty: always)", "optional"],
  ["maxWaitTimeSeconds", "Evict what is unfinished after so many seconds (0: never)", "number"],
  ["retentionEnabled", "Delete messages by age", "flag"],
  ["retentionSeconds", "… all after so many seconds (0: never)", "number"],
  ["completedRetentionSeconds", "… finished ones after so many seconds (0: never)", "number"],
  ["archiveBeforeDelete", "Delete only what is archived", "flag"],
  ["deadLetterQueue", "What expires becomes a dead letter", "flag"],
  ["dlqAfterMaxRetries", "A lease that expires counts as a failure", "flag"],
  ["setAsideFailedPushes", "Set accepted pushes aside that fail", "flag"],
  ["encryptionEnabled", "Encrypt payloads", "flag"],
  ["popWaitBaseIntervalMs", "Probe long polls first after so many ms (empty: as the server does)", "optional"],
  ["popWaitMaxIntervalMs", "… at the latest every so many ms", "optional"],
  ["popWaitBackoffThreshold", "… less often after so many empty probes", "optional"],
  ["popWaitBackoffMultiplier", "… by this factor", "optional"],
];

/** Fields for the settings; without `options` an empty field stands for the default. */
function settingFields(options) {
  return h(
    "div",
    { class: "settings" },
    OPTIONS.map(([name, label, kind]) =>
      kind === "flag"
        ? h("label", { class: "flag" }, h("input", { type: "checkbox", name, checked: options?.[name] === true }), h("span", {}, label))
        : input(name, label, { type: "number", step: name === "popWaitBackoffMultiplier" ? "any" : 1, value: options?.[name] ?? "", placeholder: options ? undefined : "default" }),
    ),
  );
}

/** What of the settings differs from `options`; of a new queue, what is given. */
function givenSettings(form, options) {
  const given = {};
  for (const [name, label, kind] of OPTIONS) {
    const text = form.get(name);
    if (kind === "flag") {
      if ((text !== null) !== (options?.[name] ?? false)) given[name] = text !== null;
    } else if (text !== "") {
      if (Number(text) !== options?.[name]) given[name] = Number(text);
    } else if (options && options[name] !== null) {
      if (kind !== "optional") throw new Error(`“${label}” needs a number.`);
      given[name] = null;
    }
  }
  return given;
}

export function createQueue() {
  let made;
  ask({
    title: "Create a queue",
    text: "A push makes a queue by itself; create one to give it settings first.",
    action: "Create it",
    fields: [
      input("queue", "Name", { required: true, maxlength: 255, placeholder: "orders" }),
      input("namespace", "Namespace", { maxlength: 255, placeholder: "none" }),
      input("task", "Task", { maxlength: 255, placeholder: "none" }),
      h("details", {}, h("summary", {}, "Settings"), settingFields(null)),
    ],
    act: async (form) => {
      made = form.get("queue");
      if (await exists(made)) throw new Error(`There is a queue ${made} already.`);
      await post("/api/v1/configure", { queue: made, namespace: form.get("namespace"), task: form.get("task"), options: givenSettings(form, null) });
      return `The queue ${made} was created.`;
    },
    next: () => to.queue(made),
  });
}

async function exists(queue) {
  try {
    await get(path`/api/v1/resources/queues/${queue}`, { limit: 1 });
    return true;
  } catch (error) {
    if (error.status === 404) return false;
    throw error;
  }
}

/** Only what was changed is sent, so that what somebody else changes meanwhile stays. */
export function changeSettings(queue, { namespace, task, options }, page) {
  ask({
    title: `Settings of ${queue}`,
    text: "They apply to messages that are stored as well as to new ones.",
    action: "Change them",
    fields: [input("namespace", "Namespace", { maxlength: 255, value: namespace }), input("task", "Task", { maxlength: 255, value: task }), settingFields(options)],
    act: async (form) => {
      const given = givenSettings(form, options);
      const labels = Object.fromEntries([["namespace", namespace], ["task", task]].filter(([name, before]) => form.get(name) !== before).map(([name]) => [name, form.get(name)]));
      if (Object.values(labels).includes("")) throw new Error("A namespace or a task can be changed, but not removed here.");
      const changed = Object.keys(given).length + Object.keys(labels).length;
      if (!changed) throw new Error("Nothing is changed yet.");
      await post("/api/v1/configure", { queue, ...labels, options: given });
      return `${plural(changed, "setting is", "settings are")} changed.`;
    },
    done: page.reload,
  });
}

export function pushMessage(queue, page) {
  ask({
    title: `Push a message to ${queue}`,
    text: "It is a message like any other: every group gets it.",
    action: "Push it",
    fields: [
      input("partition", "Partition", { required: true, maxlength: 255, value: "Default" }),
      input("payload", "Payload, as JSON", { required: true, rows: 6, value: '{"test": true}' }),
      input("transactionId", "transactionId (a message that has it already is not stored again)", { maxlength: 255, placeholder: "made by the server" }),
      input("headers", "Headers, as a JSON object of texts", { placeholder: '{"country": "IT"}' }),
    ],
    act: async (form) => {
      const about = { queue, partition: form.get("partition"), transactionId: form.get("transactionId") || undefined };
      if (form.get("headers")) about.headers = asJson(form.get("headers"), "The headers are");
      asJson(form.get("payload"), "The payload is");
      // The payload goes as it was typed: JavaScript would change large numbers.
      const [result] = await post("/api/v1/push", `{"items":[${JSON.stringify(about).slice(0, -1)},"payload":${form.get("payload")}}]}`);
      return became(result);
    },
    done: page.reload,
  });
}

function asJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} no JSON: ${error.message}`);
  }
}

function became({ status, error, operationId, transactionId }) {
  if (status === "failed") throw new Error(error);
  if (status === "duplicate") return `Message ${transactionId} was there already.`;
  return operationId ? `Message ${transactionId} is accepted, and stored later.` : `Message ${transactionId} is stored.`;
}
