"""`queen top` at a real pseudo-terminal, and into a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest
from server_settings import settings_with

from cli.conftest import Run, Running, serving, until
from cli.terminal import Terminal
from queenmq.cli.commands.top import _keys, _parsed
from queenmq.client import BlockingQueen

HIDDEN, SHOWN = "\x1b[?1049h", "\x1b[?1049l"


@pytest.mark.parametrize("key", [b"q", b"\x03", b"\x1b"], ids=["q", "Ctrl-C", "Escape"])
def test_it_is_drawn_and_a_key_ends_it(running: Running, queen: Run, name: str, tmp_path: Path, key: bytes) -> None:
    queen("push", name, "1", "2")
    queen("pop", name, "--group", f"g-{name}", "--ack")
    with Terminal("top", "--every", "0.1", "--rows", "1000", url=running.url, folder=tmp_path) as terminal:
        terminal.until("waiters")
        terminal.until("every 0.1 s; q ends")
        assert HIDDEN in terminal.drawn
        assert not terminal.echoes
        terminal.press(key)
        assert terminal.end() == 0
        assert SHOWN in terminal.drawn
        assert terminal.echoes
        assert "Traceback" not in terminal.drawn


def test_where_there_is_no_termios_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where Ctrl-C ends it."""
    monkeypatch.setitem(sys.modules, "termios", None)
    with _keys() as key:
        assert key(0.001) is None


def test_the_terminal_is_left_as_it_was_when_it_is_terminated(running: Running, tmp_path: Path) -> None:
    with Terminal("top", "--every", "0.1", url=running.url, folder=tmp_path) as terminal:
        terminal.until("q ends")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert SHOWN in terminal.drawn
        assert terminal.echoes


def test_it_shows_what_happens(running: Running, name: str, tmp_path: Path) -> None:
    """A waiting long poll appears, and so does a push."""
    with (
        BlockingQueen(running.url) as client,
        Terminal("top", "--every", "0.1", url=running.url, folder=tmp_path) as top,
    ):
        client.queue(name).create()
        top.until("waiters 0")
        waiting = threading.Thread(target=client.queue(name).group("g").timeout_millis(60_000).pop)
        waiting.start()
        top.until("waiters 1")
        client.queue(name).push("wake up")
        waiting.join()
        top.until("waiters 0", top.drawn.rindex("waiters 1"))
        top.press(b"q")
        assert top.end() == 0


def test_a_server_that_goes_away_does_not_end_it(database_url: str, tmp_path: Path) -> None:
    with serving(settings_with(), database_url) as server:
        top = Terminal("top", "--every", "0.1", url=server.url, folder=tmp_path)
        top.until("q ends")
    with top:
        top.until("no answer")
        top.press(b"q")
        assert top.end() == 0


def test_into_a_pipe_it_is_one_picture(queen: Run, name: str) -> None:
    queen("push", name, stdin="1\n2\n3\n")
    queen("pop", name, "--group", f"g-{name}", "--ack")
    picture = queen("top", "--every", "0.01", "--rows", "1000")
    assert (picture.status, name in picture.out, "now" in picture.out) == (0, True, True)

    def pending() -> list[int]:
        rows = queen("top", "--every", "0.01", "--json").json["queues"]
        return [row["pending"] for row in rows if row["queue"] == name]

    until(pending, [2])
    told = queen("top", "--every", "0.01", "--json").json
    assert f"g-{name}" in [group["name"] for group in told["groups"]]
    assert set(told["ratesPerSecond"]) == {"push", "pop", "ack"}
    assert told["moreGroups"] == 0


def test_samples_of_prometheus_are_read() -> None:
    text = '# HELP a b\na 1\nb{queue="x\\"y\\\\n",z="2"} 3.5\nc{queue="l\\nm"} 1e3\n'
    assert _parsed(text) == {
        ("a", ()): 1.0,
        ("b", (("queue", 'x"y\\n'), ("z", "2"))): 3.5,
        ("c", (("queue", "l\nm"),)): 1000.0,
    }
