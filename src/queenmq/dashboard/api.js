// Talks to the server: requests with the token of this tab, refusals as sentences, and the live stream.

const TOKEN = "queen.token";

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** A number as it was written, where JavaScript would have changed it. */
export class Exact {
  constructor(source) {
    this.source = source;
  }
}

// Whether tokens are demanded is null until the server has said it.
export const session = { role: "admin", subject: null, tokens: null, grants: null };
const RANKS = ["read-only", "read-write", "admin"];

export function may(role) {
  return RANKS.indexOf(session.role) >= RANKS.indexOf(role);
}

/** Whether the token reads all queues. The server decides; this only spares it what it would refuse. */
export function readsEverything() {
  const isForAll = ({ queues = [], namespaces = [], allow = ["read"] }) => allow.includes("read") && (queues.length + namespaces.length === 0 || [...queues, ...namespaces].includes("*"));
  return !session.grants || session.grants.some(isForAll);
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let onToken = () => {};
export function whenTokenIsWanted(callback) {
  onToken = callback;
}

export function path(strings, ...names) {
  return String.raw({ raw: strings }, ...names.map(encodeURIComponent));
}

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const get = (where, parameters = {}) => request("GET", where + query(parameters));
/** The body is encoded here, unless it is JSON already. */
export const post = (where, body = {}) => request("POST", where, typeof body === "string" ? body : JSON.stringify(body));
export const remove = (where) => request("DELETE", where);

function headers() {
  const held = token.get();
  return held ? { Authorization: `Bearer ${held}` } : {};
}

async function request(method, where, body) {
  let answer;
  const sent = token.get();
  try {
    answer = await fetch(where, {
      method,
      headers: body === undefined ? headers() : { ...headers(), "Content-Type": "application/json" },
      body,
    });
  } catch {
    throw new Refused(0, "The server cannot be reached. It may be restarting; this page keeps trying.");
  }
  const text = await answer.text();
  const told = parsed(text);
  if (answer.ok && told?.success !== false) return told;
  throw refusal(answer, told, sent);
}

function refusal(answer, told, sent) {
  const sentence = told?.error || `The server answered ${answer.status}.`;
  // What is said of a token that was replaced meanwhile is of no interest.
  if (answer.status === 401 && sent === token.get()) onToken(sentence);
  return new Refused(answer.status, sentence);
}

function parsed(text) {
  if (!text) return null;
  try {
    return JSON.parse(text, (_, value, context) =>
      typeof value === "number" && context?.source !== undefined && String(value) !== context.source && !isSameNumber(value, context.source)
        ? new Exact(context.source)
        : value,
    );
  } catch {
    return null;
  }
}

function isSameNumber(value, source) {
  const digits = source.replace(/[-.]|e.*$/gi, "").replace(/^0+/, "");
  return Number.isFinite(value) && digits.length <= 15;
}

/** Call `beat` with every snapshot until `signal` aborts or the server ends the stream. */
export async function watch(beat, signal) {
  const sent = token.get();
  const answer = await fetch("/api/v1/live", { headers: { ...headers(), Accept: "text/event-stream" }, signal, cache: "no-store" });
  if (!answer.ok) throw refusal(answer, parsed(await answer.text()), sent);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) beat(JSON.parse(data.slice(6)));
    }
  }
}
