"""Rows of a data frame as they are staged: defaults, checks, encryption. No I/O.

What the server checks of a push is checked here: names, ids, and that the value is JSON, because it goes out as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final
from zlib import crc32

import msgspec

from queenmq.core.encryption import DecryptionFailed, PayloadKeys, Place, is_bound
from queenmq.core.headers import encode_headers
from queenmq.core.names import check_name
from queenmq.errors import InvalidRequest
from queenmq.ids import is_uuid, uuid7_text
from queenmq.pipeline.columns import HEADERS_TYPE
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.registry import CheckedQueues

COLUMNS: Final = ("value", "queue", "partition", "transactionId", "traceId", "messageId", "encrypted", "headers")
# What `headers` of a row may be: as Spark's Kafka connector has them, or a map.
HEADERS_TYPES: Final = (HEADERS_TYPE, "array<struct<key:string,value:string>>", "map<string,string>")
# Sums over rows stay within a bigint.
CHECKSUM_MASK: Final = (1 << 62) - 1
_SHOWN: Final = 80

_decoder: Final = msgspec.json.Decoder()


class Stager:
    """Makes the staging rows of one task attempt."""

    def __init__(self, options: WriteOptions, encrypted: set[str], schemas: CheckedQueues | None = None) -> None:
        import pyarrow

        self._pa = pyarrow
        self._options = options
        self._keys = PayloadKeys(options.keys) if options.keys else None
        self._encrypted = encrypted
        self._schemas = schemas or {}
        self._checked: dict[str, set[str]] = {"queue": set(), "partition": set()}
        self.rows = 0
        self.checksum = 0

    def make(self, batch: Any) -> Any:
        """The rows of a batch as they are staged. Raises PipelineError for a row that a queue cannot take."""
        queues = self._names(batch, "queue", self._options.queue)
        partitions = self._names(batch, "partition", self._options.partition)
        payloads = self._payloads(batch)
        if self._schemas:
            self._check_schemas(batch, queues, payloads)
        transactions = self._transactions(batch)
        headers = self._headers(batch)
        self._add_up(batch, (queues, partitions, transactions), payloads, headers)
        message_ids = self._message_ids(batch)
        places = (queues, partitions, transactions, message_ids)
        sealed, flags = self._seal(batch, queues, payloads, places)
        self.rows += batch.num_rows
        made = self._pa.table(
            {
                "queue": queues,
                "partition": partitions,
                "message_id": message_ids,
                "transaction_id": transactions,
                "trace_id": self._uuids(batch, "traceId"),
                "is_encrypted": flags,
                "payload": sealed,
            }
        )
        return made if headers is None else made.append_column("headers", headers)

    def _check_schemas(self, batch: Any, queues: Any, payloads: Any) -> None:
        """Of what comes in clear. Raises PipelineError for a row that does not fit the schema of its queue."""
        wanted = self._schemas.keys() & set(queues.unique().to_pylist())
        if not wanted:
            return
        sealed = batch.column("encrypted").to_pylist() if "encrypted" in batch.schema.names else [False] * len(payloads)
        for queue, payload, is_sealed in zip(queues.to_pylist(), payloads.to_pylist(), sealed, strict=True):
            if queue not in wanted or is_sealed:
                continue
            version, validator = self._schemas[queue]
            if (why := validator.misfit(payload)) is not None:
                raise PipelineError(
                    f"a row cannot be written: it does not fit schema {version} of queue {queue!r}: {why}; "
                    "checkSchema=false writes it all the same"
                )

    def _add_up(self, batch: Any, named: Sequence[Any], payloads: Any, headers: Any | None) -> None:
        """A checksum of the rows before encryption; it does not depend on their order or on the tasks."""
        named = list(named)
        named += [batch.column(name) for name in ("messageId", "traceId") if name in batch.schema.names]
        keys = zip(*(column.to_pylist() for column in named), strict=True)
        texts = repeat(None, len(payloads)) if headers is None else headers.to_pylist()
        total = 0
        for key, payload, text in zip(keys, payloads.to_pylist(), texts, strict=True):
            number = crc32(payload, crc32(repr(key).encode()))
            total += number if text is None else crc32(text.encode(), number)
        self.checksum = (self.checksum + total) & CHECKSUM_MASK

    def _column(self, batch: Any, name: str) -> Any:
        if name in batch.schema.names:
            return batch.column(name)
        return self._pa.nulls(batch.num_rows, self._pa.string())

    def _names(self, batch: Any, name: str, usual: str | None) -> Any:
        column = self._column(batch, name)
        if usual is not None and column.null_count:
            column = column.fill_null(usual)
        fresh = set(column.unique().to_pylist()) - self._checked[name]
        for value in fresh:
            try:
                check_name(value or "", name)
            except InvalidRequest as error:
                raise PipelineError(f"a row cannot be written: {error.message}") from None
        self._checked[name] |= fresh
        return column

    def _payloads(self, batch: Any) -> Any:
        column = batch.column("value")
        if column.null_count:
            raise PipelineError("a row cannot be written: its value is null (JSON's null is the text 'null')")
        raw = column.cast(self._pa.binary())
        decode = _decoder.decode
        for payload in raw.to_pylist():
            try:
                decode(payload)
            except msgspec.DecodeError as error:
                raise PipelineError(
                    f"a row cannot be written: its value is not JSON ({error}): {_short(payload)}"
                ) from None
        return raw

    def _transactions(self, batch: Any) -> Any:
        column = self._column(batch, "transactionId")
        for value in column.to_pylist() if column.null_count < batch.num_rows else ():
            if value is not None:
                try:
                    check_name(value, "transactionId")
                except InvalidRequest as error:
                    raise PipelineError(f"a row cannot be written: {error.message}") from None
        return column

    def _headers(self, batch: Any) -> Any | None:
        """As they are stored, texts of JSON; None if no row has any."""
        if "headers" not in batch.schema.names or batch.column("headers").null_count == batch.num_rows:
            return None
        made = [None if given is None else _headers_text(given) for given in batch.column("headers").to_pylist()]
        return self._pa.array(made, self._pa.string())

    def _message_ids(self, batch: Any) -> Any:
        """Ids for rows that bring none. Made here, because PostgreSQL asks the system for every one."""
        column = self._uuids(batch, "messageId")
        if not column.null_count:
            return column
        if column.null_count == batch.num_rows:
            return self._pa.array([uuid7_text() for _ in range(batch.num_rows)], self._pa.string())
        return self._pa.array([value or uuid7_text() for value in column.to_pylist()], self._pa.string())

    def _uuids(self, batch: Any, name: str) -> Any:
        column = self._column(batch, name)
        for value in column.to_pylist() if column.null_count < batch.num_rows else ():
            if value is not None and not is_uuid(value):
                raise PipelineError(f"a row cannot be written: {name} must be a UUID, not {value[:_SHOWN]!r}")
        return column

    def _seal(self, batch: Any, queues: Any, payloads: Any, columns: tuple[Any, ...]) -> tuple[Any, Any]:
        """Encrypt what goes into encrypted queues. What comes encrypted already (out of an archive) stays so, and is
        encrypted anew if it was bound to a message of another queue."""
        pa, count = self._pa, len(payloads)
        there = batch.column("encrypted").fill_null(False) if "encrypted" in batch.schema.names else None
        if there is not None and there.true_count == 0:
            there = None
        targets = set(queues.unique().to_pylist()) & self._encrypted
        if not targets and there is None:
            return payloads, pa.repeat(pa.scalar(False), count)
        sealed_before = there.to_pylist() if there is not None else [False] * count
        demanded = [queue in targets for queue in queues.to_pylist()]
        if self._keys is None and any(want and not done for want, done in zip(demanded, sealed_before, strict=True)):
            names = ", ".join(sorted(targets))
            raise PipelineError(f"queue {names} demands encrypted payloads: give the option encryptionKey")
        places = [
            Place(queue, partition, transaction_id or message_id)
            for queue, partition, transaction_id, message_id in zip(
                *(column.to_pylist() for column in columns), strict=True
            )
        ]
        sealed = [
            self._bound_here(payload, place)
            if done
            else self._keys.encrypt(payload, place)
            if want and self._keys is not None
            else payload
            for payload, want, done, place in zip(payloads.to_pylist(), demanded, sealed_before, places, strict=True)
        ]
        flags = [a or b for a, b in zip(demanded, sealed_before, strict=True)]
        return pa.array(sealed, pa.binary()), pa.array(flags, pa.bool_())

    def _bound_here(self, stored: bytes, place: Place) -> bytes:
        """A payload that came encrypted, so that it can be decrypted at its new place."""
        source = place._replace(queue=self._options.encrypted_for or place.queue)
        try:
            if not is_bound(stored):
                return stored
            if self._keys is not None:
                payload = self._keys.decrypt(stored, source)
                return stored if source == place else self._keys.encrypt(payload, place)
        except DecryptionFailed as error:
            raise PipelineError(
                f"a row cannot be written: the value for queue {place.queue!r}, partition {place.partition!r}, "
                f"transactionId {place.transaction_id!r} is marked as encrypted: {error.message}"
            ) from None
        if source != place:
            raise PipelineError(
                f"the values were encrypted for queue {source.queue!r} and can be read in no other one: to write them "
                f"to {place.queue!r}, give the option encryptionKey, which encrypts them anew"
            )
        return stored


def _headers_text(given: list[Any]) -> str | None:
    """The headers of a row: pairs of a map, or structs of an array."""
    pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in given if pair is not None]
    found: dict[str, str] = {}
    for name, value in pairs:
        if name is None or value is None or name in found:
            why = "has no value" if value is None else "is there twice"
            raise PipelineError(f"a row cannot be written: its header {name!r} {why if name else 'has no name'}")
        try:
            found[name] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise PipelineError(f"a row cannot be written: its header {name!r} is no text in UTF-8") from None
    try:
        return encode_headers(found, "headers")
    except InvalidRequest as error:
        raise PipelineError(f"a row cannot be written: {error.message}") from None


def _short(payload: bytes) -> str:
    return repr(payload[:_SHOWN].decode("utf-8", "replace"))
