"""The result of a check of `queen doctor`: the state, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["good", "doubtful", "bad", "skipped"]


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do; it is empty if the state is good."""

    name: str
    state: State
    sentence: str
    advice: str = ""


def good(name: str, sentence: str) -> Finding:
    return Finding(name, "good", sentence)


def doubtful(name: str, sentence: str, advice: str) -> Finding:
    return Finding(name, "doubtful", sentence, advice)


def bad(name: str, sentence: str, advice: str) -> Finding:
    return Finding(name, "bad", sentence, advice)


def skipped(name: str, sentence: str, advice: str = "") -> Finding:
    return Finding(name, "skipped", sentence, advice)


_AGREE_S = 2.0
_FAR_APART_S = 30.0


def clocks(whose: str, ahead_s: float, uncertain_s: float) -> Finding:
    """Compare a clock with the clock of this machine, within the uncertainty of the request's duration."""
    name = f"clock of the {whose}"
    apart = max(0.0, abs(ahead_s) - uncertain_s)
    which = "ahead of" if ahead_s > 0 else "behind"
    sentence = f"it is {abs(ahead_s):.1f} s {which} the clock of this machine"
    advice = "synchronize both machines with NTP (chrony, systemd-timesyncd)"
    if apart <= _AGREE_S:
        return good(name, "it agrees with the clock of this machine")
    if apart <= _FAR_APART_S:
        return doubtful(name, sentence, advice)
    return bad(
        name,
        sentence,
        f"{advice}: tokens and requests between servers are refused when clocks differ by more than 30 s",
    )
