"""POST /api/v1/fetch: messages read by offset or by time, without a group"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.core.encryption import Place
from queenmq.core.names import check_name, iso_millis, parse_timestamp
from queenmq.errors import InvalidRequest, QueenError
from queenmq.http.answers.messages import FetchedEntry, FetchedRecord, FetchError, MessagesFetched
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.requests import FetchBody, FetchEntry
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import headers_shown
from queenmq.httpserver.messages import Request, Response
from queenmq.reports.fetch import Fetched, StoredMessage, Wanted, fetch

_TEXTS = {"entries": "entries array is required"}
_decoder = msgspec.json.Decoder(FetchBody)


@documented({200: MessagesFetched}, body=FetchBody)
async def fetch_messages(request: Request, context: Context) -> Response:
    """Messages of partitions from an offset or a moment on: without a group, a lease or a position.

    The answer has an entry for each that is asked for, in order. It ends where `limit`, `maxBytes` or the bounds of the
    server say; `nextOffset` is where to go on.
    """
    body = _read(request)
    limits = context.settings.limits
    check_count(len(body.entries), context.settings, "entries")
    most_bytes = limits.max_answer_bytes if body.max_bytes is None else min(body.max_bytes, limits.max_answer_bytes)
    share = max(1, limits.max_items // max(1, len(body.entries)))
    wanted = [_wanted(one, f"entries[{index}]", share, most_bytes) for index, one in enumerate(body.entries)]
    found = await fetch(context.reports, wanted, most_bytes) if wanted else []
    entries = [_entry(one, fetched, context.broker) for one, fetched in zip(wanted, found, strict=True)]
    return Response(200, MessagesFetched(entries=entries))


def _read(request: Request) -> FetchBody:
    body = request.parsed
    if not isinstance(body, FetchBody):
        body = request.parsed = decode(request.body, _decoder, _TEXTS)
    return body


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    entries = _read(request).entries
    check_count(len(entries), context.settings, "entries")
    return [Need(Verb.READ, queue) for queue in {entry.queue for entry in entries}]


def _wanted(entry: FetchEntry, field: str, share: int, most_bytes: int) -> Wanted:
    check_name(entry.queue, f"{field}.queue")
    check_name(entry.partition, f"{field}.partition")
    if entry.offset is not None and entry.since is not None:
        raise InvalidRequest(f"{field} has both offset and since", f"{field}.since")
    return Wanted(
        queue=entry.queue,
        partition=entry.partition,
        offset=None if entry.since is not None else entry.offset or 0,
        since=None if entry.since is None else parse_timestamp(entry.since, f"{field}.since"),
        limit=share if entry.limit is None else max(1, min(entry.limit, share)),
        max_bytes=most_bytes if entry.max_bytes is None else min(entry.max_bytes, most_bytes),
    )


def _entry(wanted: Wanted, found: Fetched | None, broker: Broker) -> FetchedEntry:
    if found is None:
        return _without_records(wanted, "UNKNOWN_TOPIC_OR_PARTITION", 0, 0)
    end = found.last_offset + 1
    # 0 is the beginning, wherever that is. Of other offsets, what is gone must be noticed.
    asked = wanted.offset or None
    if asked is not None and not found.first_offset <= asked <= end:
        return _without_records(wanted, "OFFSET_OUT_OF_RANGE", end, found.first_offset)
    records: list[FetchedRecord] = []
    problem: QueenError | None = None
    for message in found.messages:
        try:
            records.append(_record(wanted, message, broker))
        except QueenError as error:
            problem = error
            break
    if problem is not None and not records:
        shown = _without_records(wanted, "CANNOT_DECRYPT", end, found.first_offset)
        shown.message = problem.message
        return shown
    shown = _without_records(wanted, None, end, found.first_offset)
    shown.records = records
    shown.next_offset = records[-1].offset + 1 if records else max(found.start, found.first_offset)
    return shown


def _without_records(wanted: Wanted, error: FetchError | None, end: int, start: int) -> FetchedEntry:
    return FetchedEntry(
        queue=wanted.queue,
        partition=wanted.partition,
        error=error or msgspec.UNSET,
        records=[],
        high_watermark=end,
        log_start_offset=start,
        next_offset=wanted.offset or start,
    )


def _record(wanted: Wanted, message: StoredMessage, broker: Broker) -> FetchedRecord:
    """Raises NoEncryptionKey or DecryptionFailed."""
    payload = message.payload
    if message.is_encrypted:
        payload = broker.encryption.open(payload, Place(wanted.queue, wanted.partition, message.transaction_id))
    return FetchedRecord(
        offset=message.offset,
        id=str(message.id),
        transaction_id=message.transaction_id,
        payload=msgspec.Raw(payload),
        ts=iso_millis(message.created_at),
        trace_id=None if message.trace_id is None else str(message.trace_id),
        producer_sub=message.producer_sub,
        headers=headers_shown(message.headers),
    )


ROUTES = (Route("POST", "/api/v1/fetch", fetch_messages, Role.READ_ONLY, scope=_scope),)
