"""Flags as words: what people write for yes and no in variables, files and options. Everything else is refused.

An unknown word must never count as "no": that would silently switch protection off.
"""

from __future__ import annotations

from typing import Final

_WORDS: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def parse_flag(raw: str) -> bool:
    """The flag that a word stands for, in any case, blanks around it left out. Raises ValueError for other words."""
    try:
        return _WORDS[raw.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false (or yes or no, on or off, 1 or 0)") from None
