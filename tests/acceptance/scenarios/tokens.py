"""A server that demands tokens: who pushed a message is what the token says. Needs a token of role `admin`."""

from __future__ import annotations

from queen import Queen
from stage import check, client, fill, gives, play


@check
async def the_producer_is_the_subject_of_the_token(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push({"data": 1, "producerSub": "somebody else"})
    [message] = await queen.queue(queue).batch(1).pop()
    assert message["producerSub"] == "alice"
    await queen.transaction().ack(message).queue(queue).push({"data": 2}).commit()
    [message] = await queen.queue(queue).batch(1).pop()
    assert (message["data"], message["producerSub"]) == (2, "alice")


@check
async def everything_needs_the_token(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1)
    async with client(token=None) as stranger:
        for request in (stranger.queue(queue).push({"data": 2}), stranger.queue(queue).delete()):
            try:
                await request
            except Exception as error:
                assert error.response.status_code == 401, error
            else:
                raise AssertionError("a stranger got in")
        assert (await stranger.admin.health())["status"] == "healthy"
    await gives(queen, queue, [1])


if __name__ == "__main__":
    play()
