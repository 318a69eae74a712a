"""`queen tail`: follow a queue live.

It polls the listing of messages and pops nothing, so consumer groups are not affected, even if it is killed.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlencode

import click
import msgspec
from msgspec import Raw, Struct

from queenmq.cli import exits, lines
from queenmq.cli.arguments import AMOUNT, COUNT, Kind, as_json
from queenmq.cli.fetch import fetch
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, pause, queue, require_queue, server, servers
from queenmq.cli.show import note, now

_LONG_AGO: Final = timedelta(days=365)
# Messages may become visible a little after the moment that they bear.
_OVERLAP: Final = timedelta(seconds=10)
_MOST: Final = 1000
_ATTEMPTS: Final = 60
_PAUSE_S: Final = 0.5


def _last(raw: str) -> int:
    if not raw.isdecimal() or int(raw) > _MOST:
        raise ValueError(f"{raw!r} is not a number between 0 and {_MOST}")
    return int(raw)


@command_of("tail", "queen tail orders", "queen tail orders --partition customer-7 --last 100 --json | jq .data")
@queue
@click.option("-p", "--partition", metavar="NAME", help="Show only messages of this partition.")
@click.option(
    "--last", type=Kind("N", _last), default=10, show_default=True, metavar="N", help="Start with the last N messages."
)
@click.option("--limit", type=COUNT, metavar="N", help="Stop after N messages.")
@click.option("--seconds", type=AMOUNT, metavar="S", help="Stop after this many seconds.")
@click.option("--every", type=AMOUNT, default=0.5, show_default=True, metavar="S", help="Seconds between two polls.")
@as_json
@server
def command(
    queue: str,
    partition: str | None,
    last: int,
    limit: int | None,
    seconds: float | None,
    every: float,
    as_json: bool,
    server: str,
) -> int:
    """Print the messages of QUEUE as they are pushed, until Ctrl-C.

    It pops nothing and does not affect consumer groups. With --json each line is one message.
    """
    from queenmq.clock import SYSTEM

    end = None if seconds is None else SYSTEM.monotonic() + seconds
    shown = 0
    try:
        with connected(server) as queen:
            require_queue(queen, queue)
        if not as_json and sys.stderr.isatty():
            note(f"Following {queue}. Ctrl-C ends.")
        view = _View(server, queue, partition)
        found = view.first(last)
        while True:
            for message in found[: None if limit is None else limit - shown]:
                print(_line(message, as_json))
                shown += 1
            sys.stdout.flush()
            if shown == limit or (end is not None and SYSTEM.monotonic() >= end):
                return exits.OK
            pause(every)
            found = view.more()
    except KeyboardInterrupt:
        return exits.OK


def _line(message: _Listed, as_json: bool) -> str:
    payload = lines.one_line(bytes(message.payload).decode())
    if not as_json:
        return lines.for_people(message.created_at, message.partition, message.transaction_id, payload)
    told = {
        "queue": message.queue,
        "partition": message.partition,
        "partitionId": message.partition_id,
        "transactionId": message.transaction_id,
        "id": message.id,
        "createdAt": message.created_at,
    }
    return lines.for_scripts(told | ({"headers": message.headers} if message.headers else {}), payload)


class _Listed(Struct, rename="camel"):
    """A message of the listing, with its payload exactly as it was pushed."""

    id: str
    queue: str
    partition: str
    partition_id: str
    transaction_id: str
    created_at: str
    payload: Raw = Raw(b"null")
    omitted: bool = False
    headers: dict[str, str] = {}

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(self.created_at)


class _Listing(Struct):
    messages: list[_Listed]


class _Described(Struct):
    payload: Raw = Raw(b"null")


class _View:
    """Remembers the messages that were shown, as long as the listing can return them again."""

    def __init__(self, server: str, queue: str, partition: str | None) -> None:
        self._servers = servers(server)
        self._narrowed = {"queue": queue} | ({"partition": partition} if partition else {})
        self._seen: dict[str, datetime] = {}
        self._newest: datetime | None = None
        self._begin: datetime | None = None

    def first(self, last: int) -> list[_Listed]:
        """The last messages, oldest first. All others that are stored now count as seen."""
        found = self._new(self._list(max(last, 1), payload=True))
        self._begin = self._newest
        if self._newest is not None:
            for other in self._list(_MOST, payload=False, since=self._newest):
                if other.at <= self._newest:
                    self._seen[other.id] = other.at
        return found[-last:] if last else []

    def more(self) -> list[_Listed]:
        """Messages stored since the last call, oldest first."""
        fresh = self._new(self._list(_MOST, payload=True))
        if len(fresh) == _MOST:
            note("queen: messages arrive faster than they can be shown; some were left out")
        return fresh

    def _new(self, listed: list[_Listed]) -> list[_Listed]:
        fresh = [one for one in listed if one.id not in self._seen and (self._begin is None or one.at >= self._begin)]
        for one in fresh:
            if one.omitted:
                one.payload = self._payload(one)
            self._seen[one.id] = one.at
            self._newest = one.at if self._newest is None else max(one.at, self._newest)
        if self._newest is not None:
            horizon = self._newest - 2 * _OVERLAP
            self._seen = {id_: at for id_, at in self._seen.items() if at >= horizon}
        return fresh

    def _list(self, limit: int, *, payload: bool, since: datetime | None = None) -> list[_Listed]:
        if since is None:
            since = (now() - _LONG_AGO) if self._newest is None else self._newest - _OVERLAP
        query = self._narrowed | {"from": since.isoformat(), "limit": str(limit), "payload": str(payload).lower()}
        body = self._fetch("/api/v1/messages?" + urlencode(query))
        try:
            return msgspec.json.decode(body, type=_Listing).messages[::-1]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise exits.Failed(f"the server is not a Queen server: {error}", exits.UNAVAILABLE) from None

    def _payload(self, message: _Listed) -> Raw:
        """The payload of a message for which the listing omitted it."""
        path = f"/api/v1/messages/{message.partition_id}/{quote(message.transaction_id, safe='')}"
        try:
            return msgspec.json.decode(self._fetch(path), type=_Described).payload
        except (msgspec.MsgspecError, RecursionError) as error:
            raise exits.Failed(f"the server is not a Queen server: {error}", exits.UNAVAILABLE) from None
        except exits.Failed as error:
            if error.status == exits.UNAVAILABLE:
                raise
            return Raw(b"null")  # it is deleted meanwhile

    def _fetch(self, path: str) -> bytes:
        """The answer of the first server that works, with retries for about 30 s."""
        for attempt in range(_ATTEMPTS):
            server = self._servers[attempt % len(self._servers)]
            try:
                answer = fetch(server, path)
            except OSError as error:
                told = f"no answer from {server} ({error})"
            else:
                if answer.status == 200:
                    return answer.body
                told = f"{server} answered {answer.status}"
                if answer.status < 500 and answer.status != 429:
                    raise exits.Failed(told)
            if attempt == 0:
                note(f"queen: {told}; trying again")
            pause(_PAUSE_S)
        raise exits.Failed(told, exits.UNAVAILABLE)
