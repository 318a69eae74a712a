"""The files of the dashboard as the server gives them: types, tags, and headers that let nothing else in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

import queenmq.dashboard

FOLDER = Path(queenmq.dashboard.__file__).parent
FILES = sorted(file.name for file in FOLDER.iterdir() if file.suffix in (".html", ".css", ".js", ".svg"))
SCRIPTS = [name for name in FILES if name.endswith(".js")]
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


async def test_the_page_is_served_to_everyone(http: httpx.AsyncClient) -> None:
    for accept in ("text/html", "application/json", "*/*"):
        answer = await http.get("/", headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == TYPES[".html"]
        assert answer.content == (FOLDER / "index.html").read_bytes()


async def test_every_file_has_its_type_and_tag(http: httpx.AsyncClient) -> None:
    for name in FILES:
        answer = await http.get(f"/assets/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == TYPES[Path(name).suffix]
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["cache-control"] == "no-cache"
        known = await http.get(f"/assets/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        assert known.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("x, GZIP;q=0.5", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.00", False),
        ("x", False),
    ],
)
async def test_it_is_compressed_for_whom_it_may_be(http: httpx.AsyncClient, accepted: str, is_packed: bool) -> None:
    plain = await http.get("/assets/app.js", headers={"Accept-Encoding": "identity"})
    answer = await http.get("/assets/app.js", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert answer.content == plain.content
    assert (int(answer.headers["content-length"]) < len(plain.content) / 2) is is_packed
    assert (answer.headers["etag"] == plain.headers["etag"]) is not is_packed, "another form has another tag"
    assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"


async def test_the_icon_is_where_browsers_ask_for_it(http: httpx.AsyncClient) -> None:
    answer = await http.get("/favicon.ico")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert answer.content == (FOLDER / "icon.svg").read_bytes()


async def test_headers_let_nothing_else_in(http: httpx.AsyncClient) -> None:
    for path in ("/", "/assets/app.js"):
        headers = (await http.get(path)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "name", ["nothing.js", "__init__.py", "..%2f__init__.py", "%2e%2e", "style.css%00", "Style.css"]
)
async def test_nothing_else_is_served(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get(f"/assets/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"] == "Not found"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bstyle=|\bon\w+=|javascript:", page) == []
    for name in FILES:
        text = (FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://", text) == [], name
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_leads_to_a_file_that_exports_it(name: str) -> None:
    for names, source in re.findall(
        r'^import \{([^}]*)\} from "\./([^"]+)";$', (FOLDER / name).read_text(), re.MULTILINE
    ):
        text = (FOLDER / source).read_text()
        exported = set(re.findall(r"export (?:const|class|function|async function) (\w+)", text))
        exported |= {one.strip() for many in re.findall(r"export \{([^}]*)\}", text) for one in many.split(",")}
        wanted = {one.strip() for one in names.split(",")}
        assert wanted <= exported
        used = (FOLDER / name).read_text()
        assert [one for one in wanted if len(re.findall(rf"\b{one}\b", used)) < 2] == []


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to parse the scripts; the browser does")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_a_script(name: str) -> None:
    checked = subprocess.run(
        ["node", "--input-type=module", "--check"],
        input=(FOLDER / name).read_bytes(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr.decode()


def _themes() -> dict[str, dict[str, str]]:
    """The colours by name, of the light theme, of the chosen dark one, and of the system's dark one."""
    style = (FOLDER / "style.css").read_text()
    found = {}
    for name, selector in (
        ("light", ":root {"),
        ("dark", ':root[data-theme="dark"] {'),
        ("dark by system", ':root:not([data-theme="light"]) {'),
    ):
        block = style.split(selector, 1)[1].split("}", 1)[0]
        found[name] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    return found


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    colours = _themes()[theme]
    texts = ("text", "muted", "link", "bad", "one", "two", "three", "four")
    pairs = [(text, ground) for text in texts for ground in ("ground", "surface", "raised", "sunken")]
    pairs += [(tone, f"{tone}-soft") for tone in ("good", "warn", "bad", "busy", "calm")]
    pairs += [("on-accent", "accent"), ("link", "accent-soft"), ("text", "calm-soft"), ("text", "bad-soft")]
    for text, ground in pairs:
        light, dark = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {ground}"


def test_dark_is_the_same_by_choice_and_by_system() -> None:
    themes = _themes()
    assert themes["dark"] == themes["dark by system"]
