// The live stream as the pages see it: the newest snapshot, the rates of the last minutes, and whether it is coming in.

import { Refused, readsEverything, watch } from "./api.js";

const KEPT = 120;
const PAUSES_MS = [500, 1000, 2000, 5000, 10000];
const REFUSED_MS = 60000; // a token that may not see the figures will hardly be allowed to soon
const COUNTED = ["pushed", "popped", "acked", "failed", "deadLettered", "databaseErrors"];

export const live = { state: "connecting", sentence: "", now: null, history: [], since: null };
const SILENT_MS = 5000; // five beats: then the server counts as lost, whatever the connection looks like
const UNANSWERED_MS = 15000; // so long an attempt may wait for its first beat
const listeners = new Set();
let stream = null;
let wake = null;
let heard = 0;
let asked = 0;

/** Whether what the server has said last can be taken for the present. */
export function isCurrent() {
  return live.state === "live" || live.state === "paused";
}

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of listeners) listener();
}

function took(snapshot) {
  // What was not seen is a gap, not a line from before to after.
  if (heard && Date.now() - heard > SILENT_MS && live.history.length) live.history.push({ at: Date.now(), ...Object.fromEntries([...COUNTED, "processor", "waiters", "pending"].map((name) => [name, null])) });
  heard = Date.now();
  const at = Date.parse(snapshot.at);
  const before = live.now;
  if (before && before.server.id === snapshot.server.id && snapshot.server.uptimeSeconds > before.server.uptimeSeconds) {
    const seconds = Math.max(0.001, snapshot.server.uptimeSeconds - before.server.uptimeSeconds);
    const rates = Object.fromEntries(COUNTED.map((name) => [name, Math.max(0, snapshot.counts[name] - before.counts[name]) / seconds]));
    const processor = (snapshot.server.processorMicroseconds - before.server.processorMicroseconds) / 1e6 / seconds;
    live.history.push({ at, ...rates, processor, waiters: snapshot.waiters, pending: snapshot.backlog?.pending ?? null });
    while (live.history.length > KEPT) live.history.shift();
  }
  live.now = snapshot;
  live.state = "live";
  live.sentence = "";
  tell();
}

/** A connection that is open and silent is as bad as none: give it up, and say so. */
function listenForSilence() {
  const quiet = heard > asked ? Date.now() - heard > SILENT_MS : Date.now() - asked > UNANSWERED_MS;
  if (document.hidden || live.state === "refused" || !quiet) return;
  if (live.state !== "away") say("away", "No data for some seconds; trying again.");
  stream?.abort();
}

function say(state, sentence = "") {
  if (state === "away" && live.state !== "away") live.since = heard || Date.now();
  live.state = state;
  live.sentence = sentence;
  tell();
}

/** The server is there, but its figures are not for this token: nor are those that it has shown to another. */
function refused() {
  live.now = null;
  live.history.length = 0;
  say("refused", "Your token gets no live figures: it is for some queues, and they are about all.");
}

/** How it is said that the stream has ended with this error. */
function sayWhy(error) {
  const status = error instanceof Refused ? error.status : 0;
  if (status === 403) refused();
  else if (status === 401) say("connecting", error.message); // a token is being asked for
  else say("away", status ? error.message : "The server cannot be reached; trying again.");
}

function sleep(milliseconds) {
  return new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, milliseconds);
  });
}

/** Watch for as long as the page is open and visible, and come again whenever the stream ends. */
export async function keepWatching() {
  let failures = 0;
  setInterval(listenForSilence, 1000);
  document.addEventListener("visibilitychange", () => (document.hidden ? stream?.abort() : again()));
  for (;;) {
    if (document.hidden) {
      say("paused");
      await new Promise((resolve) => (wake = resolve));
    }
    if (!readsEverything()) {
      refused();
      await sleep(REFUSED_MS);
      continue;
    }
    stream = new AbortController();
    asked = Date.now();
    try {
      await watch((snapshot) => {
        failures = 0;
        took(snapshot);
      }, stream.signal);
    } catch (error) {
      // Whoever has given up a silent stream has said so.
      if (!document.hidden && error.name !== "AbortError") sayWhy(error);
    }
    if (document.hidden) continue;
    if (live.state === "refused") {
      await sleep(REFUSED_MS);
      continue;
    }
    const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)];
    failures += 1;
    await sleep(pause);
  }
}

/** Try at once: there is a new token, or somebody looks again. */
export function again() {
  wake?.();
}
