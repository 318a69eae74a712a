"""Creating, configuring and deleting queues; health."""

from __future__ import annotations

from queen import Queen
from stage import check, fill, is_empty, play

_NEWEST = {
    "archiveBeforeDelete": False,
    "setAsideFailedPushes": False,
    "popWaitBaseIntervalMs": None,
    "popWaitMaxIntervalMs": None,
    "popWaitBackoffThreshold": None,
    "popWaitBackoffMultiplier": None,
}
_DEFAULTS = {
    "leaseTime": 300,
    "maxSize": 0,
    "ttl": 3600,
    "retryLimit": 3,
    "retryDelay": 1000,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
    **_NEWEST,
}
_OTHERS = {
    "leaseTime": 61,
    "maxSize": 62,
    "ttl": 63,
    "retryLimit": 4,
    "retryDelay": 65,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "priority": 6,
    "delayedProcessing": 7,
    "windowBuffer": 8,
    "retentionSeconds": 69,
    "completedRetentionSeconds": 70,
    "retentionEnabled": True,
    "encryptionEnabled": True,
    "maxWaitTimeSeconds": 71,
}


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@check
async def creates_with_defaults(queen: Queen, queue: str) -> None:
    answer = await queen.queue(queue).create()
    assert answer["configured"] is True
    assert answer["queue"] == queue
    assert answer["options"] == _DEFAULTS


@check
async def echoes_every_option(queen: Queen, queue: str) -> None:
    options = {_snake(name): value for name, value in _OTHERS.items()}
    answer = await queen.queue(queue).namespace("shop").task("bill").config(options).create()
    assert answer["configured"] is True
    # Published clients do not know the newest options.
    assert answer["options"] == _OTHERS | _NEWEST
    assert (answer["namespace"], answer["task"]) == ("shop", "bill")


@check
async def creating_again_changes_what_the_client_sends(queen: Queen, queue: str) -> None:
    """Each version sends other options with their defaults; what it does not send stays."""
    first = await queen.queue(queue).config({"lease_time": 5, "retry_delay": 7}).create()
    second = await queen.queue(queue).config({"priority": 3}).create()
    assert second["configured"] is True
    assert second["queueId"] == first["queueId"]
    assert second["options"] in (_DEFAULTS | {"priority": 3}, _DEFAULTS | {"priority": 3, "retryDelay": 7})


@check
async def deletes_with_everything_in_it(queen: Queen, queue: str) -> None:
    await queen.queue(queue).create()
    await fill(queen, queue, 1, 2)
    answer = await queen.queue(queue).delete()
    assert (answer["deleted"], answer["existed"]) == (True, True)
    assert await is_empty(queen, queue)
    assert (await queen.queue(queue).create())["configured"] is True
    assert await is_empty(queen, queue)


@check
async def deleting_an_unknown_queue_succeeds(queen: Queen, queue: str) -> None:
    answer = await queen.queue(queue).delete()
    assert (answer["deleted"], answer["existed"]) == (True, False)


@check
async def a_refused_option_is_raised(queen: Queen, queue: str) -> None:
    try:
        await queen.queue(queue).config({"lease_time": -1}).create()
    except Exception as error:
        assert "leaseTime" in str(error), error
    else:
        raise AssertionError("a negative lease time was accepted")
    assert (await queen.queue(queue).delete())["existed"] is False


@check
async def the_callbacks_are_called(queen: Queen, queue: str) -> None:
    created: list[object] = []
    refused: list[str] = []

    async def on_success(answer: dict[str, object]) -> None:
        created.append(answer["queue"])

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    await queen.queue(queue).create().on_success(on_success)
    await queen.queue(queue).config({"retry_limit": "many"}).create().on_error(on_error)
    assert created == [queue]
    assert len(refused) == 1
    assert "retryLimit" in refused[0]


@check
async def the_server_is_healthy(queen: Queen, queue: str) -> None:
    health = await queen.admin.health()
    assert (health["status"], health["database"]) == ("healthy", "connected")


if __name__ == "__main__":
    play()
