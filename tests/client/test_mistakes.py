"""Mistakes in programs that use the client are found where they are made, with words that say what to do."""

from __future__ import annotations

import gc
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.faults import Answer, Scripted
from queenmq.client import BlockingQueen, InvalidUse, Message, NetworkError, NotFound, Queen, Reject, Unauthenticated
from queenmq.client.models import DeadLetter
from queenmq.client.options import URL_VARIABLE

NOBODY = "http://127.0.0.1:1"
MESSAGE = Message(
    id="1", transaction_id="order-7", partition_id="2", queue="shop", raw=msgspec.Raw(b'{"order": 7}'), retry_count=1
)


@pytest.mark.parametrize("handler", [None, "print", lambda: None, lambda one, two: None])
async def test_a_handler_that_cannot_be_called_is_refused_before_it_spoils_messages(handler: Any) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="what was popped"):
            queen.queue("shop").consume(handler)


def test_a_blocking_consumer_refuses_it_at_once_too() -> None:
    wrong: Any = None
    with BlockingQueen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="what was popped"):
            queen.queue("shop").start_consumer(wrong)
        with pytest.raises(InvalidUse, match="what was popped"):
            queen.queue("shop").consume(wrong)


@pytest.mark.parametrize("handler", [print, dict, lambda one, two=2: None, lambda *all: None, [].append])
async def test_every_handler_that_takes_one_argument_is_taken(handler: Any) -> None:
    async with Scripted() as server, Queen(server.url) as queen:
        with pytest.raises(NotFound):
            await queen.queue("shop").connection(False).consume(handler)


async def test_a_misspelt_status_is_refused_instead_of_left_to_the_result() -> None:
    wrong: Any = "done"
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match=r"'done' is no status .*: completed, failed, retry or dlq"):
            await queen.ack(MESSAGE, wrong)


async def test_a_misspelt_option_of_a_queue_is_refused_and_an_unknown_one_may_be_in_a_dict() -> None:
    wrong: Any = {"lease_tim": 5}
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match=r"no option lease_tim; did you mean lease_time\?"):
            queen.queue("shop").config(**wrong)
        queen.queue("shop").config({"ofTomorrow": 1}, lease_time=5)


@pytest.mark.parametrize("wrong", ["5", 0, -1, None, 2.5])
async def test_numbers_that_are_none_are_refused(wrong: Any) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="batch must be a"):
            queen.queue("shop").batch(wrong)


@pytest.mark.parametrize("wrong", ["5", -1, None])
async def test_what_is_no_number_from_zero_on_is_refused(wrong: Any) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="prefetch must be a"):
            queen.queue("shop").prefetch(wrong)
        with pytest.raises(InvalidUse, match="ack_millis must be a"):
            queen.queue("shop").ack_millis(wrong)


async def test_moments_need_a_time_zone() -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="subscription_from must have a time zone"):
            queen.queue("shop").subscription_from(datetime(2026, 1, 31))


async def test_a_transaction_that_nobody_commits_is_told_of() -> None:
    async with Queen(NOBODY) as queen:
        with pytest.warns(RuntimeWarning, match="a transaction was never committed"):
            queen.transaction().queue("shop").push(1)
            gc.collect()


async def test_a_transaction_that_is_given_up_is_none_of_it(recwarn: pytest.WarningsRecorder) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(KeyError):
            async with queen.transaction() as transaction:
                transaction.queue("shop").push(1)
                raise KeyError
        with BlockingQueen(NOBODY) as blocking, pytest.raises(KeyError), blocking.transaction() as other:
            other.queue("shop").push(1)
            raise KeyError
    del transaction, other
    gc.collect()
    assert not recwarn.list


async def test_a_path_that_the_server_does_not_have_is_named() -> None:
    async with Scripted() as server, Queen(f"{server.url}/api/v1") as queen:
        with pytest.raises(NotFound, match=r"/api/v1 has no POST /api/v1/push; is it a Queen server's URL\?") as caught:
            await queen.queue("shop").push(1)
    assert caught.value.code == "not_found"


async def test_a_refused_client_is_told_how_to_give_a_token() -> None:
    refused = Answer(401, {"error": "Authentication required", "code": "unauthenticated"})
    async with Scripted(default=refused) as server, Queen(server.url) as queen:
        with pytest.raises(Unauthenticated, match="Authentication required") as caught:
            await queen.queue("shop").push(1)
    assert "bearer_token" in "".join(traceback.format_exception(caught.value))


async def test_no_connection_is_told_without_the_traceback_of_a_library() -> None:
    async with Queen(NOBODY, retry_attempts=1) as queen:
        with pytest.raises(NetworkError, match=r"no connection to http://127.0.0.1:1: Connection refused") as caught:
            await queen.queue("shop").push(1)
    assert "aiohttp" not in "".join(traceback.format_exception(caught.value))


