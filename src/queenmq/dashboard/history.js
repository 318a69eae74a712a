// What servers did over the last hour, day or week: asked of the server, and put into points for charts.

import { get } from "./api.js";
import { button } from "./ui.js";

const HOUR_MS = 3600000;
const LESS_MS = 60000; // so that the range is not longer than a day when the server reads its own clock
const RANGES = { "": ["Last hour", HOUR_MS], day: ["Last day", 24 * HOUR_MS], week: ["Last week", 7 * 24 * HOUR_MS] };
const WIDTHS = { 1: "minute", 5: "5 minutes", 15: "15 minutes", 60: "hour", 360: "6 hours" };
const NOTHING = { ingestedPerSecond: 0, popPerSecond: 0, processedPerSecond: 0, maxLag: 0, errors: 0 };

/** The history of a queue, or of all. `range` is what the address says; the status of the last hour may be there already. */
export async function history(range, { queue, hour } = {}) {
  const [, length] = RANGES[range] ?? RANGES[""];
  const isHour = length === HOUR_MS;
  const status = isHour && hour ? hour : await get("/api/v1/status", { queue, from: isHour ? undefined : new Date(Date.now() - length + LESS_MS).toISOString() });
  return { points: pointsOf(status), width: WIDTHS[status.bucketMinutes] ?? `${status.bucketMinutes} minutes` };
}

/**
 * One point for each stretch of time, without the present one, which is not over. A stretch of which there is nothing is zero if a server
 * was there to measure it, and a gap if none was.
 */
export function pointsOf({ throughput, measured, timeRange, bucketMinutes }) {
  const width = bucketMinutes * 60000;
  const known = new Map(throughput.map((point) => [Math.floor(Date.parse(point.timestamp) / width), drawn(point)]));
  const seen = measured && new Set(measured.map((at) => Math.floor(Date.parse(at) / width)));
  const first = Math.floor(Date.parse(timeRange.from) / width);
  const last = Math.floor(Date.parse(timeRange.to) / width);
  return Array.from({ length: Math.max(0, last - first) }, (_, index) => {
    const bucket = first + index;
    return known.get(bucket) ?? { at: bucket * width, ...(!seen || seen.has(bucket) ? NOTHING : {}) };
  });
}

function drawn(point) {
  return { ...point, at: Date.parse(point.timestamp), maxLag: point.maxLagMs / 1000, errors: point.dbErrors + point.ackFailed + point.dlqCount };
}

export function rangeTitle(range) {
  return (RANGES[range] ?? RANGES[""])[0];
}

/** Buttons that choose the range of the charts. */
export function rangeButtons({ range = "" }, page) {
  const chosen = range in RANGES ? range : "";
  return Object.entries(RANGES).map(([value, [name]]) => button(name, () => page.set({ range: value }), { kind: value === chosen ? "chip chosen" : "chip", pressed: value === chosen }));
}
