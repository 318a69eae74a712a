"""What a token may do with which queues and groups. No I/O.

A token has a role and any number of grants. A grant names queues and groups by pattern and the verbs that it allows
there; without a grant, the role alone decides. Whatever no grant allows is refused.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from queenmq.core.names import MAX_NAME, check_name
from queenmq.core.roles import Role
from queenmq.errors import InvalidRequest

ANYTHING: Final = "*"
MOST_GRANTS: Final = 20
MOST_PATTERNS: Final = 100
MOST_STARS: Final = 8
_MOST_REMEMBERED: Final = 20_000
_LONGEST_REMEMBERED: Final = 100


class Verb(enum.StrEnum):
    """What is done with a queue. Creating a queue counts as push, as a push makes its queue, too, and changing one as
    administer; seeking and redriving count as ack, traces as pop. The hash of a text costs less than that of another
    Enum."""

    READ = "read"
    PUSH = "push"
    POP = "pop"
    ACK = "ack"
    ADMINISTER = "administer"


_OF_ROLE: Final = {
    Role.PUBLIC: frozenset[Verb](),
    Role.READ_ONLY: frozenset({Verb.READ}),
    Role.READ_WRITE: frozenset({Verb.READ, Verb.PUSH, Verb.POP, Verb.ACK}),
    Role.ADMIN: frozenset(Verb),
}


_PATTERN: Final = {"minLength": 1, "maxLength": MAX_NAME, "pattern": "^[^*\\u0000]*([*][^*\\u0000]*){0,8}$"}
Patterns = Annotated[
    tuple[Annotated[str, Meta(extra_json_schema=_PATTERN)], ...], Meta(min_length=1, max_length=MOST_PATTERNS)
]  # what is only documented is checked by `Grant.check`


class Grant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Patterns are names in which `*` stands for any characters. A namespace stands for the queue of that name and all
    whose names begin with it and a dot: the name of a queue cannot be changed, its namespace can. Without queues and
    namespaces a grant is for every queue, without groups for every group, without verbs for all of the role's.
    A list that is given is not empty, as that would read as if it allowed nothing."""

    queues: Patterns = ()
    namespaces: Patterns = ()
    groups: Patterns = ()
    allow: Annotated[tuple[Verb, ...], Meta(min_length=1)] = ()

    def check(self, field: str) -> None:
        """Raises InvalidRequest for the first pattern that is none."""
        for name in ("queues", "namespaces", "groups"):
            patterns: tuple[str, ...] = getattr(self, name)
            if len(patterns) > MOST_PATTERNS:
                raise InvalidRequest(f"{field}.{name} must have at most {MOST_PATTERNS} patterns", f"{field}.{name}")
            for index, pattern in enumerate(patterns):
                place = f"{field}.{name}[{index}]"
                check_name(pattern, place)
                if pattern.count(ANYTHING) > MOST_STARS:
                    raise InvalidRequest(f"{place} must have at most {MOST_STARS} stars", place)

    def queue_patterns(self) -> tuple[str, ...]:
        below = tuple(pattern for name in self.namespaces for pattern in (name, f"{name}.{ANYTHING}"))
        return (self.queues + below) or (ANYTHING,)


class _Rule:
    """A grant, ready to be asked."""

    __slots__ = ("groups", "patterns", "queues", "verbs")

    def __init__(self, grant: Grant, role: Role) -> None:
        allowed = _OF_ROLE[role]
        self.verbs = allowed.intersection(grant.allow) if grant.allow else allowed
        self.patterns = grant.queue_patterns()
        self.queues = tuple(_parts(pattern) for pattern in self.patterns)
        self.groups = tuple(_parts(pattern) for pattern in grant.groups or (ANYTHING,))

    def allows(self, verb: Verb, queue: str | None, group: str | None) -> bool:
        if verb not in self.verbs or (group is not None and not _matches_any(self.groups, group)):
            return False
        return ANYTHING in self.patterns if queue is None else _matches_any(self.queues, queue)


