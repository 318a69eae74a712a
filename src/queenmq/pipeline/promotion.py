"""Committing an epoch: the rows that its tasks have staged are decided on and moved into the queues, once.

Contended rows and partitions with queued pushes are waited for, and so is a PostgreSQL that is away. What other drivers
have left when they died is moved along, as far as it can be done now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from queenmq.clock import SYSTEM
from queenmq.pipeline.chunks import BUCKETS
from queenmq.pipeline.connection import connection, database_errors, rows
from queenmq.pipeline.errors import Contended, DatabaseAway, OtherContent, PipelineError, WriteIncomplete
from queenmq.pipeline.generation import generation_of_environment
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.patience import patiently
from queenmq.pipeline.staging import CHECKSUM_MASK

log = logging.getLogger(__name__)

# How long queued pushes of a partition are waited for, and how often what others were in the way of is tried again.
BUSY_TRIES: Final = 120
BUSY_PAUSE_S: Final = 0.5
# How often a driver says that it lives which moves rows slowly on purpose; after a minute others take over.
SIGN_S: Final = 15.0
# Buckets that are moved at the same time, each over a connection of its own.
MOVERS: Final = 2

Answer = TypeVar("Answer")


def promote(
    options: WriteOptions, sink: str, epoch: int, messages: list[Any], *, made_of: str | None = None
) -> tuple[int, int]:
    """In the driver: the epoch's commit. Returns the rows written and those that were there already.

    More rows than `commit_rows` are decided on first and then moved in steps of at most so many. From then on the
    epoch is these rows: if the driver dies, the next one that comes with it, or any other write, moves those that are
    left. Pushes that were queued for one of the partitions before are waited for: nothing is written past them. So is
    a PostgreSQL that is restarted: a commit whose answer was lost is found to be done. An error after the decision says
    that it is decided. Raises OtherContent if the epoch was committed before and was not the same, unless the options
    say that this does not matter.
    """
    staged = [message for message in messages if message is not None]
    count = sum(message.rows for message in staged)
    checksum = sum(message.checksum for message in staged) & CHECKSUM_MASK
    attempts = [message.attempt for message in staged if message.rows]
    given = (sink, epoch, attempts, count, made_of, checksum, options.strict, options.commit_rows)
    found = _when_free(lambda: _promoted(options.url, given))
    written, duplicates, differs, newest, at, unfinished = found
    if unfinished:
        try:
            _finish(options, sink, epoch)
            [(written, duplicates, _)] = patiently(lambda: ask(options.url, "pipeline_committed", sink, epoch))
        except WriteIncomplete:
            raise
        except PipelineError as error:
            raise type(error)(_decided(options, sink, epoch, error)) from error
        _finish_others(options)
    if differs or newest is not None:
        then = None if newest is not None else (written + duplicates, at)
        raise OtherContent(_other_content(sink, epoch, count, then, newest))
    if options.rate and not unfinished and at is None:
        # A stream of small batches may not be faster either.
        time.sleep(min(written, options.commit_rows) / options.rate)
    return written, duplicates


def _finish(options: WriteOptions, sink: str, epoch: int) -> None:
    """Move what is left of an epoch that was decided on, not faster than the options allow."""
    if not options.rate:
        with ThreadPoolExecutor(MOVERS) as movers:
            list(movers.map(lambda bucket: _move(options, sink, epoch, bucket), range(BUCKETS)))
    _move(options, sink, epoch, None)


def _finish_others(options: WriteOptions) -> None:
    """Move what drivers that died have left, as far as it can be done now: nobody's write depends on it."""
    unbound = replace(options, rate=None)
    try:
        for sink, epoch in ask(options.url, "pipeline_unfinished"):
            try:
                while _steps(unbound, sink, epoch, None):
                    pass
            except DatabaseAway:
                raise
            except PipelineError as error:
                log.warning("epoch %d of sink %r, which its driver has left, is not finished: %s", epoch, sink, error)
    except PipelineError as error:
        log.warning("what other drivers may have left is not moved now: %s", error)


def _decided(options: WriteOptions, sink: str, epoch: int, error: PipelineError) -> str:
    """What went wrong while the rows of an epoch were moved that is decided, and what that means."""
    moved = "some of its rows are in the queues"
    with suppress(PipelineError):
        [(written, _, there)] = ask(options.url, "pipeline_committed", sink, epoch)
        moved = f"{there} of its {written} rows are in the queues"
    if sink.startswith("stream "):
        again = "this batch is decided", "the stream goes on with them when it is started again"
    elif options.write_id:
        again = "this write is decided", "the same write under its writeId moves them, too, and writes nothing twice"
    else:
        again = "this write is decided", "do not repeat it, or all of its rows are written twice"
    return (
        f"{again[0]}, and {moved}; a later large write or a server moves the others within some minutes: {again[1]} "
        f"({error.message})"
    )


