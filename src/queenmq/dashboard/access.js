// Access: the tokens that Queen has made, the quotas of namespaces, and the audit log.

import { Refused, get, may, path, post, remove } from "./api.js";
import { bar } from "./chart.js";
import { h } from "./dom.js";
import { bytes, number, plural } from "./format.js";
import { ask, badge, button, code, empty, heading, moment, pager, panel, searchField, table, toolbar } from "./ui.js";

const PAGE = 50;
const MOST_TOKENS = 200;

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
    { note: "Only digests are stored: a token is shown once, when it is made." },
    table({
      label: "Tokens",
      rows: tokens,
      key: (token) => token.id,
      none: empty("Queen has made no token.", "Make one with ", code("queen token create shop --role read-write --queues 'orders.*' --expires 30d")),
      columns: [
        { name: "Name", cell: (token) => h("span", { class: "strong", title: `${token.id}, made ${token.createdAt}${token.createdBy ? ` by ${token.createdBy}` : ""}` }, token.name) },
        { name: "State", cell: stateOf },
        { name: "Role", cell: (token) => token.role },
        { name: "Restricted to", cell: restrictionsOf, wide: true },
        { name: "Expires", cell: (token) => (token.expiresAt ? moment(token.expiresAt, { absolute: true }) : "never") },
        { name: "Last used", cell: (token) => moment(token.lastUsedAt) },
        { name: "", cell: (token) => token.valid && button("Revoke", () => revoke(token, page), { kind: "danger" }) },
      ],
    }),
  );
}

function stateOf(token) {
  if (token.valid) return badge("good", "Valid");
  return token.revokedAt ? badge("bad", "Revoked") : badge("warn", "Expired");
}

function grantOf(grant) {
  return Object.entries(grant)
    .map(([name, values]) => `${name} ${values.join(", ")}`)
    .join("; ");
}

function restrictionsOf({ grants, limits }) {
  const told = [
    grants.map(grantOf).join(" or "),
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
    { note: "What the queues of a namespace may store. Figures are some seconds old; bytes are an estimate.", actions: mayChange && button("Set a quota", () => setQuota(page)) },
    table({
      label: "Quotas",
      rows: quotas,
      key: (quota) => quota.namespace,
      none: empty("No namespace has a quota.", "A push that would exceed a quota gets 429."),
      columns: [
        { name: "Namespace", cell: (quota) => h("span", { class: "strong" }, quota.namespace) },
        { name: "Messages", cell: (quota) => used(quota.messages, quota.maxMessages, number) },
        { name: "Bytes", cell: (quota) => (quota.maxBytes ? used(quota.bytes, quota.maxBytes, bytes) : "–") },
        { name: "", cell: (quota) => mayChange && button("Remove", () => removeQuota(quota, page), { kind: "danger" }) },
      ],
    }),
  );
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
  ask({
    title: "Set a quota",
    text: "For the queue of this name, and for all whose names begin with it and a dot.",
    action: "Set it",
    fields: [first, second, third],
    act: async () => {
      await post("/api/v1/quotas", { namespace: namespace.value, maxMessages: messages.value ? Number(messages.value) : null, maxBytes: size.value ? Number(size.value) : null });
      return `The quota of ${namespace.value} is set.`;
    },
    done: page.reload,
  });
}

function removeQuota(quota, page) {
  ask({
    title: `Remove the quota of ${quota.namespace}?`,
    text: "Its queues may store any number of messages then.",
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
