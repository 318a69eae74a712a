"""The process around a supervisor (`queen pipeline run`): it starts drivers, answers health checks, ends in order."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from queenmq.clock import SYSTEM, Clock
from queenmq.pipeline.leases import Leases
from queenmq.pipeline.supervisor import DRAIN_S, LEASE_S, Held, Supervisor

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
# After so long without a tick the process hangs; after so long without PostgreSQL it is not healthy.
HUNG_S: Final = 60.0
AWAY_S: Final = 30.0
_REQUEST_S: Final = 5.0


class DriverProcess:
    """A driver, its JVM and its workers: a group of its own, so that a Ctrl-C at the terminal does not reach them."""

    def __init__(self, url: str, held: Held, generation: int) -> None:
        order = {
            "url": url,
            "name": held.name,
            "version": held.version,
            "generation": generation,
            "declaration": held.declaration,
            "state_number": held.state_number,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "queenmq.pipeline.driver"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )
        pipe: Any = self._process.stdin
        with suppress(BrokenPipeError):  # it has ended already, and its status says why
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None:
            # What is left of it, such as a JVM whose driver was killed.
            self._end_group()
        return status

    def drain(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._end_group()
        self._process.wait()

    def _end_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Health:
    """What the health checks say, as the last tick has left it."""

    def __init__(self, supervisor: Supervisor, clock: Clock = SYSTEM) -> None:
        self._supervisor = supervisor
        self._clock = clock

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """`/live`: whether the process should be restarted; `/health`: whether all is as it should be."""
        supervisor, now = self._supervisor, self._clock.monotonic()
        alive = now - supervisor.ticked < HUNG_S
        if path == "/live":
            return (200 if alive else 503), {"alive": alive}
        if path != "/health":
            return 404, {"error": "there are /health and /live"}
        states = {name: unit.state for name, unit in list(supervisor.units.items())}
        reached = supervisor.reached is not None and now - supervisor.reached < AWAY_S
        troubled = sorted(name for name, state in states.items() if state in ("waiting", "failed"))
        healthy = alive and reached and not troubled
        body = {"healthy": healthy, "database": reached, "pipelines": states, "troubled": troubled}
        return (200 if healthy else 503), body


def health_server(health: Health, host: str, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            status, body = health.answer(self.path.partition("?")[0])
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Checks come every few seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pipeline-health", daemon=True).start()
    return server


def supervise(
    url: str,
    *,
    only: list[str] | None = None,
    listen: tuple[str, int] | None = None,
    drain_s: float = DRAIN_S,
    lease_s: float = LEASE_S,
    ready: Callable[[Supervisor], None] = lambda _: None,
) -> int:
    """Run until SIGTERM or Ctrl-C, then drain. Returns 0, or 1 if a driver had to be killed.

    Raises PipelineError if PostgreSQL cannot be reached at the start, OSError if the port is taken.
    """
    leases = Leases(url, only, lease_s)
    supervisor = Supervisor(leases, lambda held, generation: DriverProcess(url, held, generation), drain_s=drain_s)
    leases.hold(take=False)  # a wrong URL is reported at once
    server = health_server(Health(supervisor), *listen) if listen is not None else None
    woken = threading.Event()

    def stop(*_: object) -> None:
        supervisor.stopping = True
        woken.set()

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    ready(supervisor)
    try:
        while not supervisor.is_done:
            supervisor.tick()
            if woken.wait(TICK_S):
                woken.clear()
        supervisor.tick()  # the leases that are left are given back
    finally:
        for unit in supervisor.units.values():
            if unit.child is not None:
                unit.child.kill()
        leases.close()
        if server is not None:
            server.shutdown()
            server.server_close()
        for one, handler in before.items():
            signal.signal(one, handler)
    return 1 if supervisor.killed else 0
