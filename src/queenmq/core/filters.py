"""Filters: a small expression over headers and JSON fields that says which messages a group gets. No I/O.

The expression becomes a jsonpath of PostgreSQL, which evaluates it where the messages are.

    expression = and, { "OR", and };            and = not, { "AND", not };
    not = "NOT", not | "(", expression, ")" | condition;
    condition = field, ( "=" | "!=" | "<" | "<=" | ">" | ">=" ), value
              | field, "IN", "(", value, { ",", value }, ")" | field, "STARTS WITH", string | "EXISTS", field;
    field = ( "headers" | "payload" ), { ".", name | "[", string, "]" };
    value = string in single quotes | number | "true" | "false" | "null";
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from queenmq.errors import InvalidRequest

MAX_LENGTH: Final = 2000
_MOST_CONDITIONS: Final = 100
_MOST_NESTED: Final = 20
_MOST_NAMES: Final = 20
_FIELD: Final = "filter"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?(?![\w.]))"
    r"|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|!=|[=<>()\[\],.]))"
)
_SIGNS: Final = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONSTANTS: Final = frozenset({"TRUE", "FALSE", "NULL"})


@dataclass(frozen=True, slots=True)
class Filter:
    text: str
    path: str  # a jsonpath over {"headers": …, "payload": …}
    reads_payload: bool


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse_filter(text: str) -> Filter:
    """Raises InvalidRequest with what is wrong, and where."""
    if len(text) > MAX_LENGTH:
        raise InvalidRequest(f"filter has {len(text)} characters, at most {MAX_LENGTH} are allowed", _FIELD)
    if "\0" in text:
        raise InvalidRequest("filter must not contain NUL", _FIELD)
    parser = _Parser(_tokens(text), len(text))
    path = parser.expression(0)
    parser.expect_end()
    return Filter(text, path, parser.reads_payload)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise InvalidRequest(f"filter: nothing begins with {text[at]!r} at character {at + 1}", _FIELD)
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
        at = match.end()
    return tokens


class _Parser:
    """Reads tokens from left to right; each method returns the jsonpath of what it has read."""

    def __init__(self, tokens: list[_Token], length: int) -> None:
        self._tokens = tokens
        self._end = _Token("end", "its end", length + 1)
        self._next = 0
        self._conditions = 0
        self.reads_payload = False

    def expression(self, depth: int) -> str:
        if depth > _MOST_NESTED:
            raise InvalidRequest(f"filter is nested more than {_MOST_NESTED} deep", _FIELD)
        alternatives = [self._all_of(depth)]
        while self._took("OR"):
            alternatives.append(self._all_of(depth))
        return alternatives[0] if len(alternatives) == 1 else "(" + " || ".join(alternatives) + ")"

    def expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._wrong("AND, OR or the end")

    def _all_of(self, depth: int) -> str:
        conditions = [self._negated(depth)]
        while self._took("AND"):
            conditions.append(self._negated(depth))
        return conditions[0] if len(conditions) == 1 else "(" + " && ".join(conditions) + ")"

    def _negated(self, depth: int) -> str:
        if depth > _MOST_NESTED:
            raise InvalidRequest(f"filter is nested more than {_MOST_NESTED} deep", _FIELD)
        if self._took("NOT"):
            return f"!({self._negated(depth + 1)})"
        if self._took("("):
            inner = self.expression(depth + 1)
            self._expect(")")
            return inner
        return self._condition()

    def _condition(self) -> str:
        self._conditions += 1
        if self._conditions > _MOST_CONDITIONS:
            raise InvalidRequest(f"filter has more than {_MOST_CONDITIONS} conditions", _FIELD)
        if self._took("EXISTS"):
            return f"exists({self._field()})"
        field = self._field()
        if self._took("STARTS"):
            self._expect("WITH")
            return f"({field} starts with {self._string()})"
        if self._took("IN"):
            self._expect("(")
            values = [self._value()]
            while self._took(","):
                values.append(self._value())
            self._expect(")")
            self._conditions += len(values) - 1
            return "(" + " || ".join(f"{field} == {value}" for value in values) + ")"
        sign = _SIGNS.get(self._token.text) if self._token.kind == "sign" else None
        if sign is None:
            raise self._wrong("=, !=, <, <=, >, >=, IN or STARTS WITH")
        self._next += 1
        return f"({field} {sign} {self._value()})"

    def _field(self) -> str:
        root = self._token
        if root.kind != "word" or root.text not in ("headers", "payload"):
            raise self._wrong("a field: headers.NAME or payload.NAME; strings are in single quotes")
        self._next += 1
        self.reads_payload |= root.text == "payload"
        names: list[str] = []
        while True:
            if self._took("."):
                if self._token.kind != "word":
                    raise self._wrong("a name; other names are written as ['…']")
                names.append(json.dumps(self._token.text))
                self._next += 1
            elif self._took("["):
                names.append(self._string())
                self._expect("]")
            else:
                break
        if root.text == "headers" and len(names) != 1:
            raise InvalidRequest(f"filter: headers at character {root.at} needs one name: headers.NAME", _FIELD)
        if len(names) > _MOST_NAMES:
            raise InvalidRequest(f"filter: a field has at most {_MOST_NAMES} names", _FIELD)
        return "$." + ".".join([root.text, *names])

    def _value(self) -> str:
        token = self._token
        if token.kind == "string":
            return self._string()
        if token.kind == "number" or (token.kind == "word" and token.text.upper() in _CONSTANTS):
            self._next += 1
            return token.text.lower()
        raise self._wrong("a value: a number, true, false, null, or a string in single quotes")

    def _string(self) -> str:
        if self._token.kind != "string":
            raise self._wrong("a string in single quotes")
        self._next += 1
        return json.dumps(self._tokens[self._next - 1].text[1:-1].replace("''", "'"))

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else self._end

    def _took(self, wanted: str) -> bool:
        if self._token.kind not in ("word", "sign") or self._token.text.upper() != wanted:
            return False
        self._next += 1
        return True

    def _expect(self, wanted: str) -> None:
        if not self._took(wanted):
            raise self._wrong(wanted)

    def _wrong(self, expected: str) -> InvalidRequest:
        token = self._token
        found = token.text if token.kind == "end" else repr(token.text)
        return InvalidRequest(f"filter: expected {expected} at character {token.at}, found {found}", _FIELD)
