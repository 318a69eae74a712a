"""Where Spark looks for data sources by itself: it makes `format("queen")` known without `register`."""

from queenmq.pipeline.source import QueenDataSource as DefaultSource

__all__ = ["DefaultSource"]