def test_a_message_shows_its_payload_and_what_of_it_is_set() -> None:
    assert repr(MESSAGE) == (
        "Message(id='1', transaction_id='order-7', partition_id='2', partition='Default', queue='shop', retry_count=1, "
        'data={"order": 7})'
    )
    letter = DeadLetter(
        id="1", transaction_id="a", partition_id="2", partition="p", queue="q", consumer_group="g",
        error_message="no such mailbox", raw=msgspec.Raw(b'"%s"' % (b"x" * 500)),
    )  # fmt: skip
    assert "error_message='no such mailbox'" in repr(letter)
    assert len(repr(letter)) < 400


async def test_a_client_without_a_server_is_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Answer(401, {"error": "Authentication required", "code": "unauthenticated"})
    monkeypatch.setenv("QUEEN_TOKEN", "of-the-environment")
    async with Scripted(default=refused) as server:
        monkeypatch.setenv(URL_VARIABLE, f" {server.url}/ , {NOBODY}")
        for client in (Queen(), Queen(bearer_token="of-the-program"), Queen(server.url)):
            async with client as queen:
                with pytest.raises(Unauthenticated):
                    await queen.queue("shop").push(1)
        tokens = [request.headers.get("authorization") for request in server.seen]
    # The token of the environment goes to the server of the environment, and to no other.
    assert tokens == ["Bearer of-the-environment", "Bearer of-the-program", None]


def test_what_the_environment_says_must_make_sense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUEEN_CA_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidUse, match=r"QUEEN_CA_FILE names .*none.pem, which cannot be used: No such file"):
        Queen()
    monkeypatch.delenv("QUEEN_CA_FILE")
    monkeypatch.setenv(URL_VARIABLE, "127.0.0.1:6632")
    with pytest.raises(InvalidUse, match="not the URL of a server"):
        BlockingQueen()


def test_a_reject_with_a_misspelt_status_is_refused_where_it_is_raised() -> None:
    wrong: Any = "later"
    with pytest.raises(InvalidUse, match=r"'later' is no status of a Reject: dlq, retry or failed"):
        raise Reject("busy", wrong)


@pytest.mark.parametrize("wrong", [None, "5", 2, [], {}])
async def test_what_is_no_status_is_refused_in_words(wrong: Any) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="is no status of an acknowledgement"):
            await queen.ack(MESSAGE, wrong)


@pytest.mark.parametrize("client", [Queen, BlockingQueen])
def test_a_misspelt_option_of_a_client_is_refused_with_a_near_name(client: Any) -> None:
    with pytest.raises(InvalidUse, match=r"a client has no option bearer; did you mean bearer_token\?"):
        client(NOBODY, bearer="t")
    with pytest.raises(InvalidUse, match=r"a client has no option zzz$"):
        client(NOBODY, zzz=1)


@pytest.mark.parametrize("option", ["timeout_millis", "retry_delay_millis", "max_connections"])
def test_an_option_that_is_no_number_is_refused_in_words(option: str) -> None:
    wrong: Any = {option: "5s"}
    with pytest.raises(InvalidUse, match=f"{option} must be"):
        Queen(NOBODY, **wrong)


@pytest.mark.parametrize("wrong", ["5s", [], float("nan"), float("inf")])
async def test_a_delay_that_is_no_number_is_refused_in_words(wrong: Any) -> None:
    async with Queen(NOBODY) as queen:
        with pytest.raises(InvalidUse, match="delay must be a timedelta or a number of seconds"):
            await queen.queue("shop").schedule(1, key="k", delay=wrong)


@pytest.mark.parametrize("make", [lambda token: token, lambda token: lambda: token])
async def test_a_token_may_have_white_space_around_it_as_files_have(make: Any) -> None:
    async with Scripted() as server, Queen(server.url, bearer_token=make(" abc.def\r\n")) as queen:
        with pytest.raises(NotFound):
            await queen.queue("shop").push(1)
    [seen] = server.seen
    assert seen.headers["authorization"] == "Bearer abc.def"


@pytest.mark.parametrize("wrong", ["abc\ndef", "abc\0", "a\x7fb", b"abc", Path("token")])
async def test_what_cannot_be_a_token_is_refused_and_not_shown(wrong: Any) -> None:
    with pytest.raises(InvalidUse, match="bearer_token must be text without control characters") as caught:
        Queen(NOBODY, bearer_token=wrong)
    assert "abc" not in str(caught.value)
    async with Queen(NOBODY, bearer_token=lambda: wrong) as queen:
        with pytest.raises(InvalidUse, match="bearer_token must be text"):
            await queen.queue("shop").push(1)


def test_an_empty_name_is_refused() -> None:
    """It is neither all partitions nor the default one."""
    queen = BlockingQueen("http://127.0.0.1:1")
    with pytest.raises(InvalidUse, match="the name of a partition"):
        queen.queue("q").partition("")
    with pytest.raises(InvalidUse, match="the name of a group"):
        queen.queue("q").group("")
    with pytest.raises(InvalidUse, match="the name of a queue"):
        queen.queue("")
    queen.close()
