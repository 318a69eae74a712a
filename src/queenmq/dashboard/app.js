// The shell: navigation, search, theme, keyboard, tokens, and which page is shown for an address.

import { access } from "./access.js";
import { Refused, get, session, token, whenTokenIsWanted } from "./api.js";
import { cluster } from "./cluster.js";
import { deadLetters } from "./dead_letters.js";
import { h, show } from "./dom.js";
import { sentence, time } from "./format.js";
import { group, groups } from "./groups.js";
import { keys } from "./keys.js";
import { again, keepWatching, listen, live } from "./live.js";
import { message, messages } from "./messages.js";
import { finish, isReturning, provider, signIn } from "./oidc.js";
import { operation, operations } from "./operations.js";
import { overview } from "./overview.js";
import { partition } from "./partition.js";
import { declared, pipeline } from "./pipeline.js";
import { queue, queues } from "./queues.js";
import { trace, traces } from "./traces.js";
import { search, suggestions } from "./search.js";
import { badge, button, closeDialogs, empty, forgetTyping, link, openDialog, problem, toast } from "./ui.js";

const ROUTES = [
  [/^$/, overview],
  [/^queues$/, queues],
  [/^queues\/([^/]+)$/, queue],
  [/^queues\/([^/]+)\/partitions\/([^/]+)$/, partition],
  [/^groups$/, groups],
  [/^groups\/([^/]+)$/, group],
  [/^messages$/, messages],
  [/^messages\/([^/]+)\/([^/]+)$/, message],
  [/^dead-letters$/, deadLetters],
  [/^operations$/, operations],
  [/^operations\/([^/]+)$/, operation],
  [/^cluster$/, cluster],
  [/^traces$/, traces],
  [/^traces\/([^/]+)$/, trace],
  [/^keys$/, keys],
  [/^pipeline$/, pipeline],
  [/^pipeline\/([^/]+)$/, declared],
  [/^access$/, access],
  [/^search$/, search],
];

const NAVIGATION = [
  ["o", "Overview", "", "M4 13h6V4H4zm0 7h6v-4H4zm10 0h6v-9h-6zm0-16v4h6V4z"],
  ["q", "Queues", "queues", "M4 5h16v4H4zm0 5.500h16v4H4zm0 5.500h16v4H4z"],
  ["g", "Groups", "groups", "M8 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7m8 0a3 3 0 1 0 0-6 3 3 0 0 0 0 6M2 19c0-3.500 2.700-6 6-6s6 2.500 6 6zm13.500 0H22c0-3-2-5.500-5-5.500-1 0-1.900.2-2.600.7.8 1.300 1.100 3 1.100 4.800"],
  ["m", "Messages", "messages", "M3 5h18v14H3zm2 2.500V9l7 4.500L19 9V7.500l-7 4.500z"],
  ["d", "Dead letters", "dead-letters", "M12 3 1.500 21h21zm-1 6h2v6h-2zm0 7.500h2v2h-2z"],
  ["t", "Traces", "traces", "M6 3a3 3 0 0 1 1 5.800V11h7a3 3 0 0 1 3 3v1.200a3 3 0 1 1-2 0V14a1 1 0 0 0-1-1H7v2.200a3 3 0 1 1-2 0V8.800A3 3 0 0 1 6 3"],
  ["n", "Operations", "operations", "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20m-1 4.500h2V12l4 2.300-1 1.700-5-3z"],
  ["c", "Cluster", "cluster", "M12 2.500a3 3 0 0 1 1 5.800v2.400l4.300 3.600a3 3 0 1 1-1.300 1.500L12 12.500l-4 3.300a3 3 0 1 1-1.300-1.500l4.300-3.600V8.300a3 3 0 0 1 1-5.800"],
  ["k", "Keys and locks", "keys", "M14.500 3a6.500 6.500 0 0 0-6.200 8.500L2 17.800V22h5v-2.500h2.500V17h2.500l1.600-1.600A6.500 6.500 0 1 0 14.500 3m2 3a2 2 0 1 1 0 4 2 2 0 0 1 0-4"],
  ["r", "Pipelines", "pipeline", "M3 5h6v5H3zm12 9h6v5h-6zM3 14h6v5H3zm7-7h4.500a3 3 0 0 1 3 3v3h-2v-3a1 1 0 0 0-1-1H10zm0 8.500h4v2h-4z"],
  ["a", "Access", "access", "M12 2 4 5v6c0 5 3.400 9.500 8 11 4.600-1.500 8-6 8-11V5zm0 4a2.500 2.500 0 0 1 1 4.800V16h-2v-5.200A2.500 2.500 0 0 1 12 6"],
];
const SUN = "M12 7a5 5 0 1 1 0 10 5 5 0 0 1 0-10M11 1h2v4h-2zm0 18h2v4h-2zM1 11h4v2H1zm18 0h4v2h-4zM4.200 5.600l1.400-1.400 2.800 2.800L7 8.400zm11.400 11.400 1.400-1.400 2.800 2.800-1.400 1.400zM18.400 4.200l1.400 1.400L17 8.400 15.600 7zM7 15.600 8.400 17l-2.800 2.800-1.400-1.400z";
const MOON = "M20.500 14.500A9 9 0 0 1 9.500 3.500a9 9 0 1 0 11 11";
const STEPS = { live: ["good", "Live"], connecting: ["calm", "Connecting"], away: ["bad", "Not connected"], paused: ["calm", "Paused"], refused: ["calm", "No live figures"] };

