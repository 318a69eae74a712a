// What pages are made of: badges, tiles, tables, pagers, dialogs.

import { Exact, get, path } from "./api.js";
import { bar } from "./chart.js";
import { foremost, h } from "./dom.js";
import { NONE, ago, date, duration, groupName, number, time } from "./format.js";

export function link(href, text, more = {}) {
  return h("a", { href, ...more }, text);
}

/** Addresses of pages. */
export const to = {
  queue: (queue, group) => path`#/queues/${queue}` + (group ? path`?group=${group}` : ""),
  partition: (queue, partition, group) => path`#/queues/${queue}/partitions/${partition}` + (group ? path`?group=${group}` : ""),
  group: (group, queue) => path`#/groups/${group}` + (queue ? path`?queue=${queue}` : ""),
  message: (partitionId, transactionId) => path`#/messages/${partitionId}/${transactionId}`,
  messages: (queue, partition) => path`#/messages?queue=${queue}` + (partition ? path`&partition=${partition}` : ""),
  deadLetters: (queue, group) => path`#/dead-letters?queue=${queue}` + (group ? path`&group=${group}` : ""),
  partitions: (queue, state) => path`#/queues/${queue}?state=${state}`,
  errors: (fingerprint) => path`#/dead-letters?fingerprint=${fingerprint}`,
  operation: (id) => path`#/operations/${id}`,
  pipeline: (name) => path`#/pipeline/${name}`,
  trace: (name) => path`#/traces/${name}`,
};

/** A state in colour, shape and words. Tones: good, warn, bad, busy, calm. */
export function badge(tone, text, title) {
  return h("span", { class: `badge ${tone}`, title }, h("i", { "aria-hidden": "true" }), text);
}

export function moment(at, { absolute = false } = {}) {
  if (!at) return NONE;
  return h("time", { datetime: at, title: new Date(at).toLocaleString() }, absolute ? date(at) : ago(at));
}

export function code(text) {
  return h("code", {}, text);
}

const MARKED = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z|`[^`]+`|\b(?:GET|POST|PUT|DELETE) \/api\/[^\s,;]+)/;

/** A sentence of the server, in which moments and what one types are elements. */
export function prose(text) {
  return text.split(MARKED).map((part, index) => {
    if (index % 2 === 0) return part;
    if (!/^\d/.test(part)) return code(part.replaceAll("`", ""));
    const at = new Date(part);
    const today = at.toDateString() === new Date().toDateString();
    return h("time", { datetime: part, title: `${at.toLocaleString()}, ${ago(part)}` }, today ? time(part) : date(part));
  });
}

export function tile(label, value, { note, tone, href, extra } = {}) {
  const inside = [h("span", { class: "tile-label" }, label), h("strong", { class: "tile-value" }, value), note && h("span", { class: "tile-note" }, note), extra];
  return href ? h("a", { class: `tile ${tone ?? ""}`, href }, inside) : h("div", { class: `tile ${tone ?? ""}` }, inside);
}

export function tiles(...shown) {
  return h("div", { class: "tiles" }, shown);
}

export function panel(title, { actions, note, id } = {}, ...content) {
  return h(
    "section",
    { class: "panel", id, "aria-label": title },
    h("header", { class: "panel-head" }, h("h2", {}, title), note && h("p", { class: "note" }, note), actions && h("div", { class: "actions" }, actions)),
    content,
  );
}

export function heading(title, { kind, crumbs = [], actions, note } = {}) {
  return h(
    "header",
    { class: "page-head" },
    crumbs.length > 0 && h("nav", { class: "crumbs", "aria-label": "Where you are" }, crumbs.map(([text, href], index) => [index > 0 && h("span", { "aria-hidden": "true" }, " / "), link(href, text)])),
    h("div", { class: "page-title" }, h("h1", {}, kind && h("small", {}, kind), title), actions && h("div", { class: "actions" }, actions)),
    note && h("p", { class: "note" }, note),
  );
}

export function empty(title, ...advice) {
  return h("div", { class: "empty" }, h("strong", {}, title), advice.length > 0 && h("p", {}, advice));
}

export function problem(sentence, ...more) {
  return h("div", { class: "problem", role: "alert" }, badge("bad", "Problem"), h("p", {}, sentence), more);
}

