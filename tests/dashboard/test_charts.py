"""Traces by name, and charts: their ranges, their tips, and gaps where nobody measured."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Page, Route, expect

from dashboard.conftest import Served
from dashboard.steps import fresh, press


def test_traces_by_name(page: Page, served: Served) -> None:
    shop, queue, name = served.shop, fresh("traced"), fresh("story")
    shop.push(queue, "p", 1, name="invoice-77")
    [message] = shop.pop(queue, "g", "p")
    body = {"transactionId": "invoice-77", "partitionId": message["partitionId"], "traceNames": [name]}
    for step in ("reserve", "capture"):
        shop.call("POST", "/api/v1/traces", body | {"data": {"step": step}, "eventType": "info"})
    page.goto("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Traces").click()
    row = page.get_by_role("region", name="Trace names").get_by_role("row", name=re.compile(f"^{name} "))
    expect(row.get_by_role("cell").nth(1)).to_have_text("2")
    row.get_by_role("link", name=name).click()
    expect(page.locator(".timeline li")).to_have_count(2)
    expect(page.locator(".timeline li").first).to_contain_text("capture")
    page.locator(".timeline").get_by_role("link", name="invoice-77").first.click()
    expect(page.get_by_role("heading", name="invoice-77")).to_be_visible()
    page.goto("/#/traces")
    page.get_by_label("Name", exact=True).fill("no such story")
    press(page, "Show", of="traces")
    expect(page.get_by_text("No trace has this name.")).to_be_visible()


def test_a_chart_says_what_was_when(page: Page) -> None:
    page.goto("/#/queues/orders")
    chart = page.get_by_role("img", name="Messages a second of orders, last hour")
    expect(chart.locator(".axis-x span")).to_have_count(5)
    tip = chart.locator(".tip")
    expect(tip).to_be_hidden()
    chart.locator(".plot").hover(position={"x": 100, "y": 40})
    expect(tip).to_contain_text(re.compile(r"\d\d:\d\dpushed [\d.,]+"))
    expect(tip).to_contain_text("acknowledged")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_the_range_of_charts_is_chosen(page: Page) -> None:
    page.goto("/#/queues/orders")
    press(page, "Last week", of="history")
    chart = page.get_by_role("img", name="Messages a second of orders, last week")
    expect(chart.locator(".axis-x span").first).to_contain_text(re.compile(r"\d+ \w{3}|\w{3} \d+"))
    expect(page.get_by_text("Messages a second, by hour")).to_be_visible()
    expect(page.get_by_role("button", name="Last week")).to_have_attribute("aria-pressed", "true")
    page.goto("/#/?range=day")
    expect(page.get_by_role("img", name="Errors, last day")).to_be_visible()
    expect(page.get_by_text("Messages a second on all servers, by 15 minutes")).to_be_visible()


def test_where_nobody_measured_there_is_a_gap(page: Page, served: Served) -> None:
    """A minute of silence is zero if a server was there, and nothing if none was."""
    queue = fresh("gaps")
    served.shop.configure(queue)
    now = datetime.now(UTC).replace(second=0, microsecond=0)

    def answer(route: Route) -> None:
        told: dict[str, Any] = route.fetch().json()
        minutes = [now - timedelta(minutes=back) for back in range(60, 0, -1)]
        told["timeRange"] = {"from": minutes[0].isoformat(), "to": now.isoformat()}
        told["measured"] = [at.isoformat() for index, at in enumerate(minutes) if not 20 <= index < 40]
        told["throughput"] = []
        route.fulfill(json=told)

    page.route(f"**/api/v1/status?queue={queue}", answer)
    page.goto(f"/#/queues/{queue}")
    chart = page.get_by_role("img", name=f"Messages a second of {queue}")
    line = chart.locator(".line").first
    expect(line).to_have_attribute("d", re.compile("^M[^M]*M[^M]*$"))
    middle = chart.locator(".plot").bounding_box()
    assert middle is not None
    page.mouse.move(middle["x"] + middle["width"] / 2, middle["y"] + 20)
    expect(chart.locator(".tip")).to_contain_text("not measured")
    page.mouse.move(middle["x"] + 5, middle["y"] + 20)
    expect(chart.locator(".tip")).to_contain_text("pushed 0")


def test_a_partition_shows_how_much_is_pushed_to_it(page: Page, served: Served) -> None:
    queue = fresh("pushed")
    served.shop.push(queue, "p", "first")
    page.clock.install()
    page.goto(f"/#/queues/{queue}")
    table = page.get_by_role("region", name="Partitions")
    cells = table.get_by_role("row").filter(has=page.get_by_role("link", name="p", exact=True)).get_by_role("cell")
    expect(cells.nth(3)).to_have_text("–")
    page.clock.fast_forward(10_000)
    expect(cells.nth(3)).to_have_text("0")


def test_how_fast_a_count_grows(page: Page) -> None:
    page.clock.install()
    page.goto("/")
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))

    def growth(count: int, later_ms: int = 0) -> str:
        page.clock.fast_forward(later_ms)
        shown: str = page.evaluate("n => import('/assets/rates.js').then(({ growth }) => growth('k', n, 4000))", count)
        return shown

    assert [growth(1), growth(5, 1000), growth(1001, 9000)] == ["–", "–", "100"]
    assert growth(5000, 3999) == "100"  # so short a time says nothing
    assert growth(1001, 1) == "0"
    assert [growth(7, 4000), growth(15, 4000)] == ["–", "2"]  # another queue of that name
    assert growth(16, 120_001) == "–"


def test_the_server_says_when_it_was_there(served: Served) -> None:
    told = served.shop.call("GET", "/api/v1/status")
    at = told["measured"][-1]
    assert datetime.fromisoformat(at) >= datetime.now(UTC) - timedelta(minutes=2)
    assert len(told["measured"]) < 60


def test_groups_say_what_they_finish_a_second(page: Page) -> None:
    """As the server says it, in every list of groups; a dash while it cannot say."""
    rates = {"billing": 12.34, "shipping": None}

    def answer(route: Route) -> None:
        told: list[dict[str, Any]] = route.fetch().json()
        route.fulfill(json=[one | {"finishedPerSecond": rates.get(one["name"], 0.01)} for one in told])

    page.route("**/api/v1/consumer-groups?*", answer)
    for place in ("/#/groups", "/#/queues/orders"):
        page.goto(place)
        listed = page.get_by_role("region", name="Consumer groups")
        headings = listed.get_by_role("columnheader")
        expect(headings.filter(has_text="Finished/s")).to_be_visible()
        column = headings.all_text_contents().index("Finished/s")
        for group, shown in (("billing", "12.3"), ("shipping", "–")):
            row = listed.get_by_role("row").filter(has=page.get_by_role("link", name=group, exact=True))
            expect(row.filter(has_text="orders").get_by_role("cell").nth(column)).to_have_text(shown)
    page.goto("/#/groups/billing?queue=orders")
    expect(page.locator(".tile", has_text="Finished a second")).to_contain_text("12.3")