def _move(options: WriteOptions, sink: str, epoch: int, bucket: int | None) -> None:
    """Make steps while there is something to move: in a bucket, or in all of them one after the other."""
    while _when_free(lambda: _steps(options, sink, epoch, bucket)):
        pass


def _steps(options: WriteOptions, sink: str, epoch: int, bucket: int | None) -> bool:
    """As many steps as can be done now. False if nothing is left."""
    done = 0
    try:
        with connection(options.url) as opened:
            begun, before = SYSTEM.monotonic(), _moved(opened, sink, epoch) if options.rate else 0
            while _step(opened, sink, epoch, bucket, options.commit_rows):
                done += 1
                if options.rate:
                    moved = _moved(opened, sink, epoch)
                    _pause(opened, sink, epoch, begun + (moved - before) / options.rate - SYSTEM.monotonic())
                    begun, before = SYSTEM.monotonic(), moved
    except Contended:
        if not done:
            raise
        return True
    return False


def _pause(opened: Any, sink: str, epoch: int, seconds: float) -> None:
    """Wait before the next step, and say meanwhile that this driver lives, lest others move the epoch on."""
    while seconds > 0:
        time.sleep(min(seconds, SIGN_S))
        seconds -= SIGN_S
        if seconds > 0:
            rows(opened, "pipeline_moving", sink, epoch)


def _step(opened: Any, sink: str, epoch: int, bucket: int | None, most: int) -> bool:
    if bucket is None:
        [(more,)] = rows(opened, "pipeline_promote_step", sink, epoch, most)
    else:
        [(more,)] = rows(opened, "pipeline_promote_bucket", sink, epoch, bucket, most)
    return bool(more)


def _moved(opened: Any, sink: str, epoch: int) -> int:
    """Rows of the epoch that are in the queues, without those that were there before."""
    [(_, _, moved)] = rows(opened, "pipeline_committed", sink, epoch)
    return int(moved)


def _when_free(attempt: Callable[[], Answer]) -> Answer:
    """What `attempt` returns when no partition has queued pushes any more, and nobody else is in its way."""
    tries = 0
    while True:
        try:
            return patiently(attempt)
        except Contended:
            tries += 1
            if tries == BUSY_TRIES:
                raise
            time.sleep(BUSY_PAUSE_S)


def _promoted(url: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    generation = generation_of_environment()
    with connection(url) as opened:
        if generation is None:
            [found] = rows(opened, "pipeline_promote", *given)
        else:
            [found] = rows(opened, "pipeline_promote_held", *given, *generation)
        if found[3] is not None:
            return found  # it is refused, and another driver may be about to commit
        try:
            with database_errors():
                rows(opened, "pipeline_sweep", *given[:2])
        except PipelineError as error:  # the epoch is committed all the same
            log.warning("what attempts that do not count have staged is removed later: %s", error)
    return found


def ask(url: str, name: str, *arguments: object) -> list[tuple[Any, ...]]:
    with connection(url) as opened:
        return rows(opened, name, *arguments)


def _other_content(sink: str, epoch: int, count: int, then: tuple[int, Any] | None, newest: int | None) -> str:
    kind, _, name = sink.partition(" ")
    renamed = "give the option streamName a new value" if kind == "stream" else f"give another writeId than {name!r}"
    if kind == "batch" and then is not None:
        return (
            f"writeId {name!r} was written before with other messages ({then[0]} rows then, {count} now), on "
            f"{then[1]:%Y-%m-%d %H:%M:%S %Z}: nothing was written. Give another write another writeId; "
            "repeatedWrite=skip ignores every write under a writeId that is done"
        )
    if newest is not None and newest < epoch:
        return (
            f"the last batch of this stream that is known here is {newest}, and now comes {epoch}: nothing was "
            "written. The database was restored from an older copy, and what the batches between had written is gone. "
            f"Go on from a checkpoint as it was after batch {newest}, or with a new one; or {renamed} to go on without "
            "those"
        )
    what = (
        f"batch {epoch} of this stream was written before with other messages ({then[0]} rows then, {count} now), on "
        f"{then[1]:%Y-%m-%d %H:%M:%S %Z}"
        if then is not None
        else f"batch {epoch} of this stream comes after batch {newest} was written"
    )
    return (
        f"{what}: nothing was written. Its checkpoint was restored from an older copy, or two streams share one. Go on "
        f"with the newest checkpoint; or {renamed} to write everything again that this checkpoint has not read (what "
        "was written before is written twice, unless rows have a transactionId)"
    )
