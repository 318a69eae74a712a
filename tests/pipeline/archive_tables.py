"""A driver that archives the queue `orders` as a Delta Lake and as an Iceberg table, in small rounds, until it is done
or killed.

python archive_tables.py URL FOLDER OFFSETS
"""

from __future__ import annotations

import sys

from queenmq.pipeline.jobs.archive import Settings, archive
from queenmq.pipeline.runs import Run
from queenmq.pipeline.session import session


def run(url: str, folder: str, offsets: str) -> None:
    spark = session("local[2]", "archive tables", {"spark.driver.memory": "512m"})
    for kind in ("delta", "iceberg"):
        settings = Settings(
            url=url, queue="orders", lake=f"{folder}/{kind}", format=kind, round_offsets=int(offsets), tasks=2
        )
        with Run(url, "archive", "orders", "local[2]", {}) as recorded:
            archive(spark, settings, recorded)


if __name__ == "__main__":
    run(*sys.argv[1:])
