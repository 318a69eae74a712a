"""message.transaction with the sessions and connections of SQLAlchemy and Django."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections
from django.db import transaction as django_transaction
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as new_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from client.test_own_transaction import effects, left, popped, table  # noqa: F401 - a fixture
from queenmq.client import InvalidUse, Message, Queen

INSERT = "INSERT INTO public.effects VALUES (:number)"

Table = asyncpg.Connection


@pytest.fixture
def engine(database_url: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def async_engine(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[AsyncEngine]:
    made = new_async_engine(database_url.replace("postgresql://", f"postgresql+{request.param}://"))
    yield made
    await made.dispose()


if not django_settings.configured:
    django_settings.configure(DATABASES={}, LOGGING_CONFIG=None)
    django.setup()


@contextmanager
def django_connection(database_url: str, **options: Any) -> Iterator[Any]:
    """A connection of Django, which belongs to the thread that asks for it."""
    url = urlsplit(database_url)
    place = {"HOST": url.hostname, "PORT": url.port, "USER": url.username, "PASSWORD": url.password}
    connections.settings["queen"] = connections.configure_settings(
        {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], **place, **options}}
    )["default"]
    connection = connections["queen"]
    try:
        yield connection
    finally:
        connection.close()
        del connections["queen"]
        del connections.settings["queen"]


async def in_thread(work: Callable[[], None]) -> None:
    await asyncio.to_thread(work)


class TestSqlAlchemy:
    @pytest.mark.parametrize("kind", ["connection", "session", "scoped session", "own class"])
    async def test_blocking(self, queen: Queen, table: Table, engine: sqlalchemy.Engine, kind: str) -> None:  # noqa: F811
        [message] = await popped(queen, 1)

        class Own(Session):
            pass

        def opened() -> Any:
            return {
                "connection": engine.connect,
                "session": lambda: Session(engine),
                "scoped session": lambda: scoped_session(sessionmaker(engine)),
                "own class": lambda: Own(engine),
            }[kind]()

        def work() -> None:
            session = opened()
            with message.transaction(session) as given:
                given.execute(text(INSERT), {"number": 1})
            session.close()

        await in_thread(work)
        assert (await effects(table), await left(queen)) == ([1], [])

    @pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
    async def test_asynchronous(self, queen: Queen, table: Table, async_engine: AsyncEngine, kind: str) -> None:  # noqa: F811
        [message] = await popped(queen, 1)
        session: Any = {
            "connection": async_engine.connect,
            "session": lambda: AsyncSession(async_engine),
            "scoped session": lambda: async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task),
        }[kind]()
        if kind == "connection":
            await session.start()
        async with message.transaction(session):
            await session.execute(text(INSERT), {"number": 1})
        await session.close()
        assert (await effects(table), await left(queen)) == ([1], [])

    async def test_a_lease_that_is_over_rolls_everything_back(
        self,
        queen: Queen,
        table: Table,  # noqa: F811
        async_engine: AsyncEngine,
    ) -> None:
        [message] = await popped(queen, 1)
        await queen.ack(message)
        async with AsyncSession(async_engine) as session:
            with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
                async with message.transaction(session):
                    await session.execute(text(INSERT), {"number": 1})
            assert refused.value.orig is not None
            assert getattr(refused.value.orig, "sqlstate", None) == "QN009"
        assert await effects(table) == []

    async def test_a_session_that_is_in_a_transaction(
        self,
        queen: Queen,
        table: Table,  # noqa: F811
        engine: sqlalchemy.Engine,
    ) -> None:
        [message] = await popped(queen, 1)

        def work() -> None:
            with Session(engine) as session:
                session.execute(text("SELECT 1"))
                with pytest.raises(InvalidUse, match="in a transaction already"), message.transaction(session):
                    pass

        await in_thread(work)
        assert (await queen.ack(message)).success

    @pytest.mark.parametrize("of", ["engine", "connection"])
    async def test_autocommit_is_refused_before_anything_is_written(
        self,
        queen: Queen,
        table: Table,  # noqa: F811
        engine: sqlalchemy.Engine,
        database_url: str,
        of: str,
    ) -> None:
        """SQLAlchemy's transaction is none there: what the handler writes would stay although the lease is over."""
        [message] = await popped(queen, 1)

        def work() -> None:
            with ExitStack() as stack:
                if of == "engine":
                    url = database_url.replace("postgresql://", "postgresql+psycopg://")
                    other = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
                    stack.callback(other.dispose)
                    session: Any = stack.enter_context(Session(other))
                else:
                    session = stack.enter_context(engine.connect()).execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(InvalidUse, match="AUTOCOMMIT"), message.transaction(session):
                    session.execute(text(INSERT), {"number": 1})

        await in_thread(work)
        assert await effects(table) == []
        assert (await queen.ack(message)).success

    async def test_the_wrong_kind_of_with(self, queen: Queen, engine: sqlalchemy.Engine, database_url: str) -> None:
        [message] = await popped(queen, 1)
        with Session(engine) as session, pytest.raises(InvalidUse, match="with `with message"):
            async with message.transaction(session):
                pass
        other = new_async_engine(database_url.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(other) as session:
            with pytest.raises(InvalidUse, match="with `async with message"), message.transaction(session):
                pass


class TestDjango:
    async def test_it(self, queen: Queen, table: Table, database_url: str) -> None:  # noqa: F811
        [message] = await popped(queen, 1)

        def work() -> None:
            with (
                django_connection(database_url) as connection,
                message.transaction(connection),
                connection.cursor() as cursor,
            ):
                cursor.execute("INSERT INTO public.effects VALUES (%s)", [1])

        await in_thread(work)
        assert (await effects(table), await left(queen)) == ([1], [])

    async def test_an_error_rolls_both_back(self, queen: Queen, table: Table, database_url: str) -> None:  # noqa: F811
        [message] = await popped(queen, 1)

        def work() -> None:
            with django_connection(database_url) as connection:
                with pytest.raises(RuntimeError, match="no such"), message.transaction(connection):
                    with connection.cursor() as cursor:
                        cursor.execute("INSERT INTO public.effects VALUES (%s)", [1])
                    raise RuntimeError("no such customer")
                assert not connection.in_atomic_block

        await in_thread(work)
        assert await effects(table) == []
        assert (await queen.ack(message)).success

    @pytest.mark.parametrize("how", ["atomic", "no autocommit"])
    async def test_a_connection_that_is_in_a_transaction(
        self,
        queen: Queen,
        table: Table,  # noqa: F811
        database_url: str,
        how: str,
    ) -> None:
        [message] = await popped(queen, 1)

        def refused(connection: Any, message: Message) -> None:
            with pytest.raises(InvalidUse, match="could not commit"), message.transaction(connection):
                pass

        def work() -> None:
            with django_connection(database_url) as connection:
                if how == "atomic":
                    with django_transaction.atomic(using="queen"):
                        refused(connection, message)
                else:
                    connection.set_autocommit(False)
                    refused(connection, message)
                    connection.rollback()

        await in_thread(work)
        assert (await queen.ack(message)).success
