"""What a scenario is."""

from __future__ import annotations

from typing import Protocol

from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.subject import Subject


class Scenario(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """One line for people."""

    @property
    def peers(self) -> bool:
        """Whether a broker that is no Queen can do the same work."""

    async def run(self, subject: Subject, options: Options) -> Result: ...
