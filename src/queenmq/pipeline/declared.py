"""Declared pipelines in PostgreSQL: applying a file, starting, stopping and removing them, and how they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.declaration import BadDeclaration, Declared, Plan, broken_state, differences, make
from queenmq.pipeline.errors import NoSuchQueue
from queenmq.pipeline.kinds import KINDS
from queenmq.storage.statements import statement

_MOST_LISTED: Final = 1_000
_BATCHES: Final = 20
_VERSIONS: Final = 10


@dataclass(frozen=True, kw_only=True)
class Stored:
    kind: str
    version: int
    declaration: dict[str, Any]
    state_number: int
    wanted: str

    def plan(self, name: str) -> Plan | None:
        """None if this version cannot read what another one has declared."""
        try:
            return make(name, self.declaration, KINDS).plan
        except BadDeclaration:
            return None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What applying the file does to one pipeline. `broken` says why its state is given up, if it is."""

    name: str
    verb: str  # add, change, keep, remove, leave
    lines: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def apply(
    url: str, declared: list[Declared], *, reset: frozenset[str], prune: bool = False, dry_run: bool = False
) -> list[Change]:
    """Store what the file declares, all of it or nothing, and return what that changes.

    Raises BadDeclaration for a change that would lose the state of a pipeline that is not in `reset`, and for queues
    that do not exist. Pipelines that the file does not name are left alone, unless they are pruned.
    """
    with connection(url) as opened, opened.transaction():
        rows(opened, "pipelines_lock")
        stored = {
            name: Stored(kind=kind, version=version, declaration=declaration, state_number=number, wanted=wanted)
            for name, kind, version, declaration, number, wanted in rows(opened, "pipelines_declared")
        }
        named = {one.name for one in declared}
        problems = [f"--reset-state: the file has no pipeline {name}" for name in sorted(reset - named)]
        problems += _missing_queues(opened, declared) + _taken_checkpoints(declared, stored)
        changes = [_change(one, stored.get(one.name), reset) for one in declared]
        problems += [
            f"{change.name}: the state in its checkpoint does not fit any more ({'; '.join(change.broken)}). Leave "
            f"that as it was, declare another pipeline, or let this one begin anew with --reset-state {change.name}: "
            "it then reads from its start, and writes again what has no transactionId"
            for change in changes
            if change.broken and change.name not in reset
        ]
        if problems:
            raise BadDeclaration(problems)
        others = [name for name, one in stored.items() if name not in named and one.wanted != "removed"]
        changes += [Change(name=name, verb="remove" if prune else "leave") for name in others]
        if not dry_run:
            _store(opened, declared, changes, reset)
    return changes


def _change(one: Declared, before: Stored | None, reset: frozenset[str]) -> Change:
    if before is None:
        return Change(name=one.name, verb="add", lines=tuple(differences({}, one.declaration)))
    lines = differences(before.declaration, one.declaration)
    plan = before.plan(one.name)
    broken = ["its stored declaration cannot be read by this version"] if plan is None else broken_state(plan, one.plan)
    verb = "change" if lines or one.name in reset or before.wanted == "removed" else "keep"
    return Change(name=one.name, verb=verb, lines=tuple(lines), broken=tuple(broken))


def _store(opened: Any, declared: list[Declared], changes: list[Change], reset: frozenset[str]) -> None:
    verbs = {change.name: change.verb for change in changes}
    for one in declared:
        if verbs[one.name] != "keep":
            reads = None if one.plan.reads is None else list(one.plan.reads)
            given = (one.name, one.kind, json.dumps(one.declaration), reads, list(one.plan.writes), one.name in reset)
            rows(opened, "pipeline_declare", *given)
            rows(opened, "pipeline_forget_versions", one.name)
    rows(opened, "pipeline_want", [name for name, verb in verbs.items() if verb == "remove"], "removed")


def _missing_queues(opened: Any, declared: list[Declared]) -> list[str]:
    """A misspelt name is found here, and not by a driver that fails again and again."""
    return [
        f"{one.name}: there is no queue {queue!r} to read: create it first (queen queues create {queue})"
        for one in declared
        for queue in one.plan.reads or ()
        if not rows(opened, "pipeline_queue", queue)
    ]


def _taken_checkpoints(declared: list[Declared], stored: dict[str, Stored]) -> list[str]:
    """Also those of pipelines that the file does not name."""
    named = {one.name for one in declared}
    taken = {
        plan.checkpoint: name
        for name, one in stored.items()
        if name not in named and one.wanted != "removed" and (plan := one.plan(name)) is not None and plan.checkpoint
    }
    return [
        f"{one.name}: checkpoint {one.plan.checkpoint} is that of {taken[one.plan.checkpoint]}: each needs its own"
        for one in declared
        if one.plan.checkpoint in taken
    ]


def want(url: str, names: list[str], wanted: str) -> None:
    """Let pipelines run, stop or be removed. Raises NoSuchPipeline."""
    with connection(url) as opened, opened.transaction():
        rows(opened, "pipelines_lock")
        known = {name for (name,) in rows(opened, "pipeline_want", names, wanted)}
        if missing := [name for name in names if name not in known]:
            raise NoSuchPipeline(f"there is no pipeline {missing[0]!r}: queen pipeline list has them all")


class NoSuchPipeline(NoSuchQueue):
    """The pipeline that is named is not declared."""

    code = "no_such_pipeline"


def listed(url: str, name: str | None = None) -> list[dict[str, Any]]:
    """How the declared pipelines are, or one of them. Raises NoSuchPipeline."""
    with connection(url) as opened:
        found = _named(opened, "pipelines_listed", name, None, _MOST_LISTED, 0)
    if name is not None and not found:
        raise NoSuchPipeline(f"there is no pipeline {name!r}: queen pipeline list has them all")
    for one in found:
        one["declaration"] = json.loads(one["declaration"])
    return found


def details(url: str, name: str) -> dict[str, Any]:
    """One pipeline with its newest batches and versions. Raises NoSuchPipeline."""
    [found] = listed(url, name)
    with connection(url) as opened:
        found["newest_batches"] = _named(opened, "pipeline_batches_listed", name, _BATCHES)
        found["versions"] = _named(opened, "pipeline_versions_listed", name, _VERSIONS)
    for one in found["versions"]:
        one["declaration"] = json.loads(one["declaration"])
    return found


def _named(opened: Any, name: str, *arguments: object) -> list[dict[str, Any]]:
    """The rows of a statement by the names of its columns."""
    cursor = opened.execute(statement(name), arguments)
    columns = [column.name for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
