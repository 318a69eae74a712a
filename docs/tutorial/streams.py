"""Streams beyond windows: state with timers, and a table of any database, each exactly once.

Run it with `python docs/tutorial/streams.py` where DATABASE_URL is that of the PostgreSQL (`queen db url` prints it)
and WORK a folder for checkpoints. It needs `pip install 'queenmq[pipeline,connect]'`, which has what Spark wants for
state in Python (pandas).
"""

# %% A session. State in Python is kept in RocksDB.
import os
from collections.abc import Iterator
from typing import Any

import psycopg
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import Row

from queenmq import pipeline

url, work = os.environ["DATABASE_URL"], os.environ["WORK"]
rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = pipeline.start("local[2]", "streams", {"spark.sql.streaming.stateStore.providerClass": rocks})
orders = pipeline.read_stream(
    spark, url, "tutorial-orders", startingOffsets="earliest", valueSchema="customer STRING, state STRING"
)


# %% Orders that were begun and not paid within a minute: state by key, and a timer.
class Unpaid(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.begun = handle.getValueState("begun", "at TIMESTAMP")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row["state"] == "paid":
                self.begun.clear()
                for timer in self.handle.listTimers():
                    self.handle.deleteTimer(timer)
            else:
                self.begun.update((row["at"],))
                self.handle.registerTimer(int(row["at"].timestamp() * 1000) + 60_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        if self.begun.exists():
            (at,) = self.begun.get()
            self.begun.clear()
            yield Row(customer=key[0], begun=at)

    def close(self) -> None:
        pass


unpaid = (
    orders.selectExpr("data.customer AS customer", "data.state AS state", "timestamp AS at")
    .withWatermark("at", "1 second")
    .groupBy("customer")
    .transformWithState(Unpaid(), "customer STRING, begun TIMESTAMP", "Append", "EventTime")
)
rows = unpaid.selectExpr("to_json(struct(*)) AS value", "customer AS partition")
pipeline.write_stream(rows, url, "tutorial-unpaid", f"{work}/unpaid").trigger(
    availableNow=True
).start().awaitTermination()

# %% Into a table of any database: the rows and the number of the batch in one transaction, so that a batch that comes
# again changes nothing. Here it is PostgreSQL with psycopg; every driver for Python does.
with psycopg.connect(url) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS tutorial_orders (customer text, state text, at timestamptz)")
    connection.execute("CREATE TABLE IF NOT EXISTS tutorial_batches (query text, batch bigint, UNIQUE (query, batch))")


def store(batch: Any, number: int) -> None:
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    with psycopg.connect(url) as connection:  # commits at the end, or nothing
        noted = connection.execute(
            "INSERT INTO tutorial_batches VALUES (%s, %s) ON CONFLICT DO NOTHING", (query, number)
        )
        if noted.rowcount == 0:
            return  # it was written before Spark could note that
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY tutorial_orders (customer, state, at) FROM STDIN") as copy,
        ):
            for row in batch.toLocalIterator():
                copy.write_row((row["customer"], row["state"], row["at"]))


flat = orders.selectExpr("data.customer AS customer", "data.state AS state", "timestamp AS at")
for _ in range(2):  # the second run finds nothing new
    flat.writeStream.foreachBatch(store).option("checkpointLocation", f"{work}/table").trigger(
        availableNow=True
    ).start().awaitTermination()
