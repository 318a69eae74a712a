"""The documentation hangs together: links lead somewhere, and every document can be found from an index."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from queenmq import config
from queenmq.config import environment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "deploy" / "README.md"])
KNOWN = {name.split("`")[1] for name in config.markdown_tables().splitlines() if name.startswith("| `")}
KNOWN |= {*environment.ALIASES, *environment.WITHOUT_EFFECT}
COLUMNS = 120
PREFIXES = "QUEEN|PG|DB|JWT|FILE|POP_WAIT|DEFAULT|RETENTION|EVICTION|STATS|METRICS|SIDECAR|PARTITION"
NOT_OF_THE_SERVER = re.compile(
    r"QUEEN_(URL|TOKEN|CA_FILE|TRACEBACK|REQUIRE_BROWSER|TEST_POSTGRES|LONG|CHAOS_ROUNDS|CHAOS_S|SEED|SIMULATION_SEED|EXPLAIN_SEED"
    r"|PIPELINE_JAVA|TEST_POOLER)"
)


def prose(document: Path) -> str:
    """Without what stands in blocks of code."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(document: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(document))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in links(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name}: {link}"
        assert ROOT in target.parents, f"{document.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{document.name}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_wrapped(document: Path) -> None:
    """At 120 columns, apart from tables and from what a link makes longer."""
    lines = re.sub(r"\]\([^)]*\)", "]", prose(document)).splitlines()
    assert [line for line in lines if len(line) > COLUMNS and not line.startswith("|")] == []


def test_every_document_can_be_found() -> None:
    found, waiting = set(), [DOCS / "README.md", ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in found or document.suffix != ".md":
            continue
        found.add(document)
        paths = [link.partition("#")[0] for link in links(document) if not link.startswith("https://")]
        waiting += [target for path in paths if path and (target := (document.parent / path).resolve()).exists()]
    assert set(DOCS.rglob("*.md")) - found == set()


def test_every_document_is_on_the_site() -> None:
    listed = re.findall(r'"([^"]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(listed) == sorted(str(document.relative_to(DOCS)) for document in DOCS.rglob("*.md"))


def test_the_index_has_every_page_of_its_folder() -> None:
    listed = {link.partition("#")[0] for link in links(DOCS / "README.md")}
    pages = {str(page.relative_to(DOCS)) for folder in (DOCS, DOCS / "how-to") for page in folder.glob("*.md")}
    assert pages - listed == {"README.md"}


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/README.md" in links(ROOT / "README.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_variable_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(rf"`((?:{PREFIXES})_[A-Z_]*[A-Z])[`=]", document.read_text()))
    assert {name for name in named if not NOT_OF_THE_SERVER.fullmatch(name)} <= KNOWN


def test_every_metric_that_is_named_is_listed() -> None:
    listed = set(re.findall(r"`(queen_[a-z_]+)`", (DOCS / "metrics.md").read_text()))
    fixtures = set(re.findall(r"^def (queen_\w+)", (ROOT / "src/queenmq/testing.py").read_text(), re.MULTILINE))
    for document in DOCS.rglob("*.md"):
        named = set(re.findall(r"`(queen_[a-z_]+)[`{]", document.read_text()))
        assert named - fixtures <= listed, document


def test_every_revision_that_is_named_is_in_the_history() -> None:
    """A figure or a mend names the commit that has it, so that it can be looked up."""
    named = {(page.name, hash_) for page in DOCS.rglob("*.md") for hash_ in _REVISION.findall(page.read_text())}
    assert len({hash_ for _, hash_ in named}) > 10
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists() or _git(git, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("without the whole history there is nothing to look them up in")
    assert sorted(one for one in named if _git(git, "cat-file", "-t", one[1]) != "commit") == []


# Seven hexadecimal digits, of which some are letters and some are not.
_REVISION = re.compile(r"(?<![\w-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7}(?![\w-])")


def _git(git: str, *arguments: str) -> str:
    command = [git, "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@cache
def _defined(path: Path) -> set[str]:
    """The functions, classes and methods of a module, by their qualified names."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, _FUNCTIONS)}
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SOURCES = ROOT / "src" / "queenmq"


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (DOCS / "design" / "security.md").read_text())
    assert len(named) > 40
    for file, test in named:
        path = ROOT / "tests" / (file if "/" in file else f"integration/{file}")
        assert re.search(rf"def {test}\(", path.read_text()), f"{file}::{test}"


def test_every_step_of_the_architecture_exists() -> None:
    """A step is a file, and the function that runs there."""
    text = prose(DOCS / "architecture.md")
    steps = re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", text)
    assert len(steps) > 40
    assert [(file, name) for file, name in steps if name not in _defined(_SOURCES / file)] == []
    files = re.findall(r"`((?:\w+/)+\w+\.(?:py|sql))`", text)
    folders = (_SOURCES, _SOURCES / "storage" / "sql", _SOURCES / "pipeline", _SOURCES / "storage")
    assert [file for file in files if not any((folder / file).is_file() for folder in folders)] == []
