"""The cause in what Spark makes of an error, and the types of valueSchema."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from importlib import metadata
from typing import Any

import pytest

from queenmq.pipeline.errors import BadOption, DatabaseAway, explained

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

CALLING = "An error occurred while calling o62.collectToPython.\n"
ABORTED = ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f'{CALLING}{ABORTED}: java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file',
            "the executors have no Python at /opt/env/bin/python",
        ),
        (
            f"{CALLING}{ABORTED}\nModuleNotFoundError: No module named 'queenmq'\n",
            "the Python of the executors lacks the package queenmq",
        ),
        (
            f'{CALLING}: java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory',
            "the machine of the driver has no Python at /nowhere/python",
        ),
        (
            f"{CALLING}\nModuleNotFoundError: No module named 'queenmq'\n",
            "the Python that Spark starts beside the driver lacks the package queenmq",
        ),
        *(
            (
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                f'  File "/x/pyspark.zip/pyspark/{program}", line 1, in invoke\n'
                "ModuleNotFoundError: No module named 'queenmq'\n",
                f"the Python {who} lacks the package queenmq",
            )
            for program, who in (
                ("worker.py", "of the executors"),
                ("sql/worker/plan_data_source_read.py", "that Spark starts beside the driver"),
            )
        ),
        (
            f"{CALLING}{ABORTED}\nModuleNotFoundError: No module named 'psycopg.types'\n",
            "the Python of the executors lacks the package psycopg.types: it needs queenmq[pipeline]",
        ),
        *(
            (
                f"{CALLING}{where}\nModuleNotFoundError: No module named '{module}'\n",
                f"the Python {who} lacks the module {module}, which is none of Queen's: install it there",
            )
            for where, who in ((ABORTED, "of the executors"), ("", "that Spark starts beside the driver"))
            for module in ("mylib", "mylib.queenmq", "queenmqish", "pandas")
        ),
        (
            f"{CALLING}{ABORTED}\n\tat a.b\nCaused by: x.IOException: one\nCaused by: java.io.IOException: No space",
            "No space",
        ),
        (f"{CALLING}{ABORTED}\n\tat a.b", "Job aborted due to stage failure"),
        ("[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03", "[PATH_NOT_FOUND] Path does not exist: /x"),
    ],
)
def test_the_cause_is_told(text: str, words: str) -> None:
    assert explained(RuntimeError(text)).message.startswith(words)


def test_modules_that_the_package_brings_are_known() -> None:
    """Each module of what the extra `pipeline` demands, and no other advice for it."""
    modules: dict[str, set[str]] = {}
    for module, packages in metadata.packages_distributions().items():
        for package in packages:
            modules.setdefault(_normal(package), set()).add(module)
    for line in metadata.requires("queenmq") or ():
        package, _, marker = line.partition(";")
        if "extra ==" in marker and not re.search("extra == .pipeline.", marker):
            continue
        name = _normal(re.split(r"[\[<>= ]", package)[0])
        for module in modules.get(name, set()):
            if module.isidentifier() and not module.startswith("_") and module not in ("mpl_toolkits", "pylab"):
                told = explained(RuntimeError(f"ModuleNotFoundError: No module named '{module}'")).message
                assert "it needs queenmq[pipeline]" in told, module


def _normal(package: str) -> str:
    return re.sub("[-_.]+", "-", package).lower()


def test_ours_keep_their_kind() -> None:
    told = explained(RuntimeError(f"{CALLING}{ABORTED}\nqueenmq.pipeline.errors.DatabaseAway: it is gone"))
    assert (type(told), told.message) == (DatabaseAway, "it is gone")


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        ("DECIMAL(10, 2)", "12.345", Decimal("12.35")),
        ("DECIMAL(10,2)", '"7"', Decimal("7.00")),
        ("DECIMAL(4, 2)", "100", None),
        ("DECIMAL", "3", Decimal(3)),
        ("SMALLINT", "32767", 32767),
        ("SMALLINT", "32768", None),
        ("TINYINT", "-128", -128),
        ("BINARY", '"aGk="', b"hi"),
        ("BINARY", '"?"', None),
        ("MAP<STRING, INT>", '{"a": 1, "b": "x"}', [("a", 1), ("b", None)]),
        ("MAP<STRING, DECIMAL(3, 1)>", '{"a": 1.5}', [("a", Decimal("1.5"))]),
        ("TIMESTAMP", "1767225600", datetime(2026, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP", "1767225600.25", datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)),
        ("TIMESTAMP", "1767225600250", datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)),
        ("TIMESTAMP", "1767225600250001", datetime(2026, 1, 1, 0, 0, 0, 250_001, tzinfo=UTC)),
        ("TIMESTAMP", "true", None),
        ("TIMESTAMP", "1e300", None),
    ],
)
def test_types_of_the_value_schema(kind: str, given: str, found: Any) -> None:
    from queenmq.pipeline.json_values import parser

    made, _ = parser(f"a {kind}, b INT")(pa.array([f'{{"a": {given}, "b": 1}}'.encode()]))
    assert made.to_pylist() == [{"a": found, "b": 1}]


@pytest.mark.parametrize("kind", ["DECIMAL(39, 2)", "DECIMAL(2, 3)", "MAP<INT, INT>", "INTERVAL"])
def test_types_that_cannot_be(kind: str) -> None:
    from queenmq.pipeline.json_values import spark_type

    with pytest.raises(BadOption, match="valueSchema"):
        spark_type(f"a {kind}")
