// Access: the tokens that Queen has made, the quotas of namespaces, and the audit log.

import { Refused, get, may, path, post, remove } from "./api.js";
import { bar } from "./chart.js";
import { h } from "./dom.js";
import { bytes, grantsInWords, number, plural } from "./format.js";
import { ask, badge, button, code, copy, empty, heading, input, moment, openDialog, pager, panel, searchField, table, toolbar } from "./ui.js";

const PAGE = 50;
const MOST_TOKENS = 200;
const DAY_MS = 86400000;

/** What only an administrator without grants may read; null for others. */
async function ifAllowed(where, parameters) {
  try {
    return await get(where, parameters);
  } catch (error) {
    if (error instanceof Refused && error.status === 403) return null;
    throw error;
  }
}

export const access = {
  title: () => "Access",
  every: 10000,

  async load({ query }) {
    const offset = Number(query.offset ?? 0);
    const [{ quotas }, tokens, audit] = await Promise.all([
      get("/api/v1/quotas"),
      may("admin") ? ifAllowed("/api/v1/tokens", { limit: MOST_TOKENS }) : null,
      may("admin") ? ifAllowed("/api/v1/audit", { subject: query.subject, action: query.action, status: query.status, limit: PAGE + 1, offset }) : null,
    ]);
    return { quotas, tokens: tokens?.tokens ?? null, entries: audit?.entries.slice(0, PAGE) ?? null, more: (audit?.entries.length ?? 0) > PAGE, offset };
  },

  view({ quotas, tokens, entries, more, offset }, { query }, page) {
    return [
      heading("Access", { note: tokens ? "Who may use this server, how much they may store, and what was changed or refused." : "How much may be stored. Tokens and the audit log are for administrators without grants." }),
      tokens && tokenPanel(tokens, page),
      quotaPanel(quotas, tokens !== null, page),
      entries && auditPanel(entries, { more, offset, query, page }),
    ];
  },
};

function tokenPanel(tokens, page) {
  return panel(
    "Tokens",
    { note: "Only digests are stored: a token is shown once, when it is made.", actions: button("Make a token", () => makeToken(page)) },
    table({
      label: "Tokens",
      rows: tokens,
      key: (token) => token.id,
      none: empty("Queen has made no token.", "Make one here, or with ", code("queen token create shop --role read-write --queues 'orders.*' --expires 30d")),
      columns: [
        { name: "Name", cell: (token) => h("span", { class: "strong", title: `${token.id}, made ${token.createdAt}${token.createdBy ? ` by ${token.createdBy}` : ""}` }, token.name) },
        { name: "State", cell: stateOf },
        { name: "Role", cell: (token) => token.role },
        { name: "Restricted to", cell: restrictionsOf, wide: true },
        { name: "Expires", cell: (token) => (token.expiresAt ? moment(token.expiresAt, { absolute: true }) : "never") },
        { name: "Last used", cell: (token) => moment(token.lastUsedAt) },
        { name: "", actions: true, cell: (token) => (token.valid ? button("Revoke", () => revoke(token, page), { kind: "danger" }) : !token.revokedAt && button("Make a new one", () => makeToken(page, token))) },
      ],
    }),
  );
}

