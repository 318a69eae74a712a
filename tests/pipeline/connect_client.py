"""What a program with a session of Spark Connect does, in a process of its own: read, write, stream, SQL."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from queenmq import pipeline


def say(found: Any) -> None:
    sys.stdout.write(f"{json.dumps(found)}\n")


remote, url, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
pipeline.register(spark)
found = pipeline.read(spark, url, "orders", valueSchema="p INT, n INT")
say([found.count(), found.agg(f.sum("data.n")).first()[0]])
rows = found.where("data.n <= 2").select("value", "partition")
for _ in range(2):  # the second does nothing
    pipeline.write(rows, url, "few", write_id="once")
stream = pipeline.read_stream(spark, url, "orders", startingOffsets="earliest", maxOffsetsPerTrigger=15)
for _ in range(2):
    query = (
        pipeline.write_stream(stream.select("value", "partition"), url, "copied", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if (error := query.exception()) is not None:
        raise error
spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING queen OPTIONS (url '{url}', subscribe 'orders')")
say([spark.sql("SELECT count(*) FROM orders").first()[0]])
try:
    pipeline.read(spark, url, "nobody").count()
except Exception as error:
    say("there is no queue 'nobody'" in str(error))
spark.stop()