export function button(text, onclick, { kind = "", title, disabled, pressed, type = "button" } = {}) {
  return h("button", { type, class: `button ${kind}`, onclick, title, "aria-pressed": pressed === undefined ? undefined : String(pressed), "aria-label": kind.startsWith("icon") ? title : undefined, disabled }, text);
}

/** Columns are {name, cell, num, wide}; the first one is the title of a row where the table becomes a list. */
export function table({ columns, rows, key, none, label }) {
  if (!rows.length) return none;
  return h(
    "div",
    { class: "table-wrap", role: "region", "aria-label": label, tabindex: "0" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map(({ name, num }) => h("th", { scope: "col", class: num && "num" }, name)))),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h("tr", { "data-key": key(row) }, columns.map(({ name, cell, num, wide, actions }, index) =>
            h("td", { class: [num && "num", wide && "wide", actions && "cell-actions", index === 0 && "first"].filter(Boolean).join(" "), "data-label": name }, h("div", { class: "cell" }, cell(row))),
          )),
        ),
      ),
    ),
  );
}

/** Back and forward through a list whose length nobody counts: there is more if one more came than is shown. */
export function pager({ offset, limit, shown, more, go }) {
  if (!offset && !more) return null;
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    button("Previous", () => go(Math.max(0, offset - limit)), { disabled: offset === 0 }),
    h("span", {}, `${number(offset + 1)}–${number(offset + shown)}`),
    button("Next", () => go(offset + limit), { disabled: !more }),
  );
}

let typing = 0;

/** What is being typed into the search fields of a page is of no interest on the next one. */
export function forgetTyping() {
  clearTimeout(typing);
}

/** A field that searches while one types. */
export function searchField({ value, label, placeholder, onsearch }) {
  return h(
    "label",
    { class: "field search-field" },
    h("span", {}, label),
    h("input", {
      type: "search",
      value: value ?? "",
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => {
        const text = event.currentTarget.value.trim();
        clearTimeout(typing);
        typing = setTimeout(() => onsearch(text), 250);
      },
    }),
  );
}

export function choice({ value, label, options, onchoose }) {
  return h(
    "label",
    { class: "field" },
    h("span", {}, label),
    h("select", { onchange: (event) => onchoose(event.currentTarget.value) }, options.map(([option, text]) => h("option", { value: option, selected: option === (value ?? "") }, text))),
  );
}

export function toolbar(...fields) {
  return h("div", { class: "toolbar", role: "search" }, fields);
}

export function toast(text, tone = "good") {
  const shelf = document.getElementById("toasts");
  const shown = h("div", { class: "toast", role: "status" }, badge(tone, text));
  shelf.append(shown);
  setTimeout(() => shown.remove(), 6000);
}

/** A field of a dialog, with its label. */
export function input(name, label, more = {}) {
  const kind = more.rows ? "textarea" : "input";
  return h("label", { class: "field" }, h("span", {}, label), h(kind, { name, autocomplete: "off", spellcheck: "false", ...more }));
}