const state = { address: null, route: null, page: null, data: null, problem: null, refused: null, lost: false, menu: false };
let main;
let frame;
let timer = 0;
let turn = 0;

function routeOf(hash) {
  const [where, parameters = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  for (const [pattern, page] of ROUTES) {
    const match = pattern.exec(where);
    if (match) {
      try {
        return { page, where, params: match.slice(1).map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(parameters)) };
      } catch {
        return null;
      }
    }
  }
  return null;
}

const page = {
  /** Change what the address asks for; an empty value leaves it out. */
  set(changes) {
    // Somebody may have gone on while a search was still waiting for the end of the typing.
    if (routeOf(location.hash)?.where !== state.route?.where) return;
    const asked = new URLSearchParams(Object.entries({ ...state.route.query, ...changes }).filter(([, value]) => value !== "" && value !== undefined));
    const [where] = location.hash.split("?", 1);
    location.replace(`${where || "#/"}${asked.size ? `?${asked}` : ""}`);
  },
  reload: () => load(),
  /** Show again what was loaded, because what is selected in it has changed. */
  redraw: () => draw(),
};

async function navigate() {
  if (location.hash === "#main") return;
  const route = routeOf(location.hash);
  const left = state.address !== location.hash && closeDialogs();
  state.address = location.hash;
  suggestions.close(drawFrame);
  const same = route && state.page === route.page && JSON.stringify(state.route?.params) === JSON.stringify(route.params);
  state.route = route;
  state.page = route?.page ?? null;
  state.menu = false;
  if (!same) {
    state.data = null;
    state.problem = null;
    state.refused = null;
    forgetTyping();
    scrollTo(0, 0);
  }
  document.title = route ? `${route.page.title(route)} · Queen` : "Queen";
  draw();
  if (left) main.focus({ preventScroll: true });
  if (!same && document.activeElement !== document.body && !document.activeElement?.closest("dialog")) main.focus({ preventScroll: true });
  if (route) await load();
}

async function load() {
  const { page: shown, route } = state;
  if (!shown) return;
  turn += 1;
  const mine = turn;
  clearTimeout(timer);
  try {
    const data = await shown.load(route);
    if (mine !== turn) return;
    state.data = data;
    state.problem = null;
    state.refused = null;
    state.lost = false;
  } catch (error) {
    if (mine !== turn) return;
    const refused = error instanceof Refused && error.status === 403;
    if (refused) state.data = null;
    state.refused = refused ? sentence(error.message) : null;
    state.problem = refused ? null : error instanceof Refused ? error.message : `This page has failed: ${error.message}`;
    state.lost = error instanceof Refused && error.status === 0;
    if (error instanceof Refused && error.status === 404) {
      state.data = null;
      if (closeDialogs({ idle: true })) toast("What the dialog was about is gone.", "warn");
    }
    if (!(error instanceof Refused)) console.error(error);
  }
  draw();
  // What a token may not see is not asked for again and again: refusals are in the audit log.
  if (shown.every && !state.refused) timer = setTimeout(() => (document.hidden ? null : load()), shown.every);
}

