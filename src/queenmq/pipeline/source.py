"""`format("queen")`: the entry that Spark knows. What it hands out is in `batch`, `stream` and `sink`.

Spark hands the options of a table of a catalog (`CREATE TABLE … USING queen OPTIONS (…)`) over when the table is made,
and none of them when it is read. So the table keeps them in its schema, as metadata of its first column.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from queenmq.pipeline.columns import schema, wanted
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.options import READ, parse_read, parse_write, shows_secret

# What Spark says of a table that is being made.
_TABLE: Final = "provider"
_KEPT: Final = "queen.options"


class QueenDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "queen"

    def schema(self) -> Any:
        # Spark does not say here whether it is for a stream; the columns are the same.
        made = schema(parse_read(dict(self.options), streaming=None))
        if _TABLE in self.options:
            made.fields[0].metadata = {_KEPT: json.dumps(self._kept())}
        return made

    def _kept(self) -> dict[str, str]:
        """What the table keeps of its options. Raises BadOption for what everybody could read there."""
        known = {name.lower() for name in READ}
        kept = {name: value for name, value in dict(self.options).items() if name.lower() in known}
        if secret := shows_secret(kept):
            raise BadOption(
                f"a table keeps its options where everybody who sees it can read them: leave {secret} (a file of "
                "passwords is named with ?passfile=… in url), or use CREATE TEMPORARY VIEW … USING queen"
            )
        return kept

    def _options(self, schema: Any) -> dict[str, str]:
        """Those of the read, and of a table those with which it was made."""
        kept = schema.fields[0].metadata.get(_KEPT) if schema.fields else None
        if kept is None and not self.options:
            raise BadOption(
                "url and subscribe are missing. If this is a table that was made with a list of columns, Spark hands "
                "none of its options over: make it without that list. Drop this table, because everybody who sees it "
                "can read its options, a password in url included"
            )
        return (json.loads(kept) if kept else {}) | dict(self.options)

    def _of_write(self) -> dict[str, str]:
        if not self.options:
            raise BadOption(
                "Spark hands no options over when a table is written to: write with format('queen') and its options"
            )
        return dict(self.options)

    def reader(self, schema: Any) -> Any:
        from queenmq.pipeline.batch import BatchReader

        options = parse_read(self._options(schema), streaming=False)
        return BatchReader(options, wanted(schema, options))

    def streamReader(self, schema: Any) -> Any:
        from queenmq.pipeline.stream import StreamReader

        options = parse_read(self._options(schema), streaming=True)
        return StreamReader(options, wanted(schema, options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline.sink import BatchWriter, check_target

        return BatchWriter(check_target(parse_write(self._of_write(), streaming=False), schema, overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline.sink import StreamWriter, check_target

        return StreamWriter(check_target(parse_write(self._of_write(), streaming=True), schema, False))
