// Numbers, times and sizes for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });

export const NONE = "–";

export function number(value) {
  return value === null || value === undefined ? NONE : whole.format(value);
}

/** What a server says in a few words, as a sentence. */
export function sentence(words) {
  return words && words[0].toUpperCase() + words.slice(1) + (/[.!?…]$/.test(words) ? "" : ".");
}

/** What a token is for, in a few words. */
export function grantsInWords(grants) {
  const one = (grant) =>
    Object.entries(grant)
      .map(([name, values]) => `${name} ${values.join(", ")}`)
      .join("; ");
  return grants.map(one).join(" or ");
}

/** As somebody has set it, not rounded. */
export function setting(value) {
  return exact.format(value);
}

/** At most four digits and a letter: for tiles. */
export function compact(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) >= 10000 ? short.format(value) : whole.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 0.1) return "< 0.1";
  return value >= 100 ? compact(value) : fine.format(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400 * 2) return `${fine.format(seconds / 3600)} h`;
  return `${fine.format(seconds / 86400)} days`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let size = value;
  let unit = -1;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${fine.format(size)} ${units[unit]}`;
}

export function percent(share) {
  return share === null || share === undefined ? NONE : `${fine.format(share * 100)} %`;
}

/** How far away a moment is: "3 min ago", "in 20 s". */
export function ago(moment) {
  if (!moment) return NONE;
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

export function time(moment) {
  return clock.format(typeof moment === "number" ? moment : Date.parse(moment));
}

export function minute(moment) {
  return time(moment).slice(0, 5);
}

export function date(moment) {
  return moment ? day.format(Date.parse(moment)) : NONE;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** The group of those who pop without naming one. */
export function groupName(name) {
  return name === "__QUEUE_MODE__" ? "queue mode" : name;
}
