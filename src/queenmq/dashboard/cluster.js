// The cluster: who is there, how loaded they are, what their caches are worth; and the maintenance switches.

import { Refused, get, may, post } from "./api.js";
import { bar } from "./chart.js";
import { h } from "./dom.js";
import { bytes, number, percent, rate } from "./format.js";
import { ask, badge, button, code, empty, facts, heading, moment, panel, table, tile, tiles } from "./ui.js";

const SILENT_MS = 10000;

export const cluster = {
  title: () => "Cluster",
  every: 2000,

  async load() {
    const [balance, shared, maintenance] = await Promise.all([get("/api/v1/cluster/balance"), allowed("/api/v1/system/shared-state"), allowed("/api/v1/system/maintenance")]);
    return { balance, shared, maintenance };
  },

  view({ balance, shared, maintenance }, route, page) {
    const beats = shared?.server_health?.last_heartbeat ?? {};
    const lives = (row) => row.local || row.healthy || Date.now() - Date.parse(beats[row.server_id] ?? 0) < SILENT_MS;
    const silent = Object.keys(beats).filter((name) => !balance.servers.some((server) => server.server_id === name));
    const rows = [...balance.servers, ...silent.map((name) => ({ server_id: name, url: "", healthy: false, missing: true }))];
    return [
      heading("Cluster", { note: balance.coordinator_enabled ? "The coordinator forwards requests to the server that serves them best." : "Every server serves the requests that it gets; the coordinator is off." }),
      tiles(
        tile("Servers", number(rows.length), { note: `${number(rows.filter(lives).length)} alive`, tone: rows.some((row) => !lives(row)) ? "bad" : "" }),
        tile("Balance", balance.balanced ? badge("good", "Even") : badge("warn", "Uneven"), { note: `distance ${balance.imbalance_score.toFixed(2)}` }),
        tile("Forwarded", number(balance.forwarded), { note: `${number(balance.fallbacks)} served here after all` }),
        shared && tile("Option cache", hitRate(shared.queue_config_cache), { note: `${number(shared.queue_config_cache.size)} queues` }),
        shared && tile("Partition cache", hitRate(shared.partition_id_cache), { note: `${number(shared.partition_id_cache.size)} partitions` }),
        shared && tile("Correct lease hints", percent(shared.lease_hints.accuracy), { note: `${number(shared.lease_hints.hints_checked)} checked, ${number(shared.lease_hints.hints_used)} used` }),
      ),
      panel(
        "Members",
        {},
        table({
          label: "Members",
          rows,
          key: (row) => row.server_id,
          none: empty("No server is known."),
          columns: [
            { name: "Server", cell: (row) => [h("span", { class: "strong" }, row.server_id), row.local && h("span", { class: "note" }, " answers you")] },
            { name: "Health", cell: (row) => (lives(row) ? badge("good", "Alive") : shared || balance.coordinator_enabled ? badge("bad", "Silent") : badge("calm", "Known")) },
            { name: "Load", num: true, cell: (row) => (row.missing ? "–" : h("span", { class: "with-bar" }, h("span", {}, row.load_score.toFixed(2)), bar(row.load_score, row.load_score > 0.9 ? "bad" : "one"))) },
            { name: "Long polls", num: true, cell: (row) => (row.missing ? "–" : rate(row.parked_polls)) },
            { name: "Requests", num: true, cell: (row) => (row.missing ? "–" : rate(row.outstanding_requests)) },
            { name: "Processor", num: true, cell: (row) => (row.missing ? "–" : `${rate(row.cpu_percent)} %`) },
            { name: "Circuit", cell: (row) => (row.missing ? "–" : row.circuit === "closed" ? badge("good", "Closed") : badge("warn", row.circuit === "open" ? "Open" : "Half open")) },
            { name: "Heartbeat", cell: (row) => (row.local ? "–" : moment(beats[row.server_id])) },
          ],
        }),
        rows.some((row) => !lives(row)) && h("p", { class: "advice" }, h("b", {}, "What to do: "), "start the silent server again, or look why its packets do not arrive (UDP port, QUEEN_SYNC_SECRET); one that will not come back is forgotten when it is no longer in QUEEN_UDP_PEERS. Nothing is lost meanwhile: the others serve everything but what its journal holds."),
      ),
      shared ? details(shared, balance) : panel("Caches and packets", {}, empty("Your token does not allow you to see these.", "They need the role admin.")),
      panel("Maintenance", { note: "Both switches are stored in the database and apply to every server at once" }, maintenance ? switches(maintenance, page) : empty("Your token does not allow you to use the switches.", "They need the role admin.")),
    ];
  },
};

