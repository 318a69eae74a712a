"""Values under keys, counters, locks and transactions that depend on them."""

from __future__ import annotations

from queen import Queen
from stage import check, data_of, play


@check
async def values_with_conditions_and_an_end(queen: Queen, queue: str) -> None:
    first = await queen.kv.put(queue, "k", {"state": "held"}, ttl_seconds=60)
    assert first
    got = await queen.kv.get(queue, "k")
    assert (got["value"], got["version"]) == ({"state": "held"}, first["version"])
    assert await queen.kv.put(queue, "k", 2, ttl_seconds=60, expect=got["version"])
    late = await queen.kv.put(queue, "k", 3, forever=True, expect=got["version"])
    assert not late
    assert (late["reason"], late["value"]) == ("version", 2)
    assert await queen.kv.once(queue, "marker", ttl_seconds=60)
    assert not await queen.kv.once(queue, "marker", ttl_seconds=60)
    assert [row["key"] for row in await queen.kv.list_all(queue, "mark")] == ["marker"]
    many = await queen.kv.get_many(queue, ["k", "none"])
    assert ([row["key"] for row in many["rows"]], many["missing"]) == (["k"], ["none"])
    assert await queen.kv.delete(queue, "k")
    assert not await queen.kv.delete(queue, "k")


@check
async def a_counter_admits_up_to_its_bound(queen: Queen, queue: str) -> None:
    admitted = [bool(await queen.kv.incr(queue, "c", max=2, ttl_seconds=60)) for _ in range(4)]
    assert admitted == [True, True, False, False]


@check
async def a_lock_fences_the_old_holder(queen: Queen, queue: str) -> None:
    lock = queen.lock(queue, ttl_seconds=30)
    assert await lock.acquire()
    assert not await queen.lock(queue, ttl_seconds=30).acquire()
    assert await lock.renew()
    done = await queen.transaction().guard(lock).queue(queue).push([{"data": 1}]).commit()
    assert done
    assert await lock.release()
    async with queen.lock(queue, ttl_seconds=30) as other:
        assert other.held
    assert (await queen.locks.get(queue))["held"] is False


@check
async def a_semaphore_has_so_many_permits(queen: Queen, queue: str) -> None:
    handles = [queen.semaphore(queue, 2, ttl_seconds=30) for _ in range(3)]
    assert [await handle.acquire() for handle in handles] == [True, True, False]
    assert await handles[0].release()
    assert await handles[2].acquire()


@check
async def a_gate_that_is_lost_applies_nothing(queen: Queen, queue: str) -> None:
    async def attempt(number: int) -> object:
        return (
            await queen.transaction()
            .once(queue, "gate", ttl_seconds=60)
            .queue(queue)
            .push([{"data": number}])
            .timer(queue)
            .key(f"t{number}")
            .payload({"n": number})
            .after_ms(3_600_000)
            .schedule()
            .commit()
        )

    assert await attempt(1)
    lost = await attempt(2)
    assert not lost
    assert (lost["reason"], lost["kvReason"]) == ("kv_precondition", "exists")
    assert data_of(await queen.queue(queue).batch(10).pop()) == [1]
    assert [timer["timerKey"] for timer in await queen.timers.list_all(queue)] == ["t1"]


play()
