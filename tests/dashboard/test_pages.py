"""Every page, as it looks: on a desk, in the dark, on a phone. The pictures stay in build/screenshots.

`make pictures` runs this to make those of the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.axe import serious_findings
from dashboard.browser import SCREENSHOTS, visit
from dashboard.conftest import Served
from dashboard.pictures import keep_picture, note_sources
from dashboard.scene import FOR_PICTURES, STUCK, Traffic


def _overview(page: Page) -> None:
    page.goto("/#/")
    # The live lines need a few beats.
    line = page.get_by_role("img", name="Messages a second, live").locator(".line").first
    expect(line).to_have_attribute("d", re.compile(r".*L.*L.*L.*"))


def _message(page: Page) -> None:
    page.goto("/#/queues/payments/partitions/acme-ltd")
    page.get_by_role("link", name="See the message at the head").click()


def _operation(page: Page) -> None:
    page.goto("/#/operations?status=completed")
    page.get_by_role("link", name="push").first.click()


# Where a page is, and what it shows when it is complete.
PAGES: dict[str, tuple[str | Callable[[Page], None], str]] = {
    "overview": (_overview, "Waiting longest"),
    "queues": ("/#/queues", "devices"),
    "queue": ("/#/queues/orders", "customer-01"),
    "partition": (f"/#/queues/{STUCK[0]}/partitions/{STUCK[1]}", "Retrying"),
    "groups": ("/#/groups", "billing"),
    "group": ("/#/groups/shipping?queue=orders", "customer-12"),
    "messages": ("/#/messages?queue=orders", "order-12-5"),
    "message": (_message, "History"),
    "dead-letters": ("/#/dead-letters", "550 mailbox unknown"),
    "traces": ("/#/traces", "checkout"),
    "trace": ("/#/traces/checkout", "invoice-1"),
    "keys": ("/#/keys?namespace=shop&lock=nightly-report", "office-1"),
    "operations": ("/#/operations", "orders / customer-01"),
    "operation": (_operation, "Result"),
    "cluster": ("/#/cluster", "queen-2"),
    "pipeline": ("/#/pipeline", "Starts again soon"),
    "declared": ("/#/pipeline/order-stats", "spark-1:4711"),
    "access": ("/#/access", "queues orders.*"),
    "search": ("/#/search?q=order", "by part of their name"),
}
LOOKS = {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}


def go(page: Page, name: str) -> None:
    where, shows = PAGES[name]
    if isinstance(where, str):
        page.goto(where)
    else:
        where(page)
    expect(page.get_by_text(shows).first).to_be_visible()
    expect(page.locator(".live .badge")).to_have_class("badge good")


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_seen(browser: Browser, served: Served, look: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    findings: list[str] = []
    with Traffic(served.url), visit(browser, served.url, **LOOKS[look]) as page:
        for name in PAGES:
            go(page, name)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{name} can be scrolled sideways by {wide} pixels"
            tables = page.evaluate(
                "[...document.querySelectorAll('.table-wrap')].map((e) => e.scrollWidth - e.clientWidth)"
            )
            assert max(tables, default=0) <= 0, f"a table of {name} does not fit: {tables}"
            seen = page.screenshot(path=SCREENSHOTS / f"{name}-{look}.png", full_page=True)
            if FOR_PICTURES:
                keep_picture(seen, f"{name}-{look}")
            findings += [f"{name}: {finding}" for finding in serious_findings(page)]
    if FOR_PICTURES:
        note_sources(look)
    assert findings == []