function draw() {
  drawFrame();
  const { route, page: shown, data } = state;
  if (!route) {
    show(main, empty("There is no such page.", h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  const content = data ? shown.view(data, route, page) : state.refused ? notForToken(state.refused) : state.problem ? [] : [h("div", { class: "loading", role: "status" }, "Loading…")];
  // What a lost server has said last is shown, but not as if it were the present.
  const lost = live.state === "away" && problem(`This page has lost its server. ${sentence(live.sentence)} What is shown below is from ${time(live.since)}.`);
  const stale = h("div", { class: live.state === "away" || state.lost ? "page-content stale" : "page-content" }, content);
  show(main, h("div", { class: "page", "data-key": route.where }, lost, !lost && state.problem && problem(state.problem, state.problem && button("Try again", () => load())), stale));
}

/** The server is well, and has refused: nothing to try again, and nothing that is out of date. */
function notForToken(says) {
  return empty("Your token may not see this page.", says, " ", link("#/queues", "Queues"), " has those that it is for, with links to their messages and dead letters.");
}

function drawFrame() {
  const [tone, text] = STEPS[live.state];
  const here = state.route?.where.split("/")[0] ?? null;
  show(
    frame.header,
    button(icon("M3 6h18v2H3zm0 5h18v2H3zm0 5h18v2H3z"), () => toggleMenu(), { kind: "icon menu", title: "Menu" }),
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/assets/icon.svg", alt: "", width: 26, height: 26 }), "Queen"),
    h(
      "form",
      { class: "search", role: "search", onsubmit: searched, onkeydown: (event) => suggestions.key(event, event.currentTarget, drawFrame), onfocusout: leftSearch },
      h("input", { id: "search", type: "search", name: "q", placeholder: "Search queues, partitions, groups, messages", "aria-label": "Search", autocomplete: "off", spellcheck: "false", oninput: (event) => suggestions.ask(event.currentTarget.value.trim(), drawFrame) }),
      h("kbd", { "aria-hidden": "true" }, "/"),
      suggestions.view(drawFrame),
    ),
    h("span", { class: "live", role: "status", title: sentence(live.sentence) || "Figures are updated every second" }, badge(tone, text)),
    button(themeMark(), switchTheme, { kind: "icon", title: "Dark or light" }),
    button("?", showHelp, { kind: "icon help-button", title: "Keyboard" }),
    session.tokens && button("Sign out", signOut, { kind: "quiet" }),
  );
  frame.nav.classList.toggle("open", state.menu);
  show(
    frame.nav,
    h(
      "ul",
      {},
      NAVIGATION.map(([key, name, where, drawing]) =>
        h("li", {}, h("a", { href: `#/${where}`, "aria-current": here === where ? "page" : undefined, title: `${name} (g ${key})` }, icon(drawing), h("span", {}, name), where === "dead-letters" && live.now?.backlog?.deadLetters > 0 && h("span", { class: "count" }, count(live.now.backlog.deadLetters)))),
      ),
    ),
    h("p", { class: "who" }, session.tokens ? `${session.subject ?? "Your token"}: ${session.role}` : session.tokens === false && "No token is required"),
  );
}

function icon(drawing) {
  return h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: drawing }));
}

function count(value) {
  return value > 999 ? "999+" : String(value);
}

function toggleMenu(open = !state.menu) {
  state.menu = open;
  drawFrame();
}

function searched(event) {
  event.preventDefault();
  const field = event.currentTarget.querySelector("input");
  if (field.value.trim()) location.hash = `#/search?q=${encodeURIComponent(field.value.trim())}`;
  suggestions.close(drawFrame);
  field.blur();
}

