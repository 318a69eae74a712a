"""The pictures of the pages in the documentation: how they are kept, and which sources they show."""

from __future__ import annotations

import ast
import hashlib
import re
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images" / "dashboard"
SOURCES = ROOT / "docs" / "images" / "dashboard-sources.txt"  # a line for each look, of when its pictures were taken
DASHBOARD = ROOT / "src" / "queenmq" / "dashboard"
SCENE = Path(__file__).with_name("scene.py")
COLOURS = 256
_UNSEEN = {"api.js", "dom.js", "live.js", "oidc.js", "queue_forms.js"}  # no words in a picture are from these
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"
    r"|\bask\(|[()]",
    re.DOTALL,
)
_COMMENTS = re.compile(r"/\*.*?\*/|<!--.*?-->", re.DOTALL)


def keep_picture(screenshot: bytes, name: str) -> None:
    """Few colours and no loss make sharp text and a small file. The most frequent ones stay as they are; the others,
    which are those of smoothed edges, become the nearest of them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    few_colours(Image.open(BytesIO(screenshot)).convert("RGB")).save(
        PICTURES / f"{name}.webp", lossless=True, quality=60, method=3
    )


def few_colours(seen: Image.Image) -> Image.Image:
    counted = sorted(seen.getcolors(seen.width * seen.height) or [], reverse=True)
    colours = np.array([colour for _, colour in counted], dtype=np.int64)
    kept = colours[:COLOURS]
    nearest = np.concatenate(
        [((part[:, None] - kept) ** 2).sum(axis=2).argmin(axis=1) for part in np.array_split(colours, 16) if len(part)]
    )
    becomes = np.zeros(1 << 24, dtype=np.uint8)
    becomes[_codes(colours)] = nearest
    return Image.fromarray(kept.astype(np.uint8)[becomes[_codes(np.asarray(seen, dtype=np.int64))]])


def _codes(colours: np.ndarray) -> np.ndarray:
    return (colours[..., 0] << 16) | (colours[..., 1] << 8) | colours[..., 2]


def note_sources(look: str) -> None:
    """The pictures of this look show the dashboard as it is now."""
    SOURCES.write_text("".join(f"{name} {digest}\n" for name, digest in sorted((noted() | {look: sources()}).items())))


def noted() -> dict[str, str]:
    """The digest of what the pictures show, by look."""
    if not SOURCES.exists():
        return {}
    return dict(line.split() for line in SOURCES.read_text().splitlines())  # type: ignore[misc]


def sources() -> str:
    """A digest of what one would see in a picture: styles, and the words of the pages and of the shop on them. Code,
    comments and what stands in dialogs do not count."""
    seen = hashlib.sha256()
    for file in sorted(DASHBOARD.iterdir()):
        if file.suffix in (".css", ".html") and not file.name.startswith("reference"):
            seen.update(" ".join(_COMMENTS.sub("", file.read_text()).split()).encode())
        elif file.suffix == ".js" and file.name not in _UNSEEN:
            seen.update("\n".join(words(file.read_text())).encode())
    tree = list(ast.walk(ast.parse(SCENE.read_text())))
    documentation = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    texts = [node.value for node in tree if isinstance(node, ast.Constant) and id(node) not in documentation]
    seen.update("\n".join(text for text in texts if isinstance(text, str)).encode())
    return seen.hexdigest()[:16]


def words(script: str) -> list[str]:
    """The texts of a script, in their order, without those in calls of `ask`, which opens a dialog."""
    found: list[str] = []
    depth = 0  # of brackets since the call
    for token in _TOKENS.findall(script):
        if depth:
            depth += {"(": 1, "ask(": 1, ")": -1}.get(token, 0)
        elif token == "ask(":
            depth = 1
        elif token[0] in "\"'`" and not token[1:].startswith(("./", "/api/")):
            found.append(token)
    return found
