"""A driver that tests kill: copies the queue `orders` to `copy` as a stream and ends when everything is there. Each
batch is committed in two parts: it is decided, and then moved in ten steps or more.

python copy_stream.py URL CHECKPOINT OFFSETS_PER_TRIGGER
"""

from __future__ import annotations

import sys

from queenmq.pipeline import read_stream, write_stream
from queenmq.pipeline.session import session


def main(url: str, checkpoint: str, offsets: str) -> None:
    spark = session("local[2,4]", "copy", {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    source = read_stream(
        spark, url, "orders", startingOffsets="earliest", maxOffsetsPerTrigger=offsets, minPartitions=4
    )
    frame = source.select("value", "partition")
    steps = str(max(1, int(offsets) // 10))
    query = write_stream(frame, url, "copy", checkpoint, commitRows=steps).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
