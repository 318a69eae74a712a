// Charts: lines over time, drawn as SVG. Labels are text beside the picture, so they never stretch with it.

import { h } from "./dom.js";
import { NONE, date, minute, time } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 200;
const TICKS = 5;
const MINUTES_20 = 1200000;
const HOURS_36 = 36 * 3600000;

/** A round number at or above `value`, for the top of an axis. */
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * step).find((top) => top >= value - 1e-9);
}

function outline(values, top) {
  let path = "";
  let drawing = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      drawing = false;
      return;
    }
    const x = values.length > 1 ? (index / (values.length - 1)) * WIDTH : WIDTH;
    const y = HEIGHT - (Math.min(value, top) / top) * HEIGHT;
    path += `${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${drawing ? "" : "h0"}`; // a point between two gaps is a dot
    drawing = true;
  });
  return path;
}

/**
 * Lines over time. `points` are objects with `at` (milliseconds); `series` names what of them is drawn: {key, name, tone}.
 * `format` writes a value, `what` says in words what is seen.
 */
export function lines({ points, series, format, what, empty }) {
  const drawn = points.length > 1;
  const top = niceTop(Math.max(0, ...points.flatMap((point) => series.map(({ key }) => point[key] ?? 0))));
  const last = points.at(-1);
  const label = drawn ? labelOf(last.at - points[0].at) : time;
  const cursor = h("i", { class: "cursor", hidden: true });
  const values = series.map(({ key, name, tone }) =>
    h("span", { class: `key tone-${tone}` }, h("i", {}), `${name} `, h("b", {}, last ? format(last[key]) : "–")),
  );
  const plot = h(
    "div",
    {
      class: "plot",
      onpointermove: (event) => point(event, points, series, format),
      onpointerdown: (event) => point(event, points, series, format),
      onpointerleave: (event) => unpoint(event.currentTarget),
    },
    h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0.25, 0.5, 0.75].map((share) => h("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share })),
      drawn &&
        series.map(({ key, tone }, index) => {
          const path = outline(points.map((point) => point[key]), top);
          const area = index === 0 && path && path.indexOf("M", 1) < 0 ? `${path}V${HEIGHT}H${firstX(points, key)}Z` : "";
          return h("g", { class: `tone-${tone}` }, h("path", { class: "area", d: area }), h("path", { class: "line", d: path }));
        }),
    ),
    cursor,
    h("div", { class: "tip", hidden: true, "aria-hidden": "true" }),
    !drawn && h("p", { class: "plot-empty" }, empty ?? "Nothing to draw yet."),
  );
  const summary = last
    ? `${what}: ${series.map(({ key, name }) => `${name} ${format(last[key])}`).join(", ")}; highest on the axis ${format(top)}.`
    : `${what}: nothing yet.`;
  return h(
    "figure",
    { class: "chart", role: "img", "aria-label": summary },
    h("figcaption", { class: "legend" }, values),
    h("div", { class: "frame" }, h("div", { class: "axis-y", "aria-hidden": "true" }, h("span", {}, format(top)), h("span", {}, format(top / 2)), h("span", {}, format(0))), plot),
    h("div", { class: "axis-x", "aria-hidden": "true" }, drawn && ticks(points.length).map((index) => h("span", {}, label(points[index].at)))),
  );
}

function firstX(points, key) {
  const index = points.findIndex((point) => point[key] !== null && point[key] !== undefined);
  return ((index / (points.length - 1)) * WIDTH).toFixed(1);
}

/** Which points have a label below the axis, evenly apart. */
function ticks(count) {
  const most = Math.min(TICKS, count);
  return Array.from({ length: most }, (_, index) => Math.round((index * (count - 1)) / (most - 1)));
}

/** Seconds, minutes or days: what tells the points of a chart of this length apart. */
function labelOf(length) {
  if (length > HOURS_36) return (at) => date(new Date(at).toISOString());
  return length > MINUTES_20 ? minute : time;
}

function point(event, points, series, format) {
  if (points.length < 2) return;
  const plot = event.currentTarget;
  const box = plot.getBoundingClientRect();
  const index = Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (points.length - 1));
  const share = index / (points.length - 1);
  const chosen = points[index];
  const cursor = plot.querySelector(".cursor");
  cursor.hidden = false;
  cursor.style.setProperty("left", `${share * 100}%`);
  const tip = plot.querySelector(".tip");
  tip.hidden = false;
  // Beside the cursor, on the side where there is more room.
  tip.style.setProperty(share > 0.5 ? "right" : "left", `${(share > 0.5 ? 1 - share : share) * 100}%`);
  tip.style.removeProperty(share > 0.5 ? "left" : "right");
  const label = labelOf(points.at(-1).at - points[0].at);
  const nothing = series.every(({ key }) => chosen[key] === undefined || chosen[key] === null);
  tip.replaceChildren(
    h("b", {}, label(chosen.at)),
    ...(nothing ? [h("span", {}, "not measured")] : series.map(({ key, name, tone }) => h("span", { class: `key tone-${tone}` }, h("i", {}), `${name} ${chosen[key] === undefined ? NONE : format(chosen[key])}`))),
  );
}

function unpoint(plot) {
  plot.querySelector(".cursor").hidden = true;
  plot.querySelector(".tip").hidden = true;
}

/** A small line without labels, beside a number. */
export function spark(values, tone = "one") {
  if (values.filter((value) => value !== null).length < 2) return h("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  const top = niceTop(Math.max(...values.map((value) => value ?? 0)));
  return h(
    "svg",
    { class: `spark tone-${tone}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { class: "line", d: outline(values, top) }),
  );
}

/** A share of a whole as a bar; the number stands beside it, so the bar is only for the eye. */
export function bar(share, tone = "one") {
  const width = `${Math.min(100, Math.max(share > 0 ? 2 : 0, share * 100))}%`;
  return h("span", { class: `bar tone-${tone}`, "aria-hidden": "true" }, h("i", { style: { width } }));
}
