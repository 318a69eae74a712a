"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = os.environ.get("QUEEN_TEST_CHROMIUM") or shutil.which("chromium")
PATIENCE_MS = 30_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
Result = TypeVar("Result")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


def require_chromium() -> None:
    """Skip where there is no Chromium, but not where one is required: in CI a test that does not run has failed."""
    if CHROMIUM is None:
        missing("there is no chromium: apt-get install chromium")


def missing(reason: str) -> None:
    if os.environ.get("QUEEN_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def outside(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it in another thread: the browser's event loop may be running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def chromium() -> Iterator[Browser]:
    """While it runs, its event loop is the one of this thread; see `outside`."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def visit(
    browser: Browser, url: str, *, dark: bool = False, phone: bool = False, provider: str | None = None
) -> Iterator[Page]:
    """A page in a fresh profile. Whatever it complains of in its console is a failure, and so is every request to
    somebody else than its server and its OpenID provider."""
    known = (url,) if provider is None else (url, provider)
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        color_scheme="dark" if dark else "light",
        base_url=url,
        has_touch=phone,
        is_mobile=phone,
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith(known) else complaints.append(request.url))
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()
