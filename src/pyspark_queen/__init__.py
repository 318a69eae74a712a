"""The package in which Spark finds data sources: it makes `format("queen")` known without `register`."""

from queenmq.pipeline.source import QueenDataSource as DefaultSource

__all__ = ["DefaultSource"]
