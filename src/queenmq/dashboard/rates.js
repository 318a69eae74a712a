// Rates that no answer has: of a count that only grows, between one answer of the server and a later one.

import { rate } from "./format.js";

const MOST = 2000; // counts that are remembered
const FORGOTTEN_MS = 120000;
const before = new Map(); // of each count what it was, and when; and its rate then

/** How much a count has grown a second since it was shown before, at least `least` ms ago: a shorter time says nothing. */
export function growth(key, count, least) {
  const now = Date.now();
  const known = before.get(key);
  if (!known || now - known.at > FORGOTTEN_MS || count < known.count) {
    if (before.size > MOST) before.clear();
    before.set(key, { at: now, count, rate: null });
    return "–";
  }
  if (now - known.at >= least) before.set(key, { at: now, count, rate: ((count - known.count) * 1000) / (now - known.at) });
  const shown = before.get(key).rate;
  return shown === null ? "–" : rate(shown);
}
