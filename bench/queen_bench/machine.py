"""The facts without which figures mean little: the machine, the versions, the revision."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import queenmq

MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
SPARE_FILES: Final = 200


def facts(scratch: Path | None) -> dict[str, str | int]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "queen": queenmq.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(scratch),
        "load_average": f"{os.getloadavg()[0]:.2f}",
    }


def _revision() -> str:
    """The commit that this code is of, with a mark if it was changed since."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - git with our own words
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def file_system(scratch: Path | None) -> str:
    """The kind of file system that the database lies on: the longest mount point above it decides."""
    folder = os.path.realpath(scratch or tempfile.gettempdir())
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if os.path.commonpath([folder, point]) == point]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "unknown"


def allow_open_files(count: int) -> bool:
    """Raise our limit, and so that of the processes we start, as far as it takes; whether it is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft >= wanted
