"""The language of filters: what it says as a jsonpath, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.filters import MAX_LENGTH, parse_filter
from queenmq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("headers.type = 'a'", '($.headers."type" == "a")'),
        ("payload.total>=1.50", '($.payload."total" >= 1.50)'),
        ("payload['a b'].c != -1e3", '($.payload."a b"."c" != -1e3)'),
        ("payload = TRUE", "($.payload == true)"),
        ("headers.x IN ('a', 'it''s')", '($.headers."x" == "a" || $.headers."x" == "it\'s")'),
        ("headers.x starts with 'eu-'", '($.headers."x" starts with "eu-")'),
        ("exists payload.x", 'exists($.payload."x")'),
        (
            "headers.a = '1' OR headers.b = '2' AND NOT headers.c = '3'",
            '(($.headers."a" == "1") || (($.headers."b" == "2") && !(($.headers."c" == "3"))))',
        ),
        (
            "(headers.a = '1' OR headers.b = '2') AND exists headers.c",
            '((($.headers."a" == "1") || ($.headers."b" == "2")) && exists($.headers."c"))',
        ),
        ("headers['say \"hi\"\\'] = 'ü\\n'", '($.headers."say \\"hi\\"\\\\" == "\\u00fc\\\\n")'),
    ],
)
def test_what_it_means(text: str, path: str) -> None:
    parsed = parse_filter(text)
    assert (parsed.path, parsed.text) == (path, text)
    assert parsed.reads_payload == ("payload" in text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "",
            "expected a field: headers.NAME or payload.NAME; strings are in single quotes at character 1, found its",
        ),
        ("type = 'a'", "expected a field"),
        ('headers.type = "a"', "nothing begins with '\"' at character 16"),
        ("headers.type 'a'", "expected =, !=, <, <=, >, >=, IN or STARTS WITH at character 14, found \"'a'\""),
        ("headers = 'a'", "headers at character 1 needs one name"),
        ("headers.a.b = 'a'", "headers at character 1 needs one name"),
        ("headers.a = 'a' headers.b = 'b'", "expected AND, OR or the end at character 17, found 'headers'"),
        ("headers.a = 'a' AND", "expected a field"),
        ("(headers.a = 'a'", "expected ) at character 17, found its end"),
        ("headers.a = a", "expected a value: a number, true, false, null, or a string in single quotes"),
        ("headers.a = 'a", 'nothing begins with "\'" at character 13'),
        ("headers.a IN ()", "expected a value"),
        ("headers.a STARTS WITH 1", "expected a string in single quotes"),
        ("headers. = 'a'", "expected a name; other names are written as ['…']"),
        ("payload.a = 1.2.3", "nothing begins with '1'"),
        ("payload.a = 1;", "nothing begins with ';'"),
        ("payload.a = '\0'", "must not contain NUL"),
        ("NOT " * 30 + "payload.a = 1", "nested more than 20 deep"),
        ("(" * 30 + "payload.a = 1" + ")" * 30, "nested more than 20 deep"),
        ("payload" + ".a" * 21 + " = 1", "at most 20 names"),
        (" OR ".join(["payload.a=1"] * 101), "more than 100 conditions"),
        ("payload.a = 1" + " " * MAX_LENGTH, "characters, at most 2000 are allowed"),
    ],
)
def test_what_it_refuses(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_filter(text)
    assert (refusal.value.field, told in refusal.value.message) == ("filter", True), refusal.value.message


@given(st.text() | st.text("headers.payload=<>()[],'\" 1eORANDINOT", max_size=60))
def test_anything_is_a_filter_or_a_sentence(text: str) -> None:
    try:
        parse_filter(text)
    except InvalidRequest as refusal:
        assert refusal.message.startswith("filter")
