"""axe-core, which finds what people cannot use who do not see, or see badly. Fetched once by its name from npm."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page

from dashboard.browser import missing

VERSION = "4.14.0"
_SCRIPT = Path(__file__).parents[2] / ".cache" / f"axe-{VERSION}.min.js"
_FINDINGS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const shown = ({ html, any }) => `${html} ${any[0]?.message ?? ""}`;
  return serious.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(shown).join(" | ")}`);
}"""


def script() -> str:
    """Skips, or fails where a browser is required, if there is no npm."""
    if not _SCRIPT.exists():
        if shutil.which("npm") is None:
            missing("there is no npm, with which axe-core is fetched: apt-get install npm")
        _SCRIPT.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=_SCRIPT.parent) as folder:
            subprocess.run(["npm", "pack", "--silent", f"axe-core@{VERSION}"], cwd=folder, check=True, timeout=300)
            with tarfile.open(Path(folder) / f"axe-core-{VERSION}.tgz") as packed:
                packed.extract("package/axe.min.js", folder, filter="data")
            (Path(folder) / "package" / "axe.min.js").replace(_SCRIPT)
    return _SCRIPT.read_text()


def serious_findings(page: Page) -> list[str]:
    """What is serious or critical on the page as it is now."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(script())
    found: list[str] = page.evaluate(_FINDINGS)
    return found
