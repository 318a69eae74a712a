"""Everything Spark: the data source `format("queen")`, the jobs of `queen pipeline`, and functions over data frames.

Importing this needs nothing beyond Queen itself; what is called needs the extra `pipeline`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from queenmq.pipeline.errors import BadOption, DataLost, PipelineError

__all__ = [
    "BadOption",
    "DataLost",
    "PipelineError",
    "archived",
    "read",
    "read_stream",
    "register",
    "require",
    "start",
    "windowed",
    "write",
    "write_stream",
    "write_stream_jdbc",
]

_FRAMES: Final = ("archived", "read", "read_stream", "windowed", "write", "write_stream")

NEEDED: Final = ("pyspark", "numpy", "pyarrow", "psycopg", "adbc_driver_manager", "adbc_driver_postgresql", "yaml")


def require() -> None:
    """Raise PipelineError with what to install unless the extra is there."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise PipelineError(f"the pipeline needs {', '.join(missing)}: pip install 'queenmq[pipeline]'")


def register(spark: Any) -> None:
    """Make `format("queen")` known to a session."""
    require()
    from queenmq.pipeline.session import use_this_python
    from queenmq.pipeline.source import QueenDataSource

    use_this_python(spark)
    spark.dataSource.register(QueenDataSource)


def __getattr__(name: str) -> Any:
    """The functions over data frames, loaded when they are first used."""
    if name in _FRAMES:
        from queenmq.pipeline import frames

        return getattr(frames, name)
    if name == "write_stream_jdbc":
        from queenmq.pipeline.jdbc import write_stream_jdbc

        return write_stream_jdbc
    if name == "start":
        from queenmq.pipeline.session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
