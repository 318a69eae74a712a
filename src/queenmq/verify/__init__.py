"""Proof that users can run: workloads that record a history of requests and answers, and a checker that judges it.

`check` is pure: it gets a history and returns a verdict. docs/how-to/verify.md is the user's view.
"""

from queenmq.verify.check import check
from queenmq.verify.history import BadHistory, History, read_history, write_history
from queenmq.verify.verdict import Verdict, Violation, lines

__all__ = ["BadHistory", "History", "Verdict", "Violation", "check", "lines", "read_history", "write_history"]
