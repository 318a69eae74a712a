"""`queen pipeline`: the jobs on Spark. The exit status is 1 if a job failed or, for audit, found something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from queenmq.cli.arguments import AMOUNT, COUNT, FOLDER, MOMENT, NAMES, Function, data_dir
from queenmq.cli.group import Command, group, under
from queenmq.cli.pipeline_jobs import run
from queenmq.cli.pipeline_streams import Given
from queenmq.cli.pipelines import COMMANDS

LOCAL: Final = "local[*]"


@group(
    "pipeline", "queen pipeline archive --queue orders --lake s3://bucket/lake", "queen pipeline audit --queue orders"
)
def command() -> None:
    """Run Spark jobs, on this machine or on a cluster. They need pip install 'queenmq[pipeline]'."""


def _job_of(name: str, *examples: str) -> Callable[[Callable[..., None]], Command]:
    """A job with the options that all jobs share. The function has only the help; `run` does the work."""

    def made(function: Callable[..., None]) -> Command:
        def start(**given: Any) -> int:
            return run(Given(job=name, **given))

        start.__doc__ = function.__doc__
        # Click gathers options from the last to the first; those of the job come first.
        own = getattr(function, "__click_params__", [])
        common(start).__click_params__ += own  # type: ignore[attr-defined]
        return under(command, name, *examples)(start)

    return made


def common(function: Function) -> Function:
    for option in reversed(
        (
            click.option("--url", help="URL of the PostgreSQL (default: DATABASE_URL, or the bundled one that runs)."),
            data_dir,
            click.option("--master", default=LOCAL, show_default=True, help="URL of the Spark master."),
            click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; may be repeated."),
            click.option("--json", is_flag=True, help="Print the result as JSON."),
        )
    ):
        function = option(function)
    return function


_queue = click.option("--queue", required=True, help="Name of the queue.")
_lake = click.option(
    "--lake", required=True, metavar="PLACE", help="Folder of the lake, or a URI such as s3://bucket/folder."
)


@_job_of("archive", "queen pipeline archive --queue orders --lake s3://bucket/lake")
@_queue
@_lake
@click.option(
    "--schema",
    metavar="DDL",
    help="Schema with which the payloads are parsed too, such as 'order INT, amount DOUBLE', or auto for the newest of "
    "the queue (queen schema).",
)
@click.option(
    "--file-mb",
    type=COUNT,
    default=64,
    show_default=True,
    metavar="MB",
    help="Target size of a file in MB, before compression.",
)
@click.option(
    "--format",
    type=click.Choice(("parquet", "delta", "iceberg")),
    help="Format of a new archive: plain Parquet, a Delta Lake or an Iceberg table (default: the one that is there, or "
    "parquet).",
)
@click.option("--forget", is_flag=True, help="Let retention no longer wait for this lake; archive nothing.")
def archive() -> None:
    """Copy messages into a lake of Parquet files or tables, incrementally and exactly once."""


@_job_of("replay", "queen pipeline replay --queue orders --lake ./lake --into orders-again --since 2026-01-02")
@click.option("--queue", required=True, help="Name of the archived queue.")
@_lake
@click.option("--into", metavar="QUEUE", help="Queue to write to (default: the archived queue).")
@click.option("--into-url", metavar="URL", help="URL of the PostgreSQL to write to (default: --url).")
@click.option("--since", type=MOMENT, metavar="TIME", help="Replay messages pushed at or after this time (ISO 8601).")
@click.option("--until", type=MOMENT, metavar="TIME", help="Replay messages pushed before this time.")
@click.option("--partition", multiple=True, metavar="NAME", help="Replay only this partition; may be repeated.")
@click.option(
    "--where", metavar="SQL", help="Replay only rows for which this condition on the columns of the lake holds."
)
@click.option("--rate", type=float, metavar="N", help="Maximum number of messages a second.")
@click.option("--name", help="Name of this replay: each name runs once (default: made from the other options).")
def replay() -> None:
    """Push messages from the lake to a queue again."""


@_job_of("audit", "queen pipeline audit --queue orders --lake ./lake --plot audit.png")
@_queue
@click.option("--lake", metavar="PLACE", help="Lake to compare the queue with.")
@click.option("--plot", metavar="FILE", help="PNG file for a plot of where the messages are.")
def audit() -> None:
    """Check that no message was lost or doubled. The exit status is 1 if one was."""


@_job_of("backfill", "queen pipeline backfill --queue orders --format parquet --path ./orders --partition customer")
@_queue
@click.option("--format", required=True, help="Spark format of the source: json, csv, parquet, jdbc, …")
@click.option("--path", help="Path of the source, if its format has one.")
@click.option("--option", multiple=True, metavar="NAME=VALUE", help="Option of the source; may be repeated.")
@click.option("--value", metavar="COLUMN", help="Column with the JSON payload (default: the whole row as an object).")
@click.option("--partition", metavar="COLUMN", help="Column with the name of the partition.")
@click.option(
    "--transaction-id", metavar="COLUMN", help="Column with the transactionId, which a partition stores once."
)
@click.option(
    "--order-by", metavar="COLUMNS", type=NAMES, default="", help="Columns that define the order within a partition."
)
@click.option(
    "--where", metavar="SQL", help="Push only rows for which this condition on the columns of the source holds."
)
@click.option("--name", help="Name of this backfill: each name runs once.")
def backfill() -> None:
    """Push the rows of files, JDBC or any other Spark source to a queue."""


def _stream(function: Function) -> Function:
    """The options of jobs that are streams."""
    for option in reversed(
        (
            click.option(
                "--checkpoint", required=True, metavar="PLACE", help="Folder or URI where Spark keeps its progress."
            ),
            click.option(
                "--trigger", default="1 second", show_default=True, metavar="TIME", help="Time between two batches."
            ),
            click.option("--available-now", is_flag=True, help="Process the messages that are stored now, then exit."),
            click.option("--seconds", type=AMOUNT, metavar="S", help="Exit after this many seconds."),
            click.option(
                "--start",
                type=click.Choice(("earliest", "latest")),
                default="earliest",
                show_default=True,
                help="Where the first run starts to read.",
            ),
        )
    ):
        function = option(function)
    return function


@_job_of("window", "queen pipeline window --file totals.yaml --checkpoint ./progress")
@click.option("--file", required=True, type=FOLDER, help="File that declares the windows (YAML, see docs/pipeline.md).")
@_stream
def window() -> None:
    """Aggregate a queue into another queue by time windows, until Ctrl-C."""


@_job_of(
    "copy", "queen pipeline copy --queue orders --into copies --checkpoint ./progress --where \"partition = 'p1'\""
)
@click.option("--queue", required=True, help="Name of the queue to read.")
@click.option("--into", required=True, metavar="QUEUE", help="Queue to write to.")
@click.option("--where", metavar="SQL", help="Copy only messages for which this condition on their columns holds.")
@click.option("--schema", metavar="DDL", help="Schema of the payloads, whose fields --where then finds as data.….")
@_stream
def copy() -> None:
    """Copy messages to another queue, all or those that fit a condition, until Ctrl-C."""


_checkpoint = click.option(
    "--checkpoint", required=True, metavar="PLACE", help="Folder or URI where Spark keeps its progress."
)
_trigger = click.option(
    "--trigger", default="1 second", show_default=True, metavar="TIME", help="Time between batches."
)
_available = click.option("--available-now", is_flag=True, help="Process the messages that are stored now, then exit.")
_seconds = click.option("--seconds", type=AMOUNT, metavar="S", help="Exit after this many seconds.")


@_job_of(
    "sql",
    "queen pipeline sql 'SELECT value, partition FROM STREAM(orders) WHERE data.amount > 100' --to large-orders "
    "--checkpoint ./progress",
)
@click.argument("query", metavar="[QUERY]", required=False)
@click.option("--file", type=FOLDER, help="File with the query.")
@click.option("--to", "target", required=True, metavar="QUEUE", help="Queue to write the result to.")
@_checkpoint
@click.option(
    "--schema",
    multiple=True,
    metavar="QUEUE=DDL",
    help="Schema of a queue, such as 'orders=id INT, amount DOUBLE'; may be repeated (default: that of the registry).",
)
@click.option(
    "--prepare",
    multiple=True,
    metavar="SQL",
    help="Statement to run first, such as CREATE TEMPORARY VIEW customers USING parquet OPTIONS (path '/data/c'); may "
    "be repeated.",
)
@click.option("--updates", is_flag=True, help="Write what changes with every batch instead of final results.")
@_trigger
@_available
@_seconds
@click.option(
    "--start",
    type=click.Choice(("earliest", "latest")),
    default="earliest",
    show_default=True,
    help="Where the first run starts to read.",
)
@click.option("--batch", type=COUNT, metavar="N", help="Maximum number of messages of a batch and queue.")
def sql() -> None:
    """Run a query of Spark SQL over queues as streams, into another queue, until Ctrl-C.

    STREAM(orders) in the query is the queue orders. A result with a column value is the payload, else all columns are;
    partition and transactionId go beside it."""


@_job_of("upsert", "queen pipeline upsert --queue customers --table /data/customers --key id --checkpoint ./progress")
@_queue
@click.option("--table", required=True, metavar="PLACE", help="Folder or URI of the table.")
@click.option(
    "--format", type=click.Choice(("delta", "iceberg")), default="delta", show_default=True, help="Format of the table."
)
@click.option("--key", required=True, type=NAMES, metavar="FIELDS", help="Fields of the message that are the key.")
@_checkpoint
@click.option(
    "--schema", default="auto", show_default=True, metavar="DDL", help="Schema of the messages; auto: of the registry."
)
@click.option("--delete", metavar="SQL", help="Condition on a message that deletes its row, such as 'data.deleted'.")
@_trigger
@_available
@_seconds
@click.option("--batch", type=COUNT, default=100_000, show_default=True, metavar="N", help="Most messages of a commit.")
def upsert() -> None:
    """Keep a Delta Lake or Iceberg table with one row a key: the newest message of each, until Ctrl-C."""


@_job_of("analytics", "queen pipeline analytics --queue orders --every 60")
@click.option("--queue", help="Analyse only this queue (default: all).")
@click.option("--lake", metavar="PLACE", help="Lake to which the rows are written too.")
@click.option(
    "--back",
    type=AMOUNT,
    default=60,
    show_default=True,
    metavar="MINUTES",
    help="Minutes of history in the first report.",
)
@click.option("--every", type=AMOUNT, metavar="S", help="Repeat every so many seconds, until Ctrl-C.")
@click.option("--times", type=COUNT, metavar="N", help="Exit after this many reports.")
def analytics() -> None:
    """Report rates, lag, latency, dead letters and skew by queue, group and minute."""


@under(command, "accept-gaps", "queen pipeline accept-gaps --queue orders --partition customer-1")
@_queue
@click.option("--partition", metavar="NAME", help="Accept only the gaps of this partition (default: of all).")
@click.option("--url", help="URL of the PostgreSQL (default: DATABASE_URL, or the bundled one that runs).")
@data_dir
def accept_gaps(**given: Any) -> int:
    """Accept that messages are missing between others, so that reads, archive and audit go on without them."""
    return run(Given(job="accept-gaps", **given))


@under(command, "compact", "queen pipeline compact --queue orders --lake s3://bucket/lake --keep-days 400")
@_queue
@_lake
@click.option(
    "--file-mb", type=COUNT, default=128, show_default=True, metavar="MB", help="Target size of a file in MB."
)
@click.option("--keep-days", type=COUNT, metavar="N", help="Drop messages of days that are more than N days ago.")
@click.option("--url", help="URL of the PostgreSQL (default: DATABASE_URL, or the bundled one that runs).")
@data_dir
@click.option("--json", is_flag=True, help="Print the result as JSON.")
def compact(**given: Any) -> int:
    """Put small files of a Delta Lake or Iceberg table together, and drop old days. It needs no Spark."""
    return run(Given(job="compact", **given))


@_job_of("bench", "queen pipeline bench --messages 100000 --only read,archive")
@click.option(
    "--messages",
    type=COUNT,
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Number of messages to write and read.",
)
@click.option(
    "--partitions", type=COUNT, default=1_000, show_default=True, metavar="N", help="Number of partitions of the queue."
)
@click.option("--payload", type=COUNT, default=230, show_default=True, metavar="BYTES", help="Size of a payload.")
@click.option(
    "--rounds",
    type=COUNT,
    default=3,
    show_default=True,
    metavar="N",
    help="Number of times that each read is measured.",
)
@click.option("--jdbc-jar", metavar="FILE", help="JDBC driver of PostgreSQL, to compare with Spark's own JDBC reader.")
@click.option("--postgres", type=COUNT, metavar="PID", help="Process id of PostgreSQL, to measure its CPU.")
@click.option(
    "--only", type=NAMES, default="", metavar="NAMES", help="Run only these measurements, such as read,archive."
)
@click.option("--server", metavar="URL", help="URL of a server on the same database, to measure over HTTP, too.")
@click.option(
    "--growth",
    is_flag=True,
    help="Measure with a quarter, half and all of the messages and partitions, and show whether costs grow as they do.",
)
def bench() -> None:
    """Measure the source, the sink and the jobs, in temporary queues."""


@_job_of("runs", "queen pipeline runs --json")
def runs() -> None:
    """List the newest runs of all jobs."""


for _one in COMMANDS:
    command.add_command(_one)
