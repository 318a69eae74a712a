"""The pictures of the documentation are what docs/pictures.py draws, and are used."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from dashboard.test_pages import LOOKS, PAGES

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 2_500_000  # of all pictures of the dashboard


def drawing() -> Any:
    spec = spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PICTURES = drawing().PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_up_to_date(name: str) -> None:
    file = DOCS / "images" / f"{name}.svg"
    drawn = str(PICTURES[name]())
    assert file.read_text() == drawn, "run: python docs/pictures.py"
    root = ElementTree.fromstring(drawn)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height
    pages = [*DOCS.rglob("*.md")]
    assert any(f"images/{name}.svg" in page.read_text() for page in pages)


def test_every_page_of_the_dashboard_is_seen_in_every_look() -> None:
    shown = (DOCS / "dashboard-pages.md").read_text()
    files = {file.name: file.stat().st_size for file in (DOCS / "images" / "dashboard").iterdir()}
    assert files.keys() == {f"{page}-{look}.webp" for page in PAGES for look in LOOKS}, "run: make pictures"
    assert all(shown.count(f"(images/dashboard/{name})") == 2 for name in files)
    assert sum(files.values()) < MOST_BYTES
