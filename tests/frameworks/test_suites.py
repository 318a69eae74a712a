"""What needs packages that the other tests do not: the tests that kombu and Celery have for their brokers, and the
example of the guide to Django with Django 6. `make frameworks` runs them; pip fetches the packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from cli.conftest import Running

from frameworks.conftest import Example
from frameworks.test_django import follow

GUIDE = "django.md"
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / ".cache" / "frameworks"
HERE = Path(__file__).parent
# What is left out, by a part of the name of the test, and why.
NOT_OF_KOMBU = {
    "test_event_loop": "the transport does not use kombu's event loop, as those of py-amqp, Redis and SQS do",
    "test_priorities": "each step is a queue, and their consumers begin at once: what waited before comes in any order",
}
NOT_OF_CELERY = {
    "test_scheduled": "a task for later is a timer on the server, and in no worker",
    "test_revoked and test_Inspect": "a worker whose processes are all busy answers no remote control (see the guide)",
    "test_revoked_by_headers_complex_canvas": "the same",
    "test_trace_log_arguments": "the log of the worker is not captured in this way of running it",
}
DJANGO = "6.1.3"
# All of Django 6 that Python 3.11 lacks.
FOR_PYTHON_311 = """
import inspect

from asgiref.sync import markcoroutinefunction

if not hasattr(inspect, "markcoroutinefunction"):
    inspect.markcoroutinefunction = markcoroutinefunction
"""
OF_CELERY = ("test_tasks.py", "test_group_chains.py", "test_inspect.py")

pytestmark = [
    pytest.mark.skipif(not os.environ.get("QUEEN_LONG"), reason="needs minutes; `make frameworks` runs it"),
    pytest.mark.timeout(1800),
]


def sources_of(name: str) -> Path:
    """The source distribution of the version that is installed: wheels have no tests."""
    wanted = f"{name}-{version(name)}"
    if not (SOURCES / wanted).exists():
        SOURCES.mkdir(parents=True, exist_ok=True)
        fetch = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
        subprocess.run([sys.executable, "-m", "pip", *fetch, "--dest", SOURCES, f"{name}=={version(name)}"], check=True)
        with tarfile.open(SOURCES / f"{wanted}.tar.gz") as archive:
            archive.extractall(SOURCES, filter="data")
    return SOURCES / wanted


def run(folder: Path, running: Running, left_out: dict[str, str], *arguments: str, **environment: str) -> None:
    chosen = " and ".join(f"not ({part})" for part in left_out)
    plain = ("no:randomly", "no:xdist", "no:cacheprovider", "celery.contrib.pytest", "queenmq.integrations.kombu")
    options = [word for plugin in plain for word in ("-p", plugin)]
    usual = ("-W", "ignore", "--tb", "short", "--timeout", "120")
    broker = running.url.replace("http://", "queen://") + "//"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", *options, *usual, "-k", chosen, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "TEST_BROKER": broker} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]


def test_kombu(running: Running) -> None:
    plain = ("--noconftest", "-c", os.devnull, "-o", "python_classes=test_*")
    run(sources_of("kombu"), running, NOT_OF_KOMBU, *plain, str(HERE / "kombu_suite.py"))


def test_celery(running: Running, tmp_path: Path) -> None:
    files = [f"t/integration/{name}" for name in OF_CELERY]
    results = f"db+sqlite:///{tmp_path}/results.sqlite"
    run(sources_of("celery"), running, NOT_OF_CELERY, *files, TEST_BACKEND=results)


def test_django_6(example: Example, running: Running, tmp_path: Path) -> None:
    """It asks for Python 3.12, and its tasks run on 3.11 as well."""
    folder = SOURCES / f"django-{DJANGO}"
    if not folder.exists():
        fetch = ("install", "--quiet", "--no-deps", "--ignore-requires-python", "--target", str(folder))
        subprocess.run([sys.executable, "-m", "pip", *fetch, f"Django=={DJANGO}"], check=True)
    (tmp_path / "sitecustomize.py").write_text(FOR_PYTHON_311)
    example.environment["PYTHONPATH"] = os.pathsep.join((str(folder), str(tmp_path)))
    assert example.run("-c", "import django.tasks; print(django.__version__)").strip() == DJANGO
    follow(example, running)
