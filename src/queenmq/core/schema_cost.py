"""How much work it may be to compare a payload with a JSON Schema. No I/O.

A validator evaluates parts of a schema on values of a payload. Alternatives that lead to the same part multiply, with
every level of them and, where a schema refers to itself, with every level of the payload: a few hundred bytes can
describe more evaluations than anybody can wait for. What is counted here is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

_MOST_LEVELS: Final = 20  # of a payload; for deeper ones the bound must have stopped to grow
_MOST_PARTS: Final = 5000
_ENDLESS: Final = 10**18
_FEW: Final = 20_000
_BYTES_A_VALUE: Final = 8  # of texts, whose length counts
_COMPARED_AT_ONCE: Final = 16  # values of an enum
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_BY_NAME: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_OBJECTS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_OF_ARRAYS: Final = ("additionalItems", "unevaluatedItems", "contains")
Part = dict[str, Any]


class TooCostly(ValueError):
    """Nobody can say that a comparison with the schema comes to its end in time."""


class SchemaCost:
    def __init__(self, schema: Part) -> None:
        """Raises TooCostly."""
        self._base: dict[int, str] = {}
        self._named: defaultdict[str, list[Part]] = defaultdict(list)
        self._index(schema)
        self._documents = len(set(self._base.values()))
        self._parts: dict[int, Part] = {}
        self._here: dict[int, list[Part]] = {}  # what is evaluated on the same value
        self._reach(schema)
        self._by_level = self._levels(schema)

    def of(self, payload: bytes, levels: int | None = None) -> int:
        """The most evaluations for a payload, which has so many levels if that is known."""
        roughly = (len(payload) + 1) * self._by_level[-1]
        if roughly <= _FEW:
            return roughly  # most messages are small, and counting would take longer than the comparison
        brackets = payload.count(b"[") + payload.count(b"{")
        values = 1 + brackets + payload.count(b",") + len(payload) // _BYTES_A_VALUE
        deepest = brackets if levels is None else levels
        return values * self._by_level[min(deepest, len(self._by_level) - 1)]

    @property
    def is_plain(self) -> bool:
        """Whether each value is compared with one part only."""
        return self._by_level[-1] == 1

    def _index(self, schema: Part) -> None:
        """Find what references may name: everything that has the form of a part."""
        waiting: list[tuple[Part, str]] = [(schema, "")]
        while waiting:
            part, base = waiting.pop()
            if len(self._base) >= _MOST_PARTS:
                raise TooCostly(f"the schema has more than {_MOST_PARTS} parts")
            own = part.get("$id")
            if isinstance(own, str) and not own.startswith("#"):
                base = urldefrag(_joined(base, own)).url
            if part is schema or (isinstance(own, str) and not own.startswith("#")):
                self._named[base].append(part)
            for name in (own[1:] if isinstance(own, str) and own.startswith("#") else None, part.get("$anchor")):
                if isinstance(name, str):
                    self._named[f"{base}#{name}"].append(part)
            if isinstance(part.get("$dynamicAnchor"), str):
                self._named[f"{base}#{part['$dynamicAnchor']}"].append(part)
            self._base[id(part)] = base
            for value in part.values():
                inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
                waiting += (
                    (one, base) for one in (value, *inner) if isinstance(one, dict) and id(one) not in self._base
                )

    def _reach(self, schema: Part) -> None:
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if id(part) not in self._parts:
                self._parts[id(part)] = part
                self._here[id(part)] = here = list(self._in_place(part))
                waiting += (*here, *_fields(part), *_items(part))

    def _in_place(self, part: Part) -> Iterator[Part]:
        for name in _LISTS:
            yield from _schemas(part.get(name))
        for name in _SINGLE:
            yield from _schemas([part.get(name)])
        for name in _BY_NAME:
            yield from _schemas(part.get(name))
        for name in _REFERENCES:
            if isinstance(part.get(name), str):
                yield from self._referred(part[name], self._base[id(part)])
                if name != "$ref" and self._documents > 1:
                    # Where it leads depends on the documents through which a value has come.
                    raise TooCostly(f"{name!r} in a schema of several documents (`$id`) is not supported")

    def _referred(self, reference: str, base: str) -> list[Part]:
        url, fragment = urldefrag(_joined(base, reference))
        if fragment and not fragment.startswith("/"):
            found: list[Any] = self._named[f"{url}#{fragment}"]
        else:
            found = [_at_pointer(document, fragment) for document in self._named[url]]
        if not found or any(not isinstance(one, bool) and id(one) not in self._base for one in found):
            raise TooCostly(f"{reference!r} is no reference to a part of this schema")
        return [one for one in found if not isinstance(one, bool)]

    def _inner_first(self) -> list[int]:
        """Each part after those that it has evaluated on the same value."""
        users: defaultdict[int, list[int]] = defaultdict(list)
        for key, parts in self._here.items():
            for part in parts:
                users[id(part)].append(key)
        missing = {key: len(parts) for key, parts in self._here.items()}
        order = [key for key, parts in self._here.items() if not parts]
        for key in order:
            for user in users[key]:
                missing[user] -= 1
                if not missing[user]:
                    order.append(user)
        if len(order) < len(self._here):
            raise TooCostly("a part of the schema refers to itself for the same value")
        return order

    def _levels(self, root: Part) -> list[int]:
        """The most evaluations of one value of a payload, by the number of levels that the payload has."""
        order, before, most = self._inner_first(), dict.fromkeys(self._parts, 0), [0]
        for level in range(_MOST_LEVELS + 1):
            now: dict[int, int] = {}
            for key in order:
                part = self._parts[key]
                own = _evaluations(part) if level == 0 else _below(part, before)
                now[key] = min(_ENDLESS, own + sum([now[id(one)] for one in self._here[key]]))
            if now == before:
                return most[1:]
            most.append(max(most[-1], now[id(root)]))
            before = now
        return [*most[1:], _ENDLESS]


def _evaluations(part: Part) -> int:
    compared = sum(len(part[name]) for name in ("enum", "required") if isinstance(part.get(name), list))
    patterns = part.get("patternProperties")
    return 1 + compared // _COMPARED_AT_ONCE + (len(patterns) if isinstance(patterns, dict) else 0)


def _below(part: Part, before: dict[int, int]) -> int:
    """Evaluations on one value below the one on which the part is evaluated: a field, or an item. Each field has its
    own schema among `properties`, each item among `prefixItems`."""

    def cost(schemas: Any) -> list[int]:
        return [before[id(one)] for one in _schemas(schemas)]

    def single(names: tuple[str, ...]) -> int:
        return sum(cost([part.get(name) for name in names]))

    items = part.get("items")
    in_object = max(cost(part.get("properties")), default=0) + sum(cost(part.get("patternProperties")))
    in_array = max([*cost(part.get("prefixItems")), *(cost(items) if isinstance(items, list) else ())], default=0)
    in_array += sum(cost([items]))
    return max(in_object + single(_OF_OBJECTS), in_array + single(_OF_ARRAYS))


def _fields(part: Part) -> Iterator[Part]:
    yield from _schemas(part.get("properties"))
    yield from _schemas(part.get("patternProperties"))
    yield from _schemas([part.get(name) for name in _OF_OBJECTS])


def _items(part: Part) -> Iterator[Part]:
    items = part.get("items")
    yield from _schemas(part.get("prefixItems"))
    yield from _schemas(items if isinstance(items, list) else [items])
    yield from _schemas([part.get(name) for name in _OF_ARRAYS])


def _schemas(values: Any) -> Iterator[Part]:
    """Those of a list, or of an object with names, that say anything."""
    found = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return (one for one in found if isinstance(one, dict))


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if base else reference
    except ValueError:
        raise TooCostly(f"{reference!r} is no address") from None


def _at_pointer(document: Any, pointer: str) -> Any:
    place = document
    for step in unquote(pointer).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


def levels_of(value: Any) -> int:
    """How many arrays and objects are within each other at most."""
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        one, level = waiting.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level + 1)
            waiting += ((child, level + 1) for child in (one.values() if isinstance(one, dict) else one))
    return deepest
