"""Connections of the pipeline to PostgreSQL: psycopg for statements, ADBC for moving Arrow batches.

Every connection commits by itself, so none holds a transaction between two statements. Errors become ours here and
never show the password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from queenmq.pipeline.errors import (
    Contended,
    DatabaseAway,
    PartitionsBusy,
    PipelineError,
    StagedRowsMissing,
    Superseded,
    WriteIncomplete,
)
from queenmq.storage import sqlstates
from queenmq.storage.sqlstates import Cause, cause_of, sqlstate_of
from queenmq.storage.statements import statement

APPLICATION: Final = "queen pipeline"
CONNECT_S: Final = 10
_POOLED: Final = (
    "there is a pooler between the pipeline and PostgreSQL, and the pipeline needs sessions of its own: give it the "
    "URL of the database without the pooler"
)
_OTHER_SCHEMA: Final = "the database has no schema queen of this version: start a server of this version on it first"
# Of errors of a connection those that waiting does not mend; whatever else it is, PostgreSQL may be back in a moment.
_FOR_GOOD: Final = re.compile(
    r"authentication|password|pg_hba|does not exist|permission denied|translate host name|certificate|SSL(?! SYSCALL)|"
    r"invalid|not supported"
)
# What ADBC and Arrow say, which have no other sign for it.
_LOST: Final = re.compile(
    r"server closed the connection|terminating connection|connection (?:to|not|was|reset|refused|timed)|"
    r"could not (?:connect|receive|send)|no connection to the server|is (?:starting up|shutting down)|SSL SYSCALL|"
    r"EOF detected",
    re.IGNORECASE,
)
_NO_TABLE: Final = re.compile(r'relation "queen\.\w+" does not exist')
_PASSWORD: Final = re.compile(r"(//[^:/@\s]*:)[^@\s]*@")


def connect(url: str) -> Any:
    """A psycopg connection whose cursors take the `$1` of the named statements."""
    import psycopg

    # The caller's come first: those of a keyword would replace them.
    parts = _parts(url)
    given = parts.get("options") or os.environ.get("PGOPTIONS", "")
    try:
        opened = psycopg.connect(
            _to_the_writer(url, parts),
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
            connect_timeout=CONNECT_S,
            application_name=APPLICATION,
            prepare_threshold=None,
            options=f"{given} -c timezone=UTC -c jit=off",
        )
    except psycopg.Error as error:
        if "unsupported startup parameter" in str(error):
            raise PipelineError(_POOLED) from None
        raise _unconnected(error) from None
    try:
        [pid] = opened.execute("SELECT pg_backend_pid()").fetchone()
    except psycopg.Error as error:
        opened.close()
        raise database_error(error) from error
    if pid != opened.info.backend_pid:
        opened.close()
        raise PipelineError(_POOLED)
    return opened


def _parts(url: str) -> dict[str, Any]:
    """What the URL says. Raises PipelineError without the driver's words for it, which show pieces of the password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    found: dict[str, Any] | None = None
    with suppress(psycopg.Error):
        found = dict(conninfo_to_dict(url))
    # A host that begins with @ is an abstract socket; anywhere else it is the end of a password.
    if found is None or "@" in str(found.get("host", ""))[1:]:
        raise PipelineError(
            "cannot connect to PostgreSQL: the URL cannot be read; its parameters must be those of libpq, and what is "
            "special in the user's name and the password is written with %"
        )
    return found


def _to_the_writer(url: str, parts: dict[str, Any]) -> str:
    """Of several hosts the one that can be written to, unless the caller chooses otherwise."""
    if "," not in str(parts.get("host", "")) or "target_session_attrs" in parts or "PGTARGETSESSIONATTRS" in os.environ:
        return url
    return f"{url}{'&' if '?' in url else '?'}target_session_attrs=read-write"


def _unconnected(error: BaseException) -> PipelineError:
    told = _clean(error)
    kind = PipelineError if _FOR_GOOD.search(told) else DatabaseAway
    return kind(f"cannot connect to PostgreSQL: {told}")


def is_writable(opened: Any) -> bool:
    """False on a standby, and on a former primary that has become one."""
    [(_, writable, _)] = rows(opened, "writable")
    return bool(writable)


