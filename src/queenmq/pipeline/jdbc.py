"""A stream into a table of any database that has a JDBC driver, every row once.

Tasks write a batch into a table of its own with Spark's JDBC writer. Then the driver moves the rows into the target and
notes the number of the batch, in one transaction: a batch that comes again finds its number and changes nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from queenmq.pipeline.checkpoint import made_of
from queenmq.pipeline.errors import BadOption, OtherContent, PipelineError

BATCHES: Final = "queen_batches"
_STAGED: Final = "queen_staged_"
# Not empty, which some databases take for null.
UNKNOWN: Final = "-"


def write_stream_jdbc(
    frame: Any, url: str, table: str, checkpoint: str, *, mode: str = "append", **properties: str
) -> Any:
    """A stream writer that adds every row to the table once; `.trigger(…).start()` starts it.

    `properties` are those of Spark's JDBC writer (`user`, `password`, `driver`, `createTableColumnTypes`, …). The table
    must be there; columns go by their names. The same schema gets a table `queen_batches`, with a row for each stream.
    """
    target = _Target(url, table, {name: str(value) for name, value in properties.items()})

    def store(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise PipelineError("Spark does not report the query of a batch")
        target.store(batch, query, number, made_of(checkpoint, number) or UNKNOWN)

    return frame.writeStream.outputMode(mode).foreachBatch(store).option("checkpointLocation", checkpoint)


class _Target:
    """The table and what is beside it."""

    def __init__(self, url: str, table: str, properties: dict[str, str]) -> None:
        if not url.lower().startswith("jdbc:"):
            raise BadOption("the URL of a table must be one of JDBC, such as jdbc:postgresql://host/database")
        self._url = url
        self._table = table
        self._properties = properties
        schema = table.rpartition(".")[0]
        self._beside = f"{schema}." if schema else ""

    def store(self, batch: Any, query: str, number: int, made: str) -> None:
        """Raises OtherContent for a batch of a checkpoint that was restored from an older copy."""
        spark = batch.sparkSession
        stem = f"{_STAGED}{hashlib.sha256(query.encode()).hexdigest()[:8]}_"
        staged = f"{self._beside}{stem}{secrets.token_hex(4)}"
        with self._connection(spark) as connection:
            columns = self._columns(connection, batch.columns)
            if self._is_done(connection, query, number, made):
                return
            self._sweep(connection, stem)
            batch.write.jdbc(self._url, staged, mode="overwrite", properties=self._properties)
            connection.setAutoCommit(False)
            try:
                if not self._note(connection, query, number, made):
                    return
                quote = self._dialect(spark).quoteIdentifier
                into = ", ".join(quote(theirs) for theirs in columns.values())
                given = ", ".join(quote(name) for name in columns)
                _execute(connection, f"INSERT INTO {self._table} ({into}) SELECT {given} FROM {staged}")
                connection.commit()
            finally:
                with suppress(Py4JJavaError):  # the connection may be lost; the next batch sweeps
                    connection.rollback()
                    connection.setAutoCommit(True)
                    _execute(connection, f"DROP TABLE {staged}")

    @contextmanager
    def _connection(self, spark: Any) -> Iterator[Any]:
        """As Spark's own writer connects, so that it finds the same driver."""
        jvm = spark._jvm
        given = jvm.PythonUtils.toScalaMap({"url": self._url, "dbtable": self._table, **self._properties})
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(given)
        connection = self._dialect(spark).createConnectionFactory(options).apply(-1)
        try:
            yield connection
        finally:
            connection.close()

    def _dialect(self, spark: Any) -> Any:
        return spark._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._url)

    def _columns(self, connection: Any, names: list[str]) -> dict[str, str]:
        """How the table calls the columns: databases differ in what they make of upper and lower case."""
        with _rows(connection, f"SELECT * FROM {self._table} WHERE 1 = 0") as found:
            shape = found.getMetaData()
            there = [shape.getColumnName(place) for place in range(1, shape.getColumnCount() + 1)]
        folded = {name.lower(): name for name in there}
        if missing := [name for name in names if name.lower() not in folded]:
            raise BadOption(f"the table {self._table} has no column {missing[0]!r}: it has {', '.join(there)}")
        return {name: name if name in there else folded[name.lower()] for name in names}

    def _is_done(self, connection: Any, query: str, number: int, made: str) -> bool:
        """Makes the table of batches, too, if it is not there."""
        with suppress(Py4JJavaError):
            return self._seen(connection, query, number, made) is True
        _execute(
            connection,
            f"CREATE TABLE {self._beside}{BATCHES} (query_id VARCHAR(64) NOT NULL PRIMARY KEY, "
            "batch BIGINT NOT NULL, made_of VARCHAR(64) NOT NULL)",
        )
        return False

    def _seen(self, connection: Any, query: str, number: int, made: str) -> bool | None:
        """Whether the batch is in the table; None if the stream has written nothing yet."""
        with _rows(
            connection, f"SELECT batch, made_of FROM {self._beside}{BATCHES} WHERE query_id = ?", query
        ) as found:
            if not found.next():
                return None
            batch, before = int(found.getLong(1)), str(found.getString(2))
        if batch < number:
            return False
        if batch > number or (before != made and UNKNOWN not in (before, made)):
            raise OtherContent(
                f"batch {number} of this stream comes after batch {batch} was written to {self._table}: nothing was "
                "written. Its checkpoint was restored from an older copy, or two streams share one. Go on with the "
                f"newest checkpoint; or delete the row of query_id {query} in {self._beside}{BATCHES} to write "
                "everything again that this checkpoint has not read"
            )
        return True

    def _note(self, connection: Any, query: str, number: int, made: str) -> bool:
        """Within the transaction of the rows. False if another driver was faster."""
        table = f"{self._beside}{BATCHES}"
        noted = _execute(
            connection,
            f"UPDATE {table} SET batch = ?, made_of = ? WHERE query_id = ? AND batch < ?",
            *(number, made, query, number),
        )
        if noted:
            return True
        if self._seen(connection, query, number, made) is not None:
            return False
        _execute(connection, f"INSERT INTO {table} (query_id, batch, made_of) VALUES (?, ?, ?)", query, number, made)
        return True

    def _sweep(self, connection: Any, stem: str) -> None:
        """Drop what drivers of this stream have left that died."""
        found = connection.getMetaData().getTables(connection.getCatalog(), None, "%", None)
        left = []
        try:
            while found.next():
                if str(found.getString("TABLE_NAME")).lower().startswith(stem):
                    left.append(str(found.getString("TABLE_NAME")).lower())
        finally:
            found.close()
        for name in left:
            _execute(connection, f"DROP TABLE {self._beside}{name}")


def _prepared(connection: Any, text: str, arguments: tuple[object, ...]) -> Any:
    made = connection.prepareStatement(text)
    for place, value in enumerate(arguments, 1):
        if isinstance(value, int):
            made.setLong(place, value)
        else:
            made.setString(place, value)
    return made


def _execute(connection: Any, text: str, *arguments: object) -> int:
    """Returns the number of rows that were changed."""
    made = _prepared(connection, text, arguments)
    try:
        return int(made.executeUpdate())
    finally:
        made.close()


@contextmanager
def _rows(connection: Any, text: str, *arguments: object) -> Iterator[Any]:
    made = _prepared(connection, text, arguments)
    try:
        yield made.executeQuery()
    finally:
        made.close()