/** With the name, role and restrictions of one that has expired, if it is given, and about as long a life. */
function makeToken(page, old) {
  let made = null;
  const days = old && Math.max(1, Math.round((Date.parse(old.expiresAt) - Date.parse(old.createdAt)) / DAY_MS));
  const role = h("select", { name: "role" }, ["read-only", "read-write", "admin"].map((name) => h("option", { value: name, selected: name === "read-write" }, name)));
  const life = input("days", "Valid for, in days", { type: "number", min: 1, value: days ?? "", placeholder: "for ever" });
  ask({
    title: old ? `A new token ${old.name}` : "Make a token",
    text: old ? `It has the role ${old.role} and the restrictions of the old one (${restrictionsOf(old)}), which stays expired.` : ["It is for every queue; ", code("queen token create"), " makes one that is restricted to some."],
    action: "Make it",
    fields: old ? [life] : [input("name", "Name", { required: true, maxlength: 255 }), h("label", { class: "field" }, h("span", {}, "Role"), role), life],
    act: async (form) => {
      const like = old ? { name: old.name, role: old.role, limits: given(old.limits), ...(old.grants.length && { grants: old.grants }) } : { name: form.get("name"), role: form.get("role") };
      made = await post("/api/v1/tokens", { ...like, ...(form.get("days") && { expiresInSeconds: Number(form.get("days")) * (DAY_MS / 1000) }) });
      return `The token ${made.name} is made.`;
    },
    done: () => {
      showOnce(made);
      page.reload();
    },
  });
}

function given(limits) {
  return Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== null));
}

function showOnce({ name, token }) {
  const field = h("input", { readonly: true, value: token, spellcheck: "false" });
  const form = h("form", { method: "dialog" }, h("h2", {}, `The token ${name}`), h("p", {}, "It is shown only now. Give it to its users."), h("label", { class: "field" }, h("span", {}, "Token"), field), h("div", { class: "actions" }, button("Copy", () => copy(token)), button("Close", null, { kind: "primary", type: "submit" })));
  const dialog = h("dialog", { class: "token", "aria-label": `The token ${name}` }, form);
  openDialog(dialog, { stays: true }); // whoever goes on by mistake would never see the token again
  field.select();
}

function stateOf(token) {
  if (token.valid) return badge("good", "Valid");
  return token.revokedAt ? badge("bad", "Revoked") : badge("warn", "Expired");
}

function restrictionsOf({ grants, limits }) {
  const told = [
    grantsInWords(grants),
    limits.requestsPerSecond && `${plural(limits.requestsPerSecond, "request")} a second`,
    limits.messagesPerSecond && `${plural(limits.messagesPerSecond, "message")} a second`,
    limits.longPolls && plural(limits.longPolls, "long poll"),
  ].filter(Boolean);
  return told.join(", ") || "–";
}

function revoke(token, page) {
  ask({
    title: `Revoke the token ${token.name}?`,
    text: "Requests with it get 401 on every server. It cannot be made valid again.",
    action: "Revoke it",
    danger: true,
    act: async () => (await remove(path`/api/v1/tokens/${token.id}`), `The token ${token.name} is revoked.`),
    done: page.reload,
  });
}

function quotaPanel(quotas, mayChange, page) {
  return panel(
    "Quotas",
    { note: "What the queues of a namespace may store, and what may be asked for of them at each worker. Figures are some seconds old; bytes are an estimate.", actions: mayChange && button("Set a quota", () => setQuota(page)) },
    table({
      label: "Quotas",
      rows: quotas,
      key: (quota) => quota.namespace,
      none: empty("No namespace has a quota.", "What would exceed a quota gets 429."),
      columns: [
        { name: "Namespace", cell: (quota) => h("span", { class: "strong" }, quota.namespace) },
        { name: "Messages", cell: (quota) => used(quota.messages, quota.maxMessages, number) },
        { name: "Bytes", cell: (quota) => (quota.maxBytes ? used(quota.bytes, quota.maxBytes, bytes) : "–") },
        { name: "A second", wide: true, cell: ratesOf },
        { name: "Long polls", cell: (quota) => (quota.longPolls ? used(quota.longPollsWaiting, quota.longPolls, number) : "–") },
        { name: "", cell: (quota) => mayChange && button("Remove", () => removeQuota(quota, page), { kind: "danger" }) },
      ],
    }),
  );
}

function ratesOf({ requestsPerSecond, messagesPerSecond }) {
  return [requestsPerSecond && plural(requestsPerSecond, "request"), messagesPerSecond && `${plural(messagesPerSecond, "message")} pushed`].filter(Boolean).join(", ") || "–";
}

