"""`format("queen")`: the entry that Spark knows. What it hands out is in `batch`, `stream` and `sink`.

Spark hands the options of a table of a catalog (`CREATE TABLE … USING queen OPTIONS (…)`) over when the table is made,
and none of them when it is read. So the table keeps them in its schema, as metadata of its first column.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from queenmq.pipeline.columns import PARSED, schema, wanted
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.options import READ, ReadOptions, over_http, parse_read, parse_write, shows_secret
from queenmq.pipeline.registry import AUTO, value_schema
from queenmq.pipeline.server import Access

# What Spark says of a table that is being made.
_TABLE: Final = "provider"
_KEPT: Final = "queen.options"


class QueenDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "queen"

    def schema(self) -> Any:
        # Spark does not say here whether it is for a stream; the columns are the same.
        made = schema(self._typed(parse_read(dict(self.options), streaming=None)))
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

    def _typed(self, options: ReadOptions, given: Any = None) -> ReadOptions:
        """With `valueSchema` as the registry has it, if it is `auto`; or as it was when Spark asked for the columns."""
        if options.value_schema is None or options.value_schema.strip().lower() != AUTO:
            return options
        kinds = {} if given is None else {field.name: field.dataType for field in given.fields}
        if PARSED in kinds:
            return replace(options, value_schema=kinds[PARSED].json())
        access = Access.of(options.url, self.options) if over_http(options.url) else None
        return replace(options, value_schema=value_schema(options.url, options.queue, access))

    def _of_write(self) -> dict[str, str]:
        if not self.options:
            raise BadOption(
                "Spark hands no options over when a table is written to: write with format('queen') and its options"
            )
        return dict(self.options)

    def reader(self, schema: Any) -> Any:
        from queenmq.pipeline import over_http as http
        from queenmq.pipeline.batch import BatchReader

        given = self._options(schema)
        options = self._typed(parse_read(given, streaming=False), schema)
        if over_http(options.url):
            return http.BatchReader(Access.of(options.url, given), options, wanted(schema, options))
        return BatchReader(options, wanted(schema, options))

    def streamReader(self, schema: Any) -> Any:
        from queenmq.pipeline import over_http as http
        from queenmq.pipeline.stream import StreamReader

        given = self._options(schema)
        options = self._typed(parse_read(given, streaming=True), schema)
        if over_http(options.url):
            return http.StreamReader(Access.of(options.url, given), options, wanted(schema, options))
        return StreamReader(options, wanted(schema, options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline import over_http as http
        from queenmq.pipeline.sink import BatchWriter, check_target

        options = check_target(parse_write(self._of_write(), streaming=False), schema, overwrite)
        if over_http(options.url):
            http.check_columns(schema.fieldNames())
            return http.BatchWriter(Access.of(options.url, self.options), options)
        return BatchWriter(options)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline import over_http as http
        from queenmq.pipeline.sink import StreamWriter, check_target

        options = check_target(parse_write(self._of_write(), streaming=True), schema, False)
        if over_http(options.url):
            http.check_columns(schema.fieldNames())
            return http.StreamWriter(Access.of(options.url, self.options), options)
        return StreamWriter(options)