@contextmanager
def connection(url: str) -> Iterator[Any]:
    """A psycopg connection for a while; what goes wrong inside leaves as ours."""
    opened = connect(url)
    try:
        with database_errors():
            yield opened
    finally:
        opened.close()


@contextmanager
def database_errors() -> Iterator[None]:
    """Errors of psycopg inside become ours."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise database_error(error) from error


def rows(opened: Any, name: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Run the named statement and return its rows, none if it has no result."""
    cursor = opened.execute(statement(name), arguments)
    return cursor.fetchall() if cursor.description else []


def database_error(error: Any) -> PipelineError:
    """Our error for one of psycopg's. A missing table means that no server of this version has been there."""
    import psycopg

    state = sqlstate_of(error)
    lost = state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if lost or (cause_of(state) is Cause.CONNECTION and state != sqlstates.READ_ONLY):
        return DatabaseAway(f"the connection to PostgreSQL was lost: {_clean(error)}")
    if state == sqlstates.STAGED_ROWS_MISSING:
        return StagedRowsMissing(
            f"what tasks had written is gone ({_clean(error)}): PostgreSQL crashed meanwhile, another driver of the "
            "same stream or writeId has removed it, or it was older than a day. Nothing was stored; start it again"
        )
    if state == sqlstates.EPOCH_INCOMPLETE:
        return WriteIncomplete(
            f"a write that is decided cannot be finished ({_clean(error)}): somebody else has changed "
            "queen.pipeline_chunks. What was moved stays in the queues; docs/pipeline.md says under Writing how to "
            "give up what is missing"
        )
    if state == sqlstates.SUPERSEDED:
        return Superseded(f"another driver has taken the place of this one, nothing was published ({_clean(error)})")
    if state in sqlstates.OTHER_SCHEMA:
        return PipelineError(_OTHER_SCHEMA)
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    if state == sqlstates.LOCK_NOT_AVAILABLE:
        return PartitionsBusy(
            "partitions to write to have pushes in the operation queue, and they were not done in time"
        )
    if cause_of(state) is Cause.CONTENTION:
        return Contended(f"others were in the way in PostgreSQL, and nothing was stored ({_clean(error)})")
    if state == sqlstates.ENCRYPTION_REQUIRED:
        return PipelineError(f"these queues demand encrypted payloads, give the option encryptionKey: {detail}")
    if state == sqlstates.QUEUE_FULL:
        return PipelineError(f"these queues are full (maxSize), nothing was written: {detail}")
    return PipelineError(f"PostgreSQL refused: {_clean(error)}")


@contextmanager
def arrow_connection(url: str) -> Iterator[Any]:
    """An ADBC connection: results come as Arrow batches through COPY."""
    from adbc_driver_manager import Error
    from adbc_driver_postgresql import dbapi

    try:
        opened = dbapi.connect(_to_the_writer(url, _parts(url)), autocommit=True)
    except Error as error:
        raise _unconnected(error) from None
    try:
        with arrow_errors():
            with opened.cursor() as cursor:
                # Arrow uses UTF-8, also if the database has another encoding.
                cursor.execute("SET client_encoding = 'UTF8'")
            yield opened
    finally:
        opened.close()


@contextmanager
def arrow_errors() -> Iterator[None]:
    """Errors of ADBC inside become ours."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        raise arrow_error(error) from error


def arrow_error(error: Exception) -> PipelineError:
    """Our error for one of ADBC, or for an OSError of Arrow about it."""
    if cause_of(sqlstate_of(error)) is Cause.CONNECTION or _LOST.search(str(error)):
        return DatabaseAway(f"the connection to PostgreSQL was lost: {_clean(error)}")
    if _NO_TABLE.search(str(error)):
        return PipelineError(_OTHER_SCHEMA)
    return PipelineError(f"PostgreSQL refused: {_clean(error)}")


def batches(cursor: Any) -> Iterator[Any]:
    """The Arrow batches of what the cursor has executed. What goes wrong on the way is an OSError to Arrow."""
    try:
        yield from cursor.fetch_record_batch()
    except OSError as error:
        raise arrow_error(error) from error


def _clean(error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return _PASSWORD.sub(r"\1***@", first)
