"""kombu's own tests of a transport, on Queen. Run by test_suites.py with the sources of kombu on the path."""

from __future__ import annotations

import os

import kombu
import pytest
from t.integration.common import (  # type: ignore[import-not-found]
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

import queenmq.integrations.kombu  # noqa: F401 - makes queen:// known

URL = os.environ["TEST_BROKER"]
AWAY = "queen://127.0.0.1:1"


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(AWAY, transport_options={"client_options": {"retry_attempts": 1}})


@pytest.fixture
def failover_connection() -> kombu.Connection:
    options = {"client_options": {"retry_attempts": 1}}
    return kombu.Connection(f"{AWAY};{URL}", transport_options=options, connect_timeout=10)


class test_basic(BasicFunctionality): ...


class test_exchanges(BaseExchangeTypes): ...


class test_time_to_live(BaseTimeToLive): ...


class test_messages(BaseMessage): ...


class test_event_loop(BaseEventLoop): ...


class test_failover(BaseFailover): ...


class test_priorities(BasePriority):
    @pytest.fixture
    def connection(self) -> kombu.Connection:
        """Messages of the same priority come in order if a queue has one partition."""
        return kombu.Connection(URL, transport_options={"priority_steps": list(range(10)), "partitions": 1})
