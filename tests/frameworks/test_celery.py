"""Celery and kombu on Queen: the guide's example with a worker that is killed, and what kombu expects of a broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Running, serving
from client.test_tls import certificate  # noqa: F401 - a fixture
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from server_settings import settings_with

import queenmq.integrations.kombu  # noqa: F401 - makes queen:// known
from frameworks.conftest import PATIENCE_S, Example
from queenmq.client import BlockingQueen

GUIDE = "celery.md"
WORKER = ("-W", "ignore", "-m", "celery", "-A", "shop", "worker", "--concurrency", "2", "--loglevel", "WARNING")
SECRET = "a secret of more than thirty-two bytes"


def test_a_worker_is_killed_and_nothing_is_lost(example: Example) -> None:
    example.run("place_orders.py")
    first = example.start(*WORKER, "--hostname", "first@here")
    example.until(lambda done: len(done) >= 3)
    example.kill(first)
    second = example.start(*WORKER, "--hostname", "second@here")
    done = example.until(lambda done: set(done) == set(range(22)))
    assert len(done) - 22 <= 2, "only what ran when the worker was killed may have run twice"
    asked = example.run("-W", "ignore", "-m", "celery", "-A", "shop", "inspect", "ping", "--timeout", "5")
    assert "second@here" in asked
    example.end(second)


@pytest.fixture
def connection(running: Running) -> Iterator[Connection]:
    with Connection(running.url.replace("http://", "queen://") + "//") as made:
        yield made


@pytest.fixture
def client(running: Running) -> Iterator[BlockingQueen]:
    with BlockingQueen(running.url) as made:
        yield made


class Inbox:
    """A consumer that keeps what it gets."""

    def __init__(self, connection: Connection, *queues: Queue, **options: Any) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        self.consumer = Consumer(connection, list(queues), on_message=self.messages.append, **options)

    def get(self) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not self.messages:
            assert time.monotonic() < deadline
            try:
                self._connection.drain_events(timeout=1)
            except TimeoutError:
                continue
        return self.messages.pop(0)

    def is_empty(self) -> bool:
        with suppress(TimeoutError):
            self._connection.drain_events(timeout=0.3)
        return not self.messages


def test_a_simple_queue(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        for number in range(3):
            queue.put({"n": number})
        assert len(queue) == 3
        got = [queue.get(timeout=PATIENCE_S) for _ in range(3)]
        assert sorted(message.payload["n"] for message in got) == [0, 1, 2]
        for message in got:
            message.ack()
    Producer(connection).publish("purged", routing_key=name)
    with connection.channel() as channel:
        assert channel.queue_purge(name) == 1


def test_what_becomes_of_a_message(connection: Connection, client: BlockingQueen, name: str) -> None:
    producer, inbox = Producer(connection), Inbox(connection, Queue(name), prefetch_count=1)
    producer.publish("a", routing_key=name)
    with inbox.consumer:
        message = inbox.get()
        assert not message.delivery_info["redelivered"]
        message.requeue()
        message = inbox.get()
        assert (message.payload, message.delivery_info["redelivered"]) == ("a", True)
        assert inbox.is_empty(), "nobody has acknowledged it"
        inbox.consumer.recover(requeue=True)
        inbox.get().reject()
        assert inbox.is_empty()
    with connection.channel() as channel:
        assert channel.basic_get(name) is None
    assert client.queue(name).dlq().get().total == 1


def test_what_was_not_acknowledged_is_given_back_at_once(running: Running, connection: Connection, name: str) -> None:
    Producer(connection).publish("a", routing_key=name)
    url = running.url.replace("http://", "queen://")
    with Connection(url) as other:
        inbox = Inbox(other, Queue(name))
        with inbox.consumer:
            inbox.get()
    with connection.channel() as channel:
        message = channel.basic_get(name)
        assert message.payload == "a"
        channel.basic_ack(message.delivery_tag)
        assert channel.basic_get(name) is None


@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_exchanges_that_all_connections_share(running: Running, connection: Connection, name: str, kind: str) -> None:
    exchange = Exchange(name, type=kind)
    queues = [Queue(f"{name}.{key}", exchange, routing_key=f"{key}.#", auto_delete=True) for key in ("a", "b")]
    inboxes = [Inbox(connection, queue, no_ack=True) for queue in queues]
    with inboxes[0].consumer, inboxes[1].consumer:
        assert inboxes[0].is_empty()
        with Connection(running.url.replace("http://", "queen://")) as other:
            Producer(other).publish("x", exchange=exchange, routing_key="a.1", declare=[exchange])
            Producer(other).publish("y", exchange=exchange, routing_key="b.1", declare=[exchange])
        expected = [{"x", "y"}] * 2 if kind == "fanout" else [{"x"}, {"y"}]
        assert [{inbox.get().payload for _ in one} for inbox, one in zip(inboxes, expected, strict=True)] == expected


def test_priorities_are_queues(running: Running, client: BlockingQueen, name: str) -> None:
    url = running.url.replace("http://", "queen://")
    with Connection(url, transport_options={"priority_steps": [0, 5]}) as connection:
        producer = Producer(connection)
        for priority in (0, 4, 5, 9):
            producer.publish(priority, routing_key=name, priority=priority)
        assert sorted(client.admin.get_queue(f"{name}.p5")["partitions"], key=str)
        with connection.channel() as channel:
            found = []
            while (message := channel.basic_get(name, no_ack=True)) is not None:
                found.append(message.payload)
        assert (set(found[:2]), set(found[2:])) == ({5, 9}, {0, 4})


def test_a_moment_is_a_timer(connection: Connection, client: BlockingQueen, name: str) -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    Producer(connection).publish("later", routing_key=name, headers={"eta": eta.isoformat()})
    [timer] = client.queue(name).timers()
    assert datetime.fromisoformat(timer.deliver_at) - eta < timedelta(seconds=1)
    Producer(connection).publish("now", routing_key=name, headers={"eta": datetime.now(UTC).isoformat()})
    with connection.channel() as channel:
        assert channel.basic_get(name, no_ack=True).payload == "now"


def test_what_has_expired_is_not_delivered(connection: Connection, client: BlockingQueen, name: str) -> None:
    producer, inbox = Producer(connection), Inbox(connection, Queue(name))
    for body, expiration in (("old", 0.001), ("new", 600)):
        producer.publish(body, routing_key=name, expiration=expiration)
    with connection.channel() as channel:
        assert channel.basic_get(name, no_ack=True).payload == "new"
        assert channel.basic_get(name) is None
    for body, expiration in (("old", 0.001), ("new", 600)):
        producer.publish(body, routing_key=name, expiration=expiration)
    with inbox.consumer:
        message = inbox.get()
        assert message.payload == "new"
        message.ack()
        assert inbox.is_empty()
    assert client.queue(name).dlq().get().total == 0
    # Celery's workers note in the result that a task has expired.
    producer.publish("task", routing_key=name, expiration=0.001, headers={"expires": datetime.now(UTC).isoformat()})
    with connection.channel() as channel:
        assert channel.basic_get(name, no_ack=True).payload == "task"


def test_the_options_of_a_queue_that_exists_are_kept(connection: Connection, client: BlockingQueen, name: str) -> None:
    client.queue(name).config(lease_time=17).create()
    Producer(connection).publish("a", routing_key=name)
    Producer(connection).publish("a", routing_key=f"{name}.new")
    options = [client.admin.get_queue_detail(one)["queue"]["options"] for one in (name, f"{name}.new")]
    assert [one["leaseTime"] for one in options] == [17, 60]


def test_errors_that_kombu_understands(name: str) -> None:
    options = {"client_options": {"retry_attempts": 1}}
    connection = Connection("queen://127.0.0.1:1", transport_options=options)
    with connection, pytest.raises(connection.connection_errors):
        connection.connect()


def test_with_a_token_over_https(database_url: str, certificate: Path, name: str) -> None:  # noqa: F811
    settings = settings_with(
        auth={"enabled": True, "secret": SECRET}, tls={"certificate": certificate, "key": certificate}
    )
    import jwt

    token = jwt.encode({"sub": "celery", "role": "read-write", "exp": time.time() + 600}, SECRET, "HS256")
    with serving(settings, database_url) as server:
        address = server.url.removeprefix("http://")
        trusting = {"ca_certs": str(certificate)}
        with Connection(f"queen://:{token}@{address}", ssl=trusting) as connection, connection.channel() as channel:
            Producer(connection).publish("sealed", routing_key=name)
            assert channel.basic_get(name, no_ack=True).payload == "sealed"
        for url, ssl_options in ((f"queen://{address}", trusting), (f"queen://:{token}@{address}", True)):
            quick = {"client_options": {"retry_attempts": 1}}
            connection = Connection(url, ssl=ssl_options, transport_options=quick)
            with connection, pytest.raises((OperationalError, *connection.channel_errors)):
                Producer(connection).publish("refused", routing_key=name)
