"""Histories that join what servers did with how they were."""

from __future__ import annotations

from msgspec import Struct

from queenmq.reports import activity, servers
from queenmq.reports.overview import Overview, overview
from queenmq.reports.reading import Reader, Reports
from queenmq.reports.scope import TimeRange


class Work(Struct, frozen=True):
    """What all servers did over time and how they were, and the queues that saw most in the last minute."""

    series: list[activity.Point]
    samples: list[servers.Sample]
    last_minute: list[activity.QueueMinute]
    overview: Overview


class ParkedPolls(Struct, frozen=True):
    """The long polls that servers held, and the newest sample of each server that has one, by its id."""

    points: list[activity.ParkedPoint]
    servers: dict[str, servers.Sample]


async def work(reports: Reports, span: TimeRange, most_queues: int) -> Work:
    async def read(reader: Reader) -> Work:
        return Work(
            series=await activity.series(reader, span),
            samples=await servers.samples(reader, span),
            last_minute=await activity.last_minute(reader, most_queues),
            overview=await overview(reader),
        )

    return await reports.snapshot(read)


async def parked(reports: Reports, span: TimeRange, queue: str | None, most_queues: int) -> ParkedPolls:
    """Those for one queue, or for the queues that most waited for at the end of the range."""

    async def read(reader: Reader) -> ParkedPolls:
        points = await activity.parked(reader, span, queue, most_queues)
        return ParkedPolls(points, servers.last_of_each(await servers.samples(reader, span)))

    return await reports.snapshot(read)