/** What only administrators may see is left out for others. */
async function allowed(where) {
  if (!may("admin")) return null;
  try {
    return await get(where);
  } catch (error) {
    if (error instanceof Refused && error.status === 403) return null;
    throw error;
  }
}

function hitRate({ hits, misses }) {
  return hits + misses ? percent(hits / (hits + misses)) : "–";
}

function details(shared, balance) {
  const dropped = Object.entries(shared.transport.dropped).filter(([, count]) => count);
  const lanes = Object.entries(shared.sidecar.operations);
  return h(
    "div",
    { class: "columns" },
    panel(
      "Merged database calls",
      { note: "Requests of one kind that wait together become one call" },
      table({
        label: "Merged database calls",
        rows: lanes,
        key: ([name]) => name,
        none: null,
        columns: [
          { name: "Kind", cell: ([name]) => h("span", { class: "strong" }, name.replaceAll("_", " ")) },
          { name: "Calls", num: true, cell: ([, lane]) => number(lane.calls) },
          { name: "Requests a call", num: true, cell: ([, lane]) => (lane.calls ? rate(lane.requests / lane.calls) : "–") },
          { name: "Time a call", num: true, cell: ([, lane]) => (lane.calls ? `${rate((lane.seconds / lane.calls) * 1000)} ms` : "–") },
          { name: "Waiting", num: true, cell: ([, lane]) => number(lane.pending) },
        ],
      }),
    ),
    panel(
      "Packets and hints",
      { note: shared.enabled ? "Signed packets between the servers" : "This server has no peers" },
      facts(
        ["Sent", `${number(shared.transport.packets_sent)} packets, ${bytes(shared.transport.bytes_sent)}`],
        ["Received", `${number(shared.transport.packets_received)} packets, ${bytes(shared.transport.bytes_received)}`],
        ["Dropped", dropped.length ? dropped.map(([why, count]) => `${why.replaceAll("_", " ")}: ${number(count)}`).join(", ") : "none"],
        ["Targeted wake-ups", `${number(shared.consumer_presence.notifications_targeted)}, to everyone ${number(shared.consumer_presence.notifications_broadcast)}, saved ${number(shared.consumer_presence.notifications_saved)}`],
        ["Lease hints", `${number(shared.lease_hints.size)} kept, ${number(shared.lease_hints.hints_wrong)} wrong`],
        ["Consumer routes", `${number(balance.affinity.routes)}, moved ${number(balance.affinity.migrated)}, broken ${number(balance.affinity.broken)}`],
        ["Restarts seen", number(shared.server_health.restarts_detected)],
        ["Epoch", code(String(shared.epoch))],
      ),
    ),
  );
}

function switches(state, page) {
  const row = (name, on, path, onText, offText) =>
    h(
      "div",
      { class: "switch-row" },
      h("div", {}, h("b", {}, name), " ", on ? badge("warn", "On") : badge("good", "Off"), h("p", { class: "note" }, on ? onText : offText)),
      button(on ? "Switch off" : "Switch on", () => move(name, !on, path, page), { kind: on ? "primary" : "danger" }),
    );
  return [
    row("Push maintenance", state.maintenanceMode, "/api/v1/system/maintenance", `Pushes are kept in the journals; ${number(state.bufferedMessages)} messages are in the one of this server.`, "Pushes go to the database."),
    row("Pop maintenance", state.popMaintenanceMode, "/api/v1/system/maintenance/pop", "Consumers get no messages; long polls wait.", "Consumers get their messages."),
  ];
}

function move(name, on, path, page) {
  ask({
    title: `${on ? "Switch on" : "Switch off"}: ${name.toLowerCase()}?`,
    text: "The switch applies to every server at once and survives restarts.",
    action: on ? "Switch on" : "Switch off",
    danger: on,
    act: async () => (await post(path, { enabled: on })).message,
    done: page.reload,
  });
}