_Question = tuple[Verb, str | None, str | None]


class _Memory:
    """How many answers are remembered, of all tokens together: a caller that gets new tokens at will, and asks for
    names that it makes up, must not fill the memory. The token that has begun first forgets its answers first."""

    def __init__(self) -> None:
        self._kept: deque[dict[_Question, bool]] = deque()
        self.size = 0

    def keep(self, answers: dict[_Question, bool], question: _Question, answer: bool) -> None:
        if not answers:
            self._kept.append(answers)
        answers[question] = answer
        self.size += 1
        while self.size > _MOST_REMEMBERED:
            oldest = self._kept.popleft()
            self.size -= len(oldest)
            oldest.clear()


_memory: Final = _Memory()


class Permissions:
    """What one token may do. Answers are remembered, because the same few questions come again and again."""

    def __init__(self, role: Role, grants: Iterable[Grant]) -> None:
        self.grants = tuple(grants)
        self._rules = tuple(_Rule(grant, role) for grant in self.grants)
        self._remembered: dict[_Question, bool] = {}
        self._namespaces: frozenset[str] | None = None
        self.restricts_groups = any(grant.groups for grant in self.grants)

    def allows(self, verb: Verb, queue: str | None, group: str | None = None) -> bool:
        """Whether this may be done with the queue, as the group if one is involved. None stands for every queue."""
        return self.allows_need((verb, queue, group))

    def allows_need(self, need: _Question) -> bool:
        """The same for the three as one."""
        answer = self._remembered.get(need)
        if answer is None:
            answer = any(rule.allows(*need) for rule in self._rules)
            _, queue, group = need
            if len(queue or "") <= _LONGEST_REMEMBERED and len(group or "") <= _LONGEST_REMEMBERED:
                _memory.keep(self._remembered, need, answer)
        return answer

    @property
    def namespaces(self) -> frozenset[str]:
        """Names of which every queue that the token is for has one, as long as its patterns name any: for `a.b.*` it is
        `a.b`, for `a.b*` only `a`."""
        if self._namespaces is None:
            found = {_fixed(parts) for rule in self._rules for parts in rule.queues}
            self._namespaces = frozenset(found - {""})
        return self._namespaces

    def queues(self, *verbs: Verb, group: str | None = None) -> list[str] | None:
        """For SQL: the queues with which all of this may be done, as patterns for LIKE; None if it is all queues. Of
        patterns that stand in different grants only equal ones are known to mean the same queues."""
        permitted: set[str] | None = None
        for verb in verbs:
            found = {
                pattern
                for rule in self._rules
                if verb in rule.verbs and (group is None or _matches_any(rule.groups, group))
                for pattern in rule.patterns
            }
            if ANYTHING not in found:
                permitted = found if permitted is None else permitted & found
        return None if permitted is None else sorted(_like(pattern) for pattern in permitted)


def check_grants(grants: Iterable[Grant], field: str) -> None:
    """Raises InvalidRequest."""
    found = list(grants)
    if len(found) > MOST_GRANTS:
        raise InvalidRequest(f"{field} must have at most {MOST_GRANTS} entries", field)
    for index, grant in enumerate(found):
        grant.check(f"{field}[{index}]")


_Parts = tuple[str, ...]


def _parts(pattern: str) -> _Parts:
    return tuple(pattern.split(ANYTHING))


def _fixed(parts: _Parts) -> str:
    """What is before the last dot that stands before the first star; all of it if there is no star."""
    return parts[0] if len(parts) == 1 else parts[0].rpartition(".")[0]


def _matches_any(patterns: tuple[_Parts, ...], name: str) -> bool:
    return any(_matches(parts, name) for parts in patterns)


def _matches(parts: _Parts, name: str) -> bool:
    """Without backtracking: of the parts between two stars the first place that fits is as good as any."""
    if len(parts) == 1:
        return name == parts[0]
    first, *between, last = parts
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in between:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _like(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace(ANYTHING, "%")
