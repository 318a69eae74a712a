"""Lists of namespaces for a reader who may see some of them."""

from __future__ import annotations

from typing import Any, cast

from queenmq.reports import keys
from queenmq.reports.keys import NamespaceRead

NAMES = [f"{'mine' if number % 7 == 3 else 'theirs'}.{number:03}" for number in range(60)]


class Names:
    """A reader who may see what begins with `mine`."""

    async def rows(self, _: object, first: str, end: str, after: str, limit: int, *__: object) -> list[NamespaceRead]:
        found = [name for name in sorted(NAMES) if first <= name <= end and name > after]
        return [NamespaceRead(name, 1, False, name.startswith("mine")) for name in found[:limit]]


async def test_where_to_go_on_names_nothing_that_may_not_be_seen() -> None:
    reader = cast(Any, Names())
    for limit in (1, 2, 5, 100):
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page, after = await keys.namespaces(reader, "", after, limit, ["mine%"])
            seen += [one.namespace for one in page]
            assert after is None or after.startswith("mine")
        assert seen == sorted(name for name in NAMES if name.startswith("mine"))
