"""Reading by offset (from 2.6 on)."""

from __future__ import annotations

from queen import Queen
from stage import check, fill, play


@check
async def everything_is_read_from_the_beginning(queen: Queen, queue: str) -> None:
    await fill(queen, queue, "a", {"b": 1}, None)
    read = await queen.queue(queue).fetch("Default")
    found = read["Default"]
    assert [record["payload"] for record in found["records"]] == ["a", {"b": 1}, None]
    assert [record["offset"] for record in found["records"]] == [1, 2, 3]
    assert (found["highWatermark"], found["nextOffset"]) == (4, 4)


@check
async def pages_follow_each_other(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *(f"{number}{'x' * 200}" for number in range(50)))
    read = await queen.queue(queue).fetch(["Default", "unknown"], max_bytes=1000)
    assert [record["payload"][:2].rstrip("x") for record in read["Default"]["records"]] == [str(n) for n in range(50)]
    assert read["unknown"]["records"] == []


@check
async def only_what_is_new(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    seen = await queen.queue(queue).fetch("Default")
    await fill(queen, queue, 3)
    new = await queen.queue(queue).fetch("Default", offsets={"Default": seen["Default"]["nextOffset"]})
    assert [record["payload"] for record in new["Default"]["records"]] == [3]


if __name__ == "__main__":
    play()