/** Show a dialog until it is closed. One that `stays` is about no page: it is still there when another one is shown. */
export function openDialog(dialog, { stays = false } = {}) {
  dialog.toggleAttribute("data-stays", stays);
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Close the dialogs of a page: nobody must confirm what belongs to a page that is not seen any more. Those that are `idle` are those in
 * which nothing has been confirmed yet. Returns how many were closed.
 */
export function closeDialogs({ idle = false } = {}) {
  const closed = [...document.querySelectorAll("dialog[open]")].filter((dialog) => !("stays" in dialog.dataset) && !(idle && "busy" in dialog.dataset));
  for (const dialog of closed) dialog.close();
  return closed.length;
}

/**
 * Ask before something is changed. `act` gets what was typed into `fields` and returns the sentence of success; what it throws is
 * shown in the dialog. An answer with an operationId is followed until it is done. With `ready` false nothing can be confirmed until the
 * function that comes back is called with true; with `typed`, not until that name is typed. `act` may report how far it is, and is told
 * whether it should go on: not if the dialog was closed. `done` comes after success; `next`, the address of a page, only if the person is
 * still where they were asked.
 */
export function ask({ title, text, action, danger = false, fields = [], act, done, next, ready = true, typed }) {
  const says = h("p", { class: "says", role: "alert" });
  const progress = h("div", { class: "progress", hidden: true }, h("progress", { max: 1 }), h("span", {}));
  const confirm = button(action, null, { kind: danger ? "danger" : "primary", type: "submit" });
  const cancel = button("Cancel", () => dialog.close());
  const sure = typed && input("typed", ["Type ", h("b", {}, typed), " to confirm"], { oninput: (event) => (confirm.disabled = event.currentTarget.value !== typed) });
  const form = h("form", { method: "dialog" }, h("h2", {}, title), text && h("p", {}, text), fields, sure, progress, says, h("div", { class: "actions" }, cancel, confirm));
  const dialog = h("dialog", { "aria-label": title }, form);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const asked = location.hash;
    confirm.disabled = true;
    says.textContent = "";
    dialog.toggleAttribute("data-busy", true);
    try {
      const answer = await act(new FormData(form), (share, words) => (report(progress, share, words), dialog.open));
      const sentence = answer?.operationId ? await follow(answer.operationId, progress) : answer;
      dialog.close();
      toast(typeof sentence === "string" ? sentence : "Done.");
      done?.();
      if (next && location.hash === asked) location.hash = next();
    } catch (error) {
      if (!dialog.open) toast(`${title.replace(/\?$/, "")}: ${error.message}`, "bad");
      says.textContent = error.message;
      confirm.disabled = false;
      dialog.toggleAttribute("data-busy", false);
    }
  };
  confirm.disabled = !ready || Boolean(typed);
  openDialog(dialog);
  return (now) => (confirm.disabled = !now);
}

function report(progress, share, words) {
  progress.hidden = false;
  const [meter, text] = progress.children;
  if (share === null) meter.removeAttribute("value");
  else meter.value = share;
  text.textContent = words;
}

async function follow(id, progress) {
  for (;;) {
    const operation = await get(path`/api/v1/operations/${id}`);
    if (operation.status === "completed") return "Done.";
    if (operation.status === "failed") throw new Error(operation.errorMessage || "The operation failed.");
    if (operation.status === "cancelled") throw new Error("The operation was cancelled.");
    const share = shareOf(operation);
    report(progress, share, doneOf(operation));
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

/** The same in words. */
export function doneOf({ progress }) {
  if (!progress) return "Under way…";
  return `${number(progress.done)}${progress.total ? ` of ${number(progress.total)}` : ""} ${progress.unit}`;
}

/** How much of an operation is done, from 0 to 1; null if it does not say. */
export function shareOf(operation) {
  if (operation.status === "completed") return 1;
  const told = operation.progress;
  return told?.total > 0 ? Math.min(1, told.done / told.total) : null;
}

/** A value as JSON, indented and coloured; every part of it is text. */
export function json(value) {
  const out = h("pre", { class: "json", tabindex: "0" });
  write(out, value, "");
  return out;
}

function write(out, value, indent) {
  const inner = `${indent}  `;
  if (value instanceof Exact) out.append(h("span", { class: "j-number" }, value.source));
  else if (Array.isArray(value) && value.length) list(out, "[", value.map((item) => [null, item]), "]", indent, inner);
  else if (value && typeof value === "object" && Object.keys(value).length) list(out, "{", Object.entries(value), "}", indent, inner);
  else if (typeof value === "string") out.append(h("span", { class: "j-string" }, JSON.stringify(value)));
  else if (typeof value === "number") out.append(h("span", { class: "j-number" }, String(value)));
  else out.append(h("span", { class: "j-word" }, JSON.stringify(value) ?? "null"));
}

function list(out, open, entries, close, indent, inner) {
  out.append(`${open}\n`);
  entries.forEach(([name, item], index) => {
    out.append(inner);
    if (name !== null) out.append(h("span", { class: "j-name" }, JSON.stringify(name)), ": ");
    write(out, item, inner);
    out.append(index < entries.length - 1 ? ",\n" : "\n");
  });
  out.append(indent + close);
}

/** The same with a button that copies it. */
export function copyable(value) {
  const shown = json(value);
  return h("div", { class: "copyable" }, button("Copy", () => copy(shown.textContent), { title: "Copy as it is shown" }), shown);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have a clipboard for pages only over HTTPS or on this machine; elsewhere what is selected can be copied.
    const field = h("textarea", { class: "skip", value: text, "aria-hidden": "true" });
    foremost().append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) return toast("The browser does not let this page copy.", "bad");
  }
  return toast("Copied.");
}

