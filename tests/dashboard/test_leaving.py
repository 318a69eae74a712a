"""What is open on a page ends with it: nobody confirms on one page what was asked on another."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.conftest import Served
from dashboard.scene import Shop
from dashboard.steps import dead_letters, dialog, fresh, press, told, type_name


def two_queues(shop: Shop) -> tuple[str, str]:
    one, other = fresh("left"), fresh("asked")
    for queue in (one, other):
        dead_letters(shop, queue, 2)
        shop.push(queue, "p1", 1)
        shop.read(queue, "ledger")
    shop.refresh()
    return one, other


def pauses(shop: Shop, queue: str) -> list[object]:
    found: list[object] = shop.call("GET", "/api/v1/pauses", queue=queue)["pauses"]
    return found


def go(page: Page, where: str, title: str) -> None:
    page.evaluate("where => { location.hash = where; }", where)
    expect(page.get_by_role("heading", level=1)).to_contain_text(title)


def test_what_was_asked_on_a_page_is_not_done_from_another(page: Page, served: Served) -> None:
    """Back with a dialog open, and whoever sees the other page types and confirms."""
    one, other = two_queues(served.shop)
    page.goto("/#/")
    go(page, f"#/queues/{one}", one)
    go(page, f"#/queues/{other}", other)
    press(page, "Pause", of="queues")
    expect(dialog(page)).to_contain_text(f"Pause {other}?")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_contain_text(one)
    expect(dialog(page)).to_have_count(0)
    page.keyboard.type("a bad day")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(dialog(page)).to_have_count(0)
    assert pauses(served.shop, one) == pauses(served.shop, other) == []


@pytest.mark.parametrize(
    ("where", "file", "label"),
    [
        ("queues/{queue}", "queues", "Change settings"),
        ("queues/{queue}", "queues", "Push a message"),
        ("queues/{queue}", "queues", "Delete"),
        ("queues/{queue}/partitions/p1", "partition", "Clear"),
        ("groups/ledger?queue={queue}", "groups", "Rewind or skip"),
        ("dead-letters?queue={queue}", "dead_letters", "Redrive"),
        ("cluster", "cluster", "Switch on"),
        ("queues", "app", "Keyboard"),
    ],
)
def test_every_dialog_closes_with_its_page(page: Page, served: Served, where: str, file: str, label: str) -> None:
    _, queue = two_queues(served.shop)
    page.goto("/#/operations")
    expect(page.get_by_role("heading", name="Operations", level=1)).to_be_visible()
    page.evaluate("where => { location.hash = where; }", f"#/{where.format(queue=queue)}")
    button = page.get_by_role("button", name=label, exact=True).first
    expect(button).to_be_visible()
    button.click()
    expect(dialog(page)).to_have_count(1)
    page.go_back()
    expect(page.get_by_role("heading", name="Operations", level=1)).to_be_visible()
    expect(dialog(page)).to_have_count(0)


def test_a_dialog_closes_when_its_page_narrows_to_something_else(page: Page, served: Served) -> None:
    """The page is the same, what it shows is not: all that match are those of the other queue."""
    one, other = two_queues(served.shop)
    page.goto(f"/#/dead-letters?queue={one}")
    expect(page.get_by_role("main")).to_contain_text(f"{one} / p1")
    page.evaluate("where => { location.hash = where; }", f"#/dead-letters?queue={other}")
    expect(page.get_by_role("main")).to_contain_text(f"{other} / p1")
    press(page, "Redrive all 2", of="dead_letters")
    expect(dialog(page)).to_contain_text(f"of {other}?")
    page.go_back()
    expect(page.get_by_role("main")).to_contain_text(f"{one} / p1")
    expect(dialog(page)).to_have_count(0)


def test_what_is_redriven_is_what_is_shown(page: Page, served: Served) -> None:
    """The address asks for another queue, but its dead letters have not come."""
    one, other = two_queues(served.shop)
    page.goto(f"/#/dead-letters?queue={one}")
    expect(page.get_by_role("main")).to_contain_text(f"{one} / p1")
    page.route(re.compile(f"queue={other}"), lambda route: route.abort())
    page.evaluate("where => { location.hash = where; }", f"#/dead-letters?queue={other}")
    expect(page.get_by_role("alert").first).to_contain_text("The server cannot be reached")
    press(page, "Redrive all 2", of="dead_letters")
    expect(dialog(page)).to_contain_text(f"of {one}?")


def test_a_dialog_closes_when_its_object_has_disappeared(page: Page, served: Served) -> None:
    queue = fresh("gone")
    served.shop.push(queue, "p", 1)
    page.goto(f"/#/queues/{queue}")
    press(page, "Pause", of="queues")
    served.shop.call("DELETE", f"/api/v1/resources/queues/{queue}")
    expect(page.get_by_role("alert").first).to_contain_text("not found")
    expect(dialog(page)).to_have_count(0)
    told(page, "What the dialog was about is gone.")


def test_suggestions_end_with_the_page(page: Page, served: Served) -> None:
    queue = fresh("suggested")
    served.shop.push(queue, "p", 1)
    page.goto("/#/groups")
    expect(page.get_by_role("heading", name="Consumer groups", level=1)).to_be_visible()
    go(page, "#/groups?only=due", "groups")
    page.get_by_label("Search", exact=True).first.fill(queue)
    expect(page.get_by_role("navigation", name="Suggestions")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile("#/groups$"))
    expect(page.get_by_role("navigation", name="Suggestions")).to_have_count(0)


def test_what_was_typed_on_a_page_does_not_narrow_the_next_one(page: Page) -> None:
    """A search waits for the end of the typing; the page may be another one by then."""
    page.goto("/#/queues")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    page.get_by_role("main").get_by_role("searchbox").first.evaluate(
        """field => {
          field.value = "orders";
          field.dispatchEvent(new Event("input", { bubbles: true }));
          location.hash = "#/groups";
        }"""
    )
    expect(page.get_by_role("heading", name="Consumer groups", level=1)).to_be_visible()
    page.evaluate("() => new Promise((done) => setTimeout(done, 400))")  # longer than a search waits
    assert page.evaluate("location.hash") == "#/groups"


def test_keys_of_the_page_do_nothing_while_a_dialog_is_open(page: Page, served: Served) -> None:
    """Also if nothing in it has the focus, as when its button has been switched off."""
    queue = fresh("keys")
    served.shop.push(queue, "p", 1)
    page.goto(f"/#/queues/{queue}")
    press(page, "Pause", of="queues")
    page.evaluate("document.activeElement.blur()")
    for key in ("g", "g", "?"):
        page.keyboard.press(key)
    expect(dialog(page)).to_have_count(1)
    assert page.evaluate("location.hash") == f"#/queues/{queue}"


@pytest.mark.parametrize("refused", [False, True], ids=["done", "refused"])
def test_what_ends_after_its_page_was_left_says_so_and_leads_nowhere(page: Page, served: Served, refused: bool) -> None:
    """A queue is being deleted, and its person has gone on."""
    queue = fresh("slow")
    served.shop.push(queue, "p", 1)
    held: list[Route] = []
    page.route(re.compile(f"/api/v1/resources/queues/{queue}$"), lambda route: hold(route, held))
    page.goto(f"/#/queues/{queue}")
    press(page, "Delete", of="queues")
    with page.expect_request(lambda request: request.method == "DELETE"):
        type_name(page, queue, "Delete the queue")
    go(page, "#/operations", "Operations")
    expect(dialog(page)).to_have_count(0)
    [route] = held
    if refused:
        route.fulfill(status=409, json={"error": "Somebody holds it"})
        told(page, "Somebody holds it")
    else:
        route.continue_()
        told(page, "deleted")
    assert page.evaluate("location.hash") == "#/operations"


def hold(route: Route, held: list[Route]) -> None:
    """Until the test lets it go on."""
    if route.request.method == "DELETE":
        held.append(route)
    else:
        route.continue_()
