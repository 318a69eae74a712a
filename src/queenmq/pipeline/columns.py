"""The columns of a read: their names, Spark types, and making them from what PostgreSQL sent.

Owns the shape of a row. Decryption happens here, and only with a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from queenmq.core.encryption import PayloadKeys, Place
from queenmq.errors import QueenError
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.json_values import arrow_type, parser, spark_type
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range

BASE: Final = ("queue", "partition", "offset", "timestamp", "transactionId", "traceId", "value")
HEADERS: Final = ("messageId", "partitionId", "encrypted", "headers")
# The type of `headers`: that of Spark's Kafka connector.
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
PARSED: Final = "data"
MISFIT: Final = "misfit"

_headers_of: Final = msgspec.json.Decoder(dict[str, str])


def schema(options: ReadOptions) -> Any:
    """The Spark schema of a read with these options."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, Any] = {
        "offset": LongType(),
        "timestamp": TimestampType(),
        "encrypted": BooleanType(),
        "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    }
    names = BASE + (HEADERS if options.headers else ())
    fields = [StructField(name, types.get(name, StringType())) for name in names]
    if options.value_schema:
        fields.append(StructField(PARSED, spark_type(options.value_schema)))
        if options.bad_values == "mark":
            fields.append(StructField(MISFIT, StringType()))
    return StructType(fields)


def wanted(given: Any, options: ReadOptions) -> list[str]:
    """The columns that a schema asks for: `.schema("partition string, offset long")` reads only those."""
    known = {f.name: f.dataType for f in schema(options).fields}
    for asked in given.fields:
        if asked.name not in known:
            raise BadOption(f"there is no column {asked.name!r}: a read has {', '.join(known)}")
        if asked.dataType.simpleString() != known[asked.name].simpleString():
            raise BadOption(
                f"column {asked.name!r} is {known[asked.name].simpleString()}; valueSchema parses the value"
            )
    return [asked.name for asked in given.fields]


def archived() -> Any:
    """The columns of files in a lake, as Arrow has them, without parsed values."""
    return Columns(ReadOptions(url="", queue="", headers=True), [*BASE, *HEADERS]).schema


