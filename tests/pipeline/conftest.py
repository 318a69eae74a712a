"""One Spark session for all tests of the pipeline, and a database that is looked into with plain SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.db import Db
from pipeline.supervision import Site
from pipeline.test_outage import Restarted
from queenmq.pipeline.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`, with tasks that are retried as on a cluster."""
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        "spark.python.worker.reuse": "true",
        # Many small jobs: compiling them well costs more than it brings.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    started = session("local[2,4]", "queen tests", settings)
    yield started
    started.stop()


@pytest.fixture
def db(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url, autocommit=True, options="-c timezone=UTC") as connection:
        yield Db(database_url, connection)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    postgres = Restarted(tmp_path)
    made = Site(postgres, tmp_path)
    try:
        yield made
    finally:
        made.close()
