"""Messages as lines: printed for people or as JSON, and read from files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.cli import exits

if TYPE_CHECKING:
    from queenmq.client import Message


def for_people(created_at: str, partition: str, transaction_id: str, payload: str) -> str:
    time = datetime.fromisoformat(created_at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    return exits.plain(f"{time}  {partition}  {transaction_id}  {payload}")


def for_scripts(message: Mapping[str, Any], payload: str) -> str:
    """A JSON object that ends with the payload, exactly as it was pushed."""
    return json.dumps(message, ensure_ascii=False)[:-1] + f', "data": {payload}}}'


def popped(message: Message, as_json: bool) -> str:
    """A popped message in one line, with the payload exactly as it was pushed."""
    payload = bytes(message.raw).decode()
    if not as_json:
        return for_people(message.created_at, message.partition, message.transaction_id, one_line(payload))
    told = {
        "queue": message.queue,
        "partition": message.partition,
        "partitionId": message.partition_id,
        "transactionId": message.transaction_id,
        "id": message.id,
        "consumerGroup": message.consumer_group,
        "leaseId": message.lease_id,
        "traceId": message.trace_id,
        "createdAt": message.created_at,
        "offset": message.offset,
        "retryCount": message.retry_count,
    }
    return for_scripts(told | ({"headers": message.headers} if message.headers else {}), one_line(payload))


def one_line(payload: str) -> str:
    """JSON without line breaks; within strings JSON has none, so nothing else is changed."""
    return " ".join(payload.split("\n")).replace("\r", " ") if "\n" in payload or "\r" in payload else payload


@dataclass(frozen=True)
class Line:
    number: int
    text: bytes


def read(file: IO[bytes]) -> Iterator[Line]:
    """The lines that are not empty."""
    for number, raw in enumerate(file, 1):
        if text := raw.strip():
            yield Line(number, text)


def check_json(text: bytes | str, what: str) -> None:
    """End the command unless it is JSON."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise exits.Failed(f"{what} is not JSON: {error}", exits.USAGE) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class MessageLine(Struct, rename="camel"):
    """A message as `pop --json` and `tail --json` print it."""

    data: Raw | UnsetType = UNSET
    partition: str = ""
    partition_id: str = ""
    transaction_id: str = ""
    lease_id: str = ""
    consumer_group: str = ""
    headers: dict[str, str] = {}


def message(line: Line, where: str) -> MessageLine:
    """The message on a line. Ends the command if it is none."""
    check_json(line.text, f"line {line.number} of {where}")
    try:
        return msgspec.json.decode(line.text, type=MessageLine)
    except msgspec.ValidationError as error:
        raise exits.Failed(f"line {line.number} of {where} is not a message: {error}", exits.USAGE) from None