class Columns:
    """Makes the batches of one slice."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        import pyarrow
        from pyarrow import compute

        self._pa = pyarrow
        self._compute = compute
        self._options = options
        self._keys = PayloadKeys(options.keys) if options.keys else None
        self._names = names
        self._queue = pyarrow.nulls(0, pyarrow.string())
        parsed = (PARSED in names or MISFIT in names) and options.value_schema
        lenient = None if options.bad_values == "null" else options.lenient_fields
        self._parse = parser(options.value_schema or "", lenient) if parsed else None
        self._makers: dict[str, Callable[[Any, Any], Any]] = {
            "queue": lambda batch, _: self._repeated(batch.num_rows),
            "partition": lambda batch, partitions: partitions[0].take(compute.abs(batch.column("range_index"))),
            "partitionId": lambda batch, partitions: partitions[1].take(compute.abs(batch.column("range_index"))),
            "offset": lambda batch, _: batch.column("offset"),
            "timestamp": lambda batch, _: batch.column("created_at").cast(pyarrow.timestamp("us", "UTC")),
            "transactionId": lambda batch, _: batch.column("transaction_id"),
            "traceId": lambda batch, _: batch.column("trace_id"),
            "messageId": lambda batch, _: batch.column("id"),
            "encrypted": lambda batch, _: compute.less(batch.column("range_index"), 0),
            "headers": lambda batch, _: self._headers(batch.column("headers")),
        }
        self.schema = pyarrow.schema([(name, self._type(name)) for name in names])

    @property
    def needs_payload(self) -> bool:
        return not {"value", PARSED, MISFIT}.isdisjoint(self._names)

    @property
    def needs_id(self) -> bool:
        return "messageId" in self._names

    @property
    def needs_headers(self) -> bool:
        return "headers" in self._names

    @property
    def statement(self) -> str:
        """The cheaper one that brings what is asked for, for messages one by one."""
        return "pipeline_read" if self.needs_payload else "pipeline_read_keys"

    def partitions(self, ranges: list[Range]) -> tuple[Any, Any]:
        """Names and ids of the slice's partitions; rows come with a 1-based index into them, negative if encrypted."""
        names = self._pa.array([None, *(part.partition for part in ranges)], self._pa.string())
        ids = self._pa.array([None, *(part.partition_id for part in ranges)], self._pa.string())
        return names, ids

    def make(self, batch: Any, partitions: tuple[Any, Any]) -> Any:
        """The batch with the columns that were asked for."""
        value = self._value(batch, partitions) if self.needs_payload else None
        parsed = self._parsed(self._parse, batch, partitions, value) if self._parse is not None else {}
        made = []
        for name in self._names:
            if name == "value":
                made.append(value)
            elif name in parsed:
                made.append(parsed[name])
            else:
                made.append(self._makers[name](batch, partitions))
        return self._pa.RecordBatch.from_arrays(made, schema=self.schema)

    def _parsed(
        self, parse: Callable[[Any], Any], batch: Any, partitions: tuple[Any, Any], value: Any
    ) -> dict[str, Any]:
        found, misfits = parse(value)
        if self._options.bad_values == "fail" and any(misfits):
            place, told = next((place, told) for place, told in enumerate(misfits) if told)
            partition = partitions[0][abs(batch.column("range_index")[place].as_py())].as_py()
            raise PipelineError(
                f"queue {self._options.queue!r}, partition {partition!r}, offset {batch.column('offset')[place]}: "
                f"{told}; badValues=null reads null instead"
            )
        return {PARSED: found, MISFIT: self._pa.array(misfits, self._pa.string())}

    def _repeated(self, count: int) -> Any:
        if len(self._queue) < count:
            self._queue = self._pa.repeat(self._pa.scalar(self._options.queue), count)
        return self._queue.slice(0, count)

    def _type(self, name: str) -> Any:
        pa = self._pa
        if name == PARSED and self._options.value_schema:
            return arrow_type(self._options.value_schema)
        special = {
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "encrypted": pa.bool_(),
            "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        }
        return special.get(name, pa.string())

    def _headers(self, texts: Any) -> Any:
        """A list for each message, of the JSON that is stored; null for one without headers."""
        pa, kind = self._pa, self._type("headers")
        if texts.null_count == len(texts):
            return pa.nulls(len(texts), kind)
        starts: list[int | None] = []
        keys: list[str] = []
        values: list[bytes] = []
        for text in texts.to_pylist():
            starts.append(None if text is None else len(keys))
            if text is not None:
                for name, value in _headers_of.decode(text).items():
                    keys.append(name)
                    values.append(value.encode())
        pairs = pa.StructArray.from_arrays(
            [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(kind.value_type)
        )
        return pa.ListArray.from_arrays(pa.array([*starts, len(keys)], pa.int32()), pairs, type=kind)

    def _value(self, batch: Any, partitions: tuple[Any, Any]) -> Any:
        payloads = batch.column("payload")
        encrypted = self._compute.less(batch.column("range_index"), 0)
        if encrypted.true_count == 0 or self._options.encrypted == "raw":
            return payloads.cast(self._pa.string())
        columns = (
            payloads.to_pylist(),
            encrypted.to_pylist(),
            self._makers["partition"](batch, partitions).to_pylist(),
            batch.column("transaction_id").to_pylist(),
        )
        opened = [
            self._open(stored, Place(self._options.queue, partition, transaction_id)) if flag else stored
            for stored, flag, partition, transaction_id in zip(*columns, strict=True)
        ]
        return self._pa.array(opened, self._pa.binary()).cast(self._pa.string())

    def _open(self, stored: bytes, place: Place) -> bytes | None:
        if self._keys is None:
            if self._options.encrypted == "null":
                return None
            raise PipelineError("a payload is encrypted: give encryptionKey, or encryptedPayloads=null or raw")
        try:
            return self._keys.decrypt(stored, place)
        except QueenError as error:
            raise PipelineError(error.message) from None
