"""The options of a read and of a write: their names, what they may be, and sentences for what they may not. Pure.

Names and habits are those of Spark's Kafka connector where the meaning is the same. Spark hands the names over in
lower case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal
from urllib.parse import parse_qs, urlsplit

from queenmq.core.flags import parse_flag
from queenmq.core.names import DEFAULT_PARTITION, check_name
from queenmq.errors import InvalidRequest
from queenmq.pipeline.bounds import EARLIEST, LATEST, Bound, bound_of, parsed_json
from queenmq.pipeline.errors import BadOption

KEY_DIGITS: Final = 64
# Rows that become visible together: other pushes to their partitions wait for so many.
COMMIT_ROWS: Final = 5_000

Encrypted = Literal["fail", "null", "raw"]
BadValues = Literal["null", "mark", "fail"]

READ: Final = (
    "url",
    "subscribe",
    "tokenFile",
    "caFile",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "valueSchema",
    "badValues",
    "lenientFields",
    "encryptionKey",
    "encryptedPayloads",
)
WRITE: Final = (
    "url",
    "queue",
    "tokenFile",
    "caFile",
    "partition",
    "writeId",
    "batchId",
    "madeOf",
    "streamName",
    "repeatedWrite",
    "commitRows",
    "rowsPerSecond",
    "checkSchema",
    "encryptionKey",
    "encryptedFor",
)
# What only PostgreSQL itself can do; a server decrypts, encrypts and checks by itself.
_NOT_OVER_HTTP: Final = (
    *("encryptionKey", "encryptedPayloads", "encryptedFor", "streamName", "repeatedWrite", "madeOf", "commitRows"),
    *("rowsPerSecond", "checkSchema", "batchId"),
)
# Spark's own, which come along.
_FOREIGN: Final = frozenset({"path", "checkpointlocation", "queryname"})
# Of a table of a catalog.
_OF_TABLES: Final = frozenset(
    {"serialization.format", "provider", "owner", "location", "external", "is_managed_location", "comment", "collation"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    url: str = field(repr=False)
    queue: str
    partitions: frozenset[str] | None = None
    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    most_per_trigger: int | None = None
    least_tasks: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = False
    value_schema: str | None = None
    bad_values: BadValues = "null"
    lenient_fields: frozenset[str] = frozenset()
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    encrypted: Encrypted = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    url: str = field(repr=False)
    queue: str | None = None
    partition: str = DEFAULT_PARTITION
    write_id: str | None = None
    batch_id: int | None = None
    made_of: str | None = None
    stream_name: str | None = None
    strict: bool = True
    commit_rows: int = COMMIT_ROWS
    rate: float | None = None
    check_schema: bool = True
    checkpoint: str | None = None
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    encrypted_for: str | None = None
    """Queue for whose messages the values were encrypted that come encrypted; None: for the queue of the row."""


def parse_read(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Raises BadOption with a sentence that names the option. None: it is not known yet whether it is for a stream."""
    options = _known(given, READ, "read")
    queue = _queue(_required(options, "subscribe", "names the queue to read"), "subscribe")
    if streaming and any(name.lower() in options for name in READ if name.startswith("ending")):
        raise BadOption("a stream has no end: ending… options are for batch reads")
    partitions = _partitions(options.get("partitions"))
    start = bound_of(options, "starting", queue, LATEST if streaming else EARLIEST)
    end = bound_of(options, "ending", queue, LATEST)
    if start.others == LATEST and streaming is False:
        raise BadOption("startingOffsets cannot be 'latest' in a batch read: there would be nothing to read")
    if end.others == EARLIEST:
        raise BadOption("endingOffsets cannot be 'earliest': there would be nothing to read")
    return ReadOptions(
        url=_url(options),
        queue=queue,
        partitions=partitions,
        start=start,
        end=end,
        most_per_trigger=_positive(options, "maxOffsetsPerTrigger"),
        least_tasks=_positive(options, "minPartitions"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        headers=_flag(options, "includeHeaders", False),
        value_schema=options.get("valueschema"),
        bad_values=_bad_values(options.get("badvalues", "null")),
        lenient_fields=_lenient(options.get("lenientfields", "[]")),
        keys=_keys(options),
        encrypted=_encrypted(options.get("encryptedpayloads", "fail")),
    )


def parse_write(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Raises BadOption with a sentence that names the option."""
    options = _known(given, WRITE, "write")
    queue = options.get("queue")
    for name in ("writeId", "batchId", "madeOf") if streaming else ("streamName",):
        if name.lower() in options:
            kind, instead = (
                ("batch writes", "a stream's batches have a number") if streaming else ("streams", "writeId")
            )
            raise BadOption(f"{name} is for {kind}: {instead} instead")
    commit_rows, rate = _positive(options, "commitRows") or COMMIT_ROWS, _rate(options.get("rowspersecond"))
    return WriteOptions(
        url=_url(options),
        queue=None if queue is None else _queue(queue, "queue"),
        partition=_name(options.get("partition", DEFAULT_PARTITION), "partition"),
        write_id=options.get("writeid"),
        batch_id=_batch(options),
        made_of=options.get("madeof"),
        stream_name=options.get("streamname"),
        strict=_repeated(options.get("repeatedwrite", "check")),
        # What may come in a second, lest it be bursts with long pauses between them.
        commit_rows=commit_rows if rate is None else min(commit_rows, max(1, int(rate))),
        rate=rate,
        check_schema=_flag(options, "checkSchema", True),
        checkpoint=next((value for name, value in given.items() if name.lower() == "checkpointlocation"), None),
        keys=_keys(options),
        encrypted_for=options.get("encryptedfor"),
    )


def _known(given: Mapping[str, str], names: tuple[str, ...], verb: str) -> dict[str, str]:
    lowered = {name.lower(): name for name in names}
    options = {}
    # A table of a catalog brings its options as `option.…`, sometimes beside the options themselves, which count.
    for name, value in sorted(given.items(), key=lambda item: not item[0].lower().startswith("option.")):
        short = name.lower().removeprefix("option.")
        if short in _FOREIGN | _OF_TABLES or short.startswith("spark."):
            continue
        if short not in lowered:
            near = get_close_matches(short, lowered, 1)
            hint = f"did you mean {lowered[near[0]]}?" if near else f"a {verb} knows {', '.join(names)}"
            raise BadOption(f"unknown option {name}: {hint}")
        options[short] = value
    return options


def shows_secret(options: Mapping[str, str]) -> str | None:
    """What of the options must not be seen by others, in words; None if nothing."""
    given = {name.lower().removeprefix("option."): value for name, value in options.items()}
    if "encryptionkey" in given:
        return "encryptionKey out"
    found = urlsplit(given.get("url", ""))
    secret = found.password or {"password", "sslpassword"} & parse_qs(found.query).keys()
    return "the password out of url" if secret else None


def _required(options: Mapping[str, str], name: str, why: str) -> str:
    value = options.get(name.lower(), "")
    if not value:
        raise BadOption(f"the option {name} is missing: it {why}")
    return value


def _url(options: Mapping[str, str]) -> str:
    url = _required(options, "url", "is the connection URL of PostgreSQL ('queen db url' prints the bundled one's)")
    if over_http(url):
        if refused := [name for name in _NOT_OVER_HTTP if name.lower() in options]:
            raise BadOption(f"{refused[0]} is for a url of PostgreSQL: a server of Queen does without")
    elif not re.match(r"postgres(ql)?://", url):
        raise BadOption(
            "url must be a PostgreSQL connection URL (postgresql://user:password@host:port/database), or that of a "
            "server of Queen (https://host:port)"
        )
    elif given := [name for name in ("tokenFile", "caFile") if name.lower() in options]:
        raise BadOption(f"{given[0]} is for the url of a server of Queen (https://host:port)")
    return url


def over_http(url: str) -> bool:
    """Whether it is the URL of a server of Queen."""
    return url.lower().startswith(("http://", "https://"))


def _name(value: str, option: str) -> str:
    try:
        check_name(value, option)
    except InvalidRequest as error:
        raise BadOption(error.message) from None
    return value


def _queue(value: str, option: str) -> str:
    return _name(value, option)


def _positive(options: Mapping[str, str], name: str) -> int | None:
    raw = options.get(name.lower())
    if raw is None:
        return None
    if not raw.isdecimal() or int(raw) < 1:
        raise BadOption(f"{name} must be a whole number above 0, not {raw!r}")
    return int(raw)


def _batch(options: Mapping[str, str]) -> int | None:
    raw = options.get("batchid")
    if raw is None:
        return None
    if not raw.isdecimal():
        raise BadOption(f"batchId must be a whole number, not {raw!r}")
    if "writeid" not in options:
        raise BadOption("batchId numbers the writes of a writeId, which is missing")
    return int(raw)


def _rate(raw: str | None) -> float | None:
    if raw is None:
        return None
    try:
        rate = float(raw)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < float("inf"):
        raise BadOption(f"rowsPerSecond must be a number above 0, not {raw!r}")
    return rate


def _flag(options: Mapping[str, str], name: str, usual: bool) -> bool:
    raw = options.get(name.lower())
    if raw is None:
        return usual
    try:
        return parse_flag(raw)
    except ValueError:
        raise BadOption(f"{name} must be true or false, not {raw!r}") from None


def _encrypted(raw: str) -> Encrypted:
    match raw:
        case "fail" | "null" | "raw":
            return raw
    raise BadOption(f"encryptedPayloads must be fail, null or raw, not {raw!r}")


def _bad_values(raw: str) -> BadValues:
    match raw:
        case "null" | "mark" | "fail":
            return raw
    raise BadOption(f"badValues must be null, mark or fail, not {raw!r}")


def _lenient(raw: str) -> frozenset[str]:
    fields = parsed_json(raw, "lenientFields")
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise BadOption("lenientFields must be a JSON list of fields")
    return frozenset(fields)


def _repeated(raw: str) -> bool:
    if raw not in ("check", "skip"):
        raise BadOption(f"repeatedWrite must be check or skip, not {raw!r}")
    return raw == "check"


def _keys(options: Mapping[str, str]) -> tuple[bytes, ...]:
    """Several keys are separated by commas: the first one encrypts."""
    raw = options.get("encryptionkey")
    if raw is None:
        return ()
    parts = [part.strip() for part in raw.split(",")]
    if not all(re.fullmatch(rf"[0-9a-fA-F]{{{KEY_DIGITS}}}", part) for part in parts):
        raise BadOption(f"encryptionKey must be {KEY_DIGITS} hexadecimal digits, or several such with commas")
    return tuple(bytes.fromhex(part) for part in parts)


def _partitions(raw: str | None) -> frozenset[str] | None:
    """A JSON list of names, or one name."""
    if raw is None:
        return None
    if not raw.startswith("["):
        return frozenset((_name(raw, "partitions"),))
    names = parsed_json(raw, "partitions")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadOption("partitions must be a name or a JSON list of names")
    return frozenset(names)


def key_of_environment() -> str | None:
    """The option `encryptionKey` as the variables of a server have it, for jobs that are started where those are."""
    key, previous = os.environ.get("QUEEN_ENCRYPTION_KEY"), os.environ.get("QUEEN_ENCRYPTION_KEYS_PREVIOUS")
    return ",".join(part.strip() for part in (key, previous) if part and part.strip()) if key else None
