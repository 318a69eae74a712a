"""Writes the HTTP API as a page of the site: `python docs/http_reference.py build/site`, which `make docs` does."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.http.openapi import document
from queenmq.http.reference import page

STYLE = "reference.css"


def write(folder: Path) -> None:
    (folder / STYLE).write_bytes((files("queenmq.dashboard") / STYLE).read_bytes())
    (folder / "http-reference.html").write_text(page(document(ROUTES, Settings()), STYLE))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