function used(stored, most, written) {
  if (!most) return written(stored);
  const share = Math.min(1, stored / most);
  return h("span", { class: "with-bar" }, h("span", {}, `${written(stored)} of ${written(most)}`), bar(share, share > 0.9 ? "two" : "one"));
}

function setQuota(page) {
  const field = (label, more) => {
    const input = h("input", { autocomplete: "off", ...more });
    return [input, h("label", { class: "field" }, h("span", {}, label), input)];
  };
  const [namespace, first] = field("Namespace", { required: true, maxlength: 255, placeholder: "tenant-7" });
  const [messages, second] = field("Messages", { type: "number", min: 1, placeholder: "no limit" });
  const [size, third] = field("Bytes", { type: "number", min: 1, placeholder: "no limit" });
  const [requests, fourth] = field("Requests a second", { type: "number", min: 1, placeholder: "no limit" });
  const [pushed, fifth] = field("Pushed a second", { type: "number", min: 1, placeholder: "no limit" });
  const [polls, sixth] = field("Long polls", { type: "number", min: 1, placeholder: "no limit" });
  const given = (input) => (input.value ? Number(input.value) : null);
  ask({
    title: "Set a quota",
    text: "For the queue of this name, and for all whose names begin with it and a dot. It replaces the one that the namespace has.",
    action: "Set it",
    fields: [first, second, third, fourth, fifth, sixth],
    act: async () => {
      await post("/api/v1/quotas", {
        namespace: namespace.value,
        maxMessages: given(messages),
        maxBytes: given(size),
        requestsPerSecond: given(requests),
        messagesPerSecond: given(pushed),
        longPolls: given(polls),
      });
      return `The quota of ${namespace.value} is set.`;
    },
    done: page.reload,
  });
}

function removeQuota(quota, page) {
  ask({
    title: `Remove the quota of ${quota.namespace}?`,
    text: "Nothing limits its queues then but what limits all.",
    action: "Remove it",
    danger: true,
    act: async () => (await remove(path`/api/v1/quotas/${quota.namespace}`), `${quota.namespace} has no quota any more.`),
    done: page.reload,
  });
}

function decoded(target) {
  try {
    return decodeURI(target ?? "–");
  } catch {
    return target;
  }
}

function auditPanel(entries, { more, offset, query, page }) {
  return panel(
    "Audit log",
    { note: "What was changed or refused, newest first. Refusals are in it after a minute." },
    toolbar(
      searchField({ label: "Subject", value: query.subject, placeholder: "Everybody", onsearch: (subject) => page.set({ subject, offset: "" }) }),
      searchField({ label: "Action", value: query.action, placeholder: "DELETE, configure, …", onsearch: (action) => page.set({ action, offset: "" }) }),
      searchField({ label: "Status", value: query.status, placeholder: "Every status", onsearch: (status) => page.set({ status: status.replace(/\D/g, ""), offset: "" }) }),
    ),
    table({
      label: "Audit log",
      rows: entries,
      key: (entry) => entry.id,
      none: empty("No entry matches."),
      columns: [
        { name: "Action", cell: (entry) => h("span", { title: entry.detail ?? undefined }, code(entry.action), entry.count > 1 && ` × ${number(entry.count)}`) },
        { name: "Outcome", cell: (entry) => badge(entry.status < 400 ? "good" : "bad", String(entry.status), entry.error ?? undefined) },
        { name: "Target", cell: (entry) => decoded(entry.target), wide: true },
        { name: "Subject", cell: (entry) => `${entry.subject ?? "–"}${entry.role ? ` (${entry.role})` : ""}` },
        { name: "From", cell: (entry) => h("span", { title: entry.forwardedFor ? `X-Forwarded-For: ${entry.forwardedFor}` : undefined }, entry.address ?? "–") },
        { name: "When", cell: (entry) => moment(entry.until) },
      ],
    }),
    pager({ offset, limit: PAGE, shown: entries.length, more, go: (next) => page.set({ offset: next || "" }) }),
  );
}