/** The beginning of a value as JSON on one line. */
export function preview(value, most = 120) {
  const text = onOneLine(value, most + 1);
  return h("code", { class: "preview" }, text.length > most ? `${text.slice(0, most)}…` : text);
}

function onOneLine(value, room) {
  if (value instanceof Exact) return value.source;
  if (!value || typeof value !== "object") return JSON.stringify(typeof value === "string" ? value.slice(0, room) : value) ?? "null";
  const isList = Array.isArray(value);
  let text = isList ? "[" : "{";
  for (const name in value) {
    if (text.length > room) return text;
    text += (text.length > 1 ? ", " : "") + (isList ? "" : `${JSON.stringify(name)}: `) + onOneLine(value[name], room - text.length);
  }
  return text + (isList ? "]" : "}");
}

export function facts(...pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// The words are the server's (`state`); only the tones are ours.
const TONES = {
  deliverable: "good",
  end_reached: "calm",
  leased: "busy",
  retry_pause: "bad",
  parked: "bad",
  exhausted: "bad",
  expired: "warn",
  delayed: "warn",
  window_open: "warn",
  paused: "bad",
  limited: "warn",
  group_never_started: "warn",
  queue_unknown: "bad",
  partition_unknown: "bad",
  backpressure: "warn",
};

/** What keeps a group from a partition, in a word: of whatever has a `reason` and its `state`. */
export function reason(told, more = "") {
  return badge(told.state === "Failing" ? "bad" : (TONES[told.reason] ?? "warn"), told.state + more);
}

/** Who consumes, as it calls itself; where it comes from, if it does not say. */
export function consumer(one) {
  if (!one) return h("span", { class: "note" }, "unknown consumer");
  const where = [one.host && `on ${one.host}`, one.process && `process ${one.process}`].filter(Boolean).join(", ");
  return h("span", { title: [one.address, one.subject].filter(Boolean).join(", ") || undefined }, h("b", {}, one.name ?? one.address ?? "unknown"), where && ` ${where}`);
}

/** How a delivery failed. */
export function attempt(one) {
  if (one.outcome === "expired") return "The lease ended without a word";
  return one.error ?? `Reported as ${one.outcome}, without an error`;
}

/** The answer to "why is nothing delivered?". */
export function explanation(told, ...actions) {
  return h(
    "div",
    { class: "explanation", "data-key": `${told.queue}/${told.partition}/${told.consumerGroup}` },
    h("div", { class: "explanation-head" }, reason(told), h("span", { class: "note" }, "for ", h("b", {}, groupName(told.consumerGroup))), told.until && h("span", { class: "note" }, "ends by itself ", moment(told.until))),
    h("p", {}, prose(told.explanation)),
    evidence(told),
    told.advice && h("p", { class: "advice" }, h("b", {}, "What to do: "), prose(told.advice)),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  );
}

/** Of one partition: who holds it, and how its head failed last. */
function evidence({ partitions }) {
  const place = partitions?.length === 1 ? partitions[0] : partitions?.find((one) => one.reason !== "end_reached");
  if (!place) return null;
  return [
    place.leaseId && h("p", { class: "evidence" }, "Held by ", consumer(place.heldBy), place.leasedAt && [" since ", moment(place.leasedAt)], "."),
    place.lastAttempt && h("p", { class: "evidence" }, "Last failure ", moment(place.lastAttempt.endedAt), ": ", code(attempt(place.lastAttempt)), " – ", consumer(place.lastAttempt.consumer), "."),
  ];
}

export function lagBar(value, most, tone = "two") {
  return h("span", { class: "with-bar" }, h("span", {}, number(value)), bar(most ? value / most : 0, tone));
}

export function lease(group) {
  return group.leaseId ? badge("busy", `Leased: ${number(group.leased)}, ${group.leaseExpiresAt ? `${duration(Math.max(0, (Date.parse(group.leaseExpiresAt) - Date.now()) / 1000))} left` : ""}`, `Lease ${group.leaseId}`) : null;
}
