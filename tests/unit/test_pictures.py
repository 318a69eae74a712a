"""The pictures of the documentation are what docs/pictures.py draws, and are used."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


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
