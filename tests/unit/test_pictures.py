"""The pictures of the documentation are what docs/pictures.py draws and what the dashboard looks like, and are used."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from dashboard.pictures import COLOURS, DASHBOARD, few_colours, noted, sources, words
from dashboard.test_pages import LOOKS, PAGES
from PIL import Image

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


def test_the_pictures_show_the_dashboard_as_it_is() -> None:
    assert noted() == dict.fromkeys(LOOKS, sources()), "run: make pictures"


def test_only_what_one_would_see_makes_pictures_stale() -> None:
    script = """
    // "a comment"
    import { h } from "./dom.js";
    const rows = await get("/api/v1/queues", { limit: 7 });
    button('It\\'s late', () => ask({ title: "Delete?", text: `All (of ${name})`, act: () => post("x") }));
    tile("Stored", `${n} messages`);
    """
    assert words(script) == ["'It\\'s late'", '"Stored"', "`${n} messages`"]


@pytest.mark.parametrize("page", PAGES)
def test_the_pictures_have_the_colours_of_the_pages(page: str) -> None:
    style = (DASHBOARD / "style.css").read_text()
    light, dark = (tuple(bytes.fromhex(colour)) for colour in re.findall("--ground: #([0-9a-f]{6});", style)[:2])
    for look in LOOKS:
        picture = Image.open(DOCS / "images" / "dashboard" / f"{page}-{look}.webp").convert("RGB")
        counted = {colour: count for count, colour in picture.getcolors(picture.width * picture.height) or []}
        share = counted.get(dark if look == "dark" else light, 0) / (picture.width * picture.height)
        assert share > 0.05, f"{page}-{look}: its ground has another colour; run: make pictures"


def test_few_colours_keep_the_frequent_ones() -> None:
    seen = Image.new("RGB", (64, 64), (246, 245, 242))
    for n in range(1000):
        seen.putpixel((n % 64, n // 64), (n % 256, n // 4, 255 - n % 256))
    few = few_colours(seen)
    assert len(few.getcolors() or []) <= COLOURS
    assert few.crop((0, 16, 64, 64)).getcolors() == [(64 * 48, (246, 245, 242))]
    assert few.getpixel((10, 0)) != (246, 245, 242)