function leftSearch(event) {
  if (!event.currentTarget.contains(event.relatedTarget)) suggestions.close(drawFrame);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeMark() {
  return icon(isDark() ? SUN : MOON);
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("queen.theme", theme);
  drawFrame();
}

function showHelp() {
  if (document.querySelector("dialog.help")) return;
  const keys = [["/", "Search"], ["g then a letter", NAVIGATION.map(([key, name]) => `${key} ${name.toLowerCase()}`).join(", ")], ["j and k", "Next and previous row"], ["Enter", "Open it"], ["r", "Reload now"], ["t", "Dark or light"], ["?", "This help"], ["Esc", "Close"]];
  const dialog = h("dialog", { class: "help", "aria-label": "Keyboard" }, h("h2", {}, "Keyboard"), h("dl", { class: "keys" }, keys.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))), h("div", { class: "actions" }, button("Close", () => dialog.close(), { kind: "primary" })));
  openDialog(dialog);
}

// Keyboard

let jumping = false;

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (state.menu) toggleMenu(false);
    if (event.target.matches?.("input")) event.target.blur();
    return;
  }
  if (event.target.closest?.("input, select, textarea") || document.querySelector("dialog[open]")) return;
  if (jumping) {
    jumping = false;
    const entry = NAVIGATION.find(([key]) => key === event.key);
    if (entry) location.hash = `#/${entry[2]}`;
    return;
  }
  const acts = { "/": focusSearch, "?": showHelp, g: () => (jumping = true), r: () => load(), t: switchTheme, j: () => step(1), k: () => step(-1) };
  const act = acts[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
}

function focusSearch() {
  document.getElementById("search").focus();
}

function step(by) {
  const links = [...main.querySelectorAll("tbody .first a, .letter-title a")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

// Tokens

let asking = false;

async function askForToken(words, failure) {
  if (asking) return;
  asking = true;
  const held = token.get();
  const known = await provider().catch(() => null);
  const says = h("p", { class: "says", role: "alert" }, failure ?? (held && `The server says: ${sentence(words)}`));
  const field = h("input", { type: "password", name: "token", required: true, autocomplete: "off", spellcheck: "false", "aria-label": "Token", placeholder: "queen_… or eyJ…" });
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", {}, "Your token"),
    h("p", {}, "This server requires a token: one that Queen has made (queen_…), or a JWT (eyJ…). It is kept in this tab only, and deleted when you close it."),
    says,
    known && [button(`Sign in at ${new URL(known.issuer).host}`, () => signIn(known).catch((error) => (says.textContent = error.message)), { kind: "primary" }), h("p", { class: "note" }, "or give a token:")],
    h("label", { class: "field" }, h("span", {}, "Token"), field),
    h("div", { class: "actions" }, button("Go on", null, { kind: known ? "" : "primary", type: "submit" })),
  );
  const dialog = h("dialog", { class: "token", "aria-label": "Your token" }, form);
  form.onsubmit = (event) => {
    event.preventDefault();
    token.set(field.value.trim().replace(/^Bearer\s+/i, ""));
    asking = false;
    dialog.close();
    begin();
  };
  dialog.oncancel = (event) => event.preventDefault();
  openDialog(dialog, { stays: true });
}

function signOut() {
  token.forget();
  location.reload();
}

async function begin() {
  try {
    Object.assign(session, { grants: null }, await get("/api/v1/session"));
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 403) session.role = "read-only";
  }
  again();
  await navigate();
}

function build() {
  frame = { header: h("header", { class: "top" }), nav: h("nav", { class: "side", "aria-label": "Pages" }) };
  main = h("main", { id: "main", tabindex: "-1" });
  document.getElementById("app").replaceChildren(frame.header, h("div", { class: "below" }, frame.nav, main), h("div", { id: "toasts", "aria-live": "polite" }));
  main.addEventListener("click", () => state.menu && toggleMenu(false));
}

build();
whenTokenIsWanted(askForToken);
document.addEventListener("keydown", pressed);
addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", () => !document.hidden && load());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawFrame);
let told = live.state;
listen(() => {
  const changed = told !== live.state;
  if (told === "away" && (live.state === "live" || live.state === "refused")) load();
  told = live.state;
  if (state.data && (changed || state.page?.live)) draw();
  else drawFrame();
});
if (isReturning()) {
  try {
    await finish();
  } catch (error) {
    token.forget();
    askForToken("", error.message);
  }
}
await begin();
keepWatching();
