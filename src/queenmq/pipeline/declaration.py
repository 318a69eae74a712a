"""The file of `queen pipeline apply`: what it declares, checked as a whole, and how two versions differ. Pure.

pipelines:
  order-stats:                      # its name
    kind: window                    # `kinds` has all of them, and what each may say
    checkpoint: /data/checkpoints/order-stats
    master: local[2]                # where it runs; local[*] is the usual
    conf: {spark.driver.memory: 1g}
    …
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final, TypeAlias

from queenmq.core.names import check_name
from queenmq.core.yaml_text import parse_yaml
from queenmq.errors import InvalidRequest
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.lake import check_address
from queenmq.pipeline.session import LOCAL
from queenmq.pipeline.window_spec import seconds

MOST_PIPELINES: Final = 500
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_COMMON: Final = ("kind", "master", "conf")
# What is declared is stored, and shown to everybody who may read the queues.
_SECRET: Final = re.compile(r"(?i)secret|passw|token|credential|access\.?key|encryption")
_ANYWHERE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

# What is called with the session and the run.
Job: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a kind makes of a declaration.

    `state` is what the contents of the checkpoint depend on: a version in which it is another one cannot go on from
    there. `job` gets the URL of the database and the checkpoint that counts.
    """

    reads: tuple[str, ...] | None  # None: all queues
    job: Callable[[str, str], Job]
    writes: tuple[str, ...] = ()
    checkpoint: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)


