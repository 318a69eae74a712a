"""The messages of a lake as one data frame, though the schema of the parsed values has changed from run to run.

Fields come and go: those that a file does not have are null. Types may become wider: INT, BIGINT and DOUBLE together
are DOUBLE. What has no common type (a number here, an object there) is refused before such a file is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from queenmq.pipeline.columns import HEADERS_TYPE, PARSED
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.json_values import has_variant, spark_type
from queenmq.pipeline.lake import File, Lake
from queenmq.pipeline.lake_reader import can_read, native_frame

# From the narrowest to the widest.
_NUMBERS: Final = ("byte", "short", "integer", "long", "float", "double")
_TIMES: Final = ("date", "timestamp")
# Whose files tell which types the lake has: reading the ends of all its files takes long.
RUNS_COMPARED: Final = 200
_RUN_ID: Final = 36


def frame(spark: Any, lake: Lake, files: Iterable[File]) -> Any:
    """The messages of published files as a data frame; None if there are no files.

    Columns of older files that later ones do not have (and the other way round) are null. Raises PipelineError if a
    field has types that have none in common.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    paths = [file.path for file in files]
    if not paths:
        return None
    if not can_read(spark, lake.uri("")):
        return native_frame(spark, lake, paths)
    try:
        found = spark.read.option("mergeSchema", "true").parquet(*map(lake.uri, paths))
    except (PySparkException, Py4JJavaError) as error:
        if "CANNOT_MERGE" not in str(error):
            raise
        found = _evolved(spark, lake, paths)
    # Older versions wrote files without them.
    return found if "headers" in found.columns else found.withColumn("headers", f.lit(None).cast(HEADERS_TYPE))


def check_schema(spark: Any, lake: Lake, files: list[File], schema: str) -> None:
    """Raise BadOption if files with this schema could not be read together with those that are there."""
    if has_variant(spark_type(schema)):
        raise BadOption("the lake has no VARIANT: leave the field out, and use parse_json(value) of what is archived")
    newest: dict[str, File] = {}
    for file in files:
        newest[file.path.rpartition("/")[2][:_RUN_ID]] = file
    found = frame(spark, lake, list(newest.values())[-RUNS_COMPARED:])
    if found is None or PARSED not in found.columns:
        return
    try:
        wider(found.schema[PARSED].dataType, spark_type(schema), "")
    except TypeError as error:
        raise BadOption(
            f"the schema does not fit the lake: {error}. Nothing was archived; keep the type, give the field another "
            "name, or archive into another lake"
        ) from None


def wider(one: Any, other: Any, path: str) -> Any:
    """The type that holds the values of both. Raises TypeError with the field and its types if there is none."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if one == other:
        return one
    a, b = one.typeName(), other.typeName()
    if a == b == "struct":
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            there = fields.get(field.name, field.dataType)
            fields[field.name] = wider(there, field.dataType, f"{path}.{field.name}" if path else field.name)
        return StructType([StructField(name, kind) for name, kind in fields.items()])
    if a == b == "array":
        return ArrayType(wider(one.elementType, other.elementType, f"{path}[]"))
    if a == b == "map" and one.keyType == other.keyType:
        return MapType(one.keyType, wider(one.valueType, other.valueType, f"{path}[]"))
    for order in (_NUMBERS, _TIMES):
        if a in order and b in order:
            return one if order.index(a) > order.index(b) else other
    if a == b == "decimal":
        return _wider_decimal(one, other)
    raise TypeError(f"the field {path} is {one.simpleString()} there and {other.simpleString()} here")


def _wider_decimal(one: Any, other: Any) -> Any:
    from pyspark.sql.types import DecimalType

    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    return DecimalType(min(38, whole + scale), scale)


def _evolved(spark: Any, lake: Lake, paths: list[str]) -> Any:
    """Files with the same type are read together, and their values cast to the type that holds all."""
    from functools import reduce

    from pyspark.sql import functions as f

    groups: dict[str, list[str]] = {}
    for path, kind in zip(paths, _kinds(spark, lake.place, paths), strict=True):
        groups.setdefault(kind, []).append(lake.uri(path))
    frames = [spark.read.parquet(*group) for group in groups.values()]
    kinds = [found.schema[PARSED].dataType for found in frames if PARSED in found.columns]
    try:
        target = reduce(lambda one, other: wider(one, other, ""), kinds)
    except TypeError as error:
        raise PipelineError(f"the files of the lake cannot be read together: {error}") from None
    cast = [
        found.withColumn(
            PARSED,
            _cast(f.col(PARSED), found.schema[PARSED].dataType, target)
            if PARSED in found.columns
            else f.lit(None).cast(target),
        )
        for found in frames
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), cast)


def _kinds(spark: Any, place: str, paths: list[str]) -> list[str]:
    """The type of the parsed values of each file, as a text, read by tasks."""
    context = spark.sparkContext
    given = context.parallelize(paths, min(len(paths), 2 * context.defaultParallelism))
    found: list[str] = given.map(lambda path: Lake(place).kind_of(path, PARSED)).collect()
    return found


def _cast(column: Any, have: Any, want: Any) -> Any:
    from pyspark.sql import functions as f

    if have == want:
        return column
    if want.typeName() == "struct":
        there = {field.name: field.dataType for field in have.fields}
        fields = [
            (
                _cast(column.getField(field.name), there[field.name], field.dataType)
                if field.name in there
                else f.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in want.fields
        ]
        return f.when(column.isNotNull(), f.struct(*fields))
    if want.typeName() == "array":
        return f.transform(column, lambda one: _cast(one, have.elementType, want.elementType))
    if want.typeName() == "map":
        return f.transform_values(column, lambda _, one: _cast(one, have.valueType, want.valueType))
    return column.cast(want)