Kinds: TypeAlias = Mapping[str, Callable[["Fields"], Plan]]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One pipeline of the file."""

    name: str
    kind: str
    declaration: dict[str, Any]
    plan: Plan
    master: str
    conf: dict[str, str]


class BadDeclaration(BadOption):
    """The file cannot be applied; `problems` are all that were found, a sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Fields:
    """What a pipeline declares, read field by field. What is wrong is collected, so that all of it is reported."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self._name = name
        self._given = given
        self._read = set(_COMMON)
        self.problems: list[str] = []

    def wrong(self, problem: str) -> None:
        self.problems.append(f"{self._name}: {problem}")

    def any(self, key: str, usual: Any = None) -> Any:
        """As it is; for what the kind checks itself."""
        self._read.add(key)
        return self._given.get(key, usual)

    def text(self, key: str, *, needed: bool = False) -> str | None:
        value = self.any(key)
        if value is None and not needed:
            return None
        if not isinstance(value, str) or not value:
            self.wrong(f"{key} is missing" if value is None else f"{key} must be a text, not {value!r}")
            return None
        return value

    def queue(self, key: str, *, needed: bool = True) -> str:
        value = self.text(key, needed=needed)
        if value is not None:
            try:
                check_name(value, key)
            except InvalidRequest as error:
                self.wrong(error.message)
        return value or ""

    def span(self, key: str, usual: str) -> str:
        value = self.any(key, usual)
        try:
            seconds(value if isinstance(value, str) else str(value))
        except BadOption:
            self.wrong(f"{key} must be a span of time such as '30 seconds', not {value!r}")
            return usual
        return str(value)

    def number(self, key: str, usual: int | None = None) -> int | None:
        value = self.any(key, usual)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            self.wrong(f"{key} must be a whole number above 0, not {value!r}")
            return usual
        return None if value is None else int(value)

    def choice(self, key: str, choices: tuple[str, ...], usual: str | None) -> str | None:
        value = self.any(key, usual)
        if value is not None and value not in choices:
            self.wrong(f"{key} must be {' or '.join(choices)}, not {value!r}")
            return usual
        return None if value is None else str(value)

    def place(self, key: str, *, needed: bool = True) -> str:
        """A folder or an address that means the same on every machine."""
        value = self.text(key, needed=needed)
        if value is None:
            return ""
        try:
            check_address(value)
        except BadOption as error:
            self.wrong(error.message)
        if not _ANYWHERE.match(value):
            self.wrong(f"{key} must be an absolute path or a URI such as s3://bucket/folder, not {value!r}")
        return value.rstrip("/")

    def texts(self, key: str) -> dict[str, str]:
        """A mapping of names to texts or numbers."""
        value = self.any(key) or {}
        if not isinstance(value, Mapping) or not all(isinstance(one, str | int | float) for one in value.values()):
            self.wrong(f"{key} must be a mapping of names to values")
            return {}
        return {str(name): str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}

    def end(self) -> None:
        """Complain of fields that nobody has read."""
        for key in self._given:
            if key not in self._read:
                near = get_close_matches(str(key), self._read, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(self._read))}"
                self.wrong(f"unknown field {key}: {hint}")


def read(text: str, kinds: Kinds) -> list[Declared]:
    """All pipelines of a file. Raises BadDeclaration with everything that is wrong."""
    found = _parsed(text)
    if not isinstance(found, dict) or not isinstance(found.get("pipelines"), dict) or not found["pipelines"]:
        raise BadDeclaration(["the file must be a mapping with pipelines: and, below it, a name for each of them"])
    problems = [f"unknown field {key} beside pipelines" for key in found if key != "pipelines"]
    if len(found["pipelines"]) > MOST_PIPELINES:
        problems.append(f"a file declares at most {MOST_PIPELINES} pipelines")
    declared = []
    for name, given in found["pipelines"].items():
        try:
            declared.append(make(str(name), given, kinds))
        except BadDeclaration as error:
            problems += error.problems
    problems += _shared(declared)
    if problems:
        raise BadDeclaration(problems)
    return declared


def make(name: str, given: Any, kinds: Kinds) -> Declared:
    """One pipeline. Raises BadDeclaration."""
    if _NAME.fullmatch(name) is None:
        raise BadDeclaration(
            [f"{name}: a name has letters, digits, '.', '_' and '-', 63 at most, and begins with one of the first two"]
        )
    if not isinstance(given, dict):
        raise BadDeclaration([f"{name}: it must be a mapping with kind and the fields of that kind"])
    fields = Fields(name, given)
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise BadDeclaration([f"{name}: kind must be one of {', '.join(kinds)}, not {kind!r}"])
    plan = kinds[kind](fields)
    master = given.get("master", LOCAL)
    if not isinstance(master, str) or not re.match(r"local|spark://|k8s://|yarn", master):
        fields.wrong(f"master must be the URL of a Spark master such as local[2] or spark://host:7077, not {master!r}")
    conf = fields.texts("conf")
    for setting in conf:
        if _SECRET.search(setting):
            fields.wrong(
                f"conf: {setting} may be a secret, and what is declared is stored and shown: set it in "
                "the environment of the supervisor or in Spark's own configuration"
            )
    fields.end()
    if fields.problems:
        raise BadDeclaration(fields.problems)
    return Declared(name=name, kind=kind, declaration=given, plan=plan, master=master, conf=conf)


def checkpoint(plan: Plan, state_number: int) -> str:
    """Where the state of this number is. The first one is in the folder itself, so that a checkpoint of a job that was
    run by hand can be taken over.
    """
    if not plan.checkpoint or state_number == 1:
        return plan.checkpoint
    return f"{plan.checkpoint}/state-{state_number}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What has changed, a line for each field."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return [
        f"{key}: {_shown(old, key)} → {_shown(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def broken_state(before: Plan, after: Plan) -> list[str]:
    """Why `after` cannot go on from the checkpoint of `before`; nothing if it can."""
    if not before.checkpoint:
        return []
    old = {"checkpoint": before.checkpoint, **before.state}
    return differences(old, {"checkpoint": after.checkpoint, **after.state})


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(found: Mapping[str, Any], key: str) -> str:
    return str(found[key]) if key in found else "(not there)"


def _shared(declared: list[Declared]) -> list[str]:
    """Two pipelines in one checkpoint would take it from each other."""
    problems = []
    placed = sorted((one.plan.checkpoint, one.name) for one in declared if one.plan.checkpoint)
    for (first, name), (second, other) in pairwise(placed):
        if second == first or second.startswith(f"{first}/"):
            problems.append(f"{other}: checkpoint {second} is that of {name}, or within it: each needs its own")
    return problems


def _parsed(text: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise BadDeclaration([f"the file is not YAML: {error}"]) from None
