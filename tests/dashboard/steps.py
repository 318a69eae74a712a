"""Small steps that many tests of the dashboard take."""

from __future__ import annotations

import itertools

from playwright.sync_api import Locator, Page, expect

from dashboard.labels import DASHBOARD, DIALOG
from dashboard.scene import Shop

_numbers = itertools.count(1)
# What a button does: the name of a function, or its text.
_DOES = """button => {
  const does = button.onclick ?? button.form?.onsubmit;
  return does ? does.name || String(does) : "";
}"""


def fresh(name: str) -> str:
    """A queue that no other test touches."""
    return f"{name}-{next(_numbers):03}"


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def press(within: Page | Locator, label: str, *, of: str, touch: bool = False) -> None:
    """Click a button. `of` is the file of the dashboard that makes it, for there are others with the same label;
    tests/unit/test_dashboard_buttons.py demands a press of each."""
    button = within.get_by_role("button", name=label, exact=True)
    assert button.evaluate(_DOES) in (DASHBOARD / f"{of}.js").read_text(), f"{label} is not a button of {of}.js"
    if touch:
        button.tap()
    else:
        button.click()


def confirm(page: Page, action: str) -> None:
    press(dialog(page), action, of=DIALOG)


def told(page: Page, text: str) -> None:
    expect(page.locator("#toasts")).to_contain_text(text)


def type_name(page: Page, name: str, action: str) -> None:
    """What cannot be undone is confirmed only with the name."""
    button = dialog(page).get_by_role("button", name=action)
    field = dialog(page).get_by_label(f"Type {name} to confirm")
    expect(button).to_be_disabled()
    field.fill(name[:-1])
    expect(button).to_be_disabled()
    field.fill(name)
    confirm(page, action)


def dead_letters(shop: Shop, queue: str, count: int) -> None:
    shop.configure(queue, retryLimit=0)
    for n in range(1, count + 1):
        shop.push(queue, f"p{n}", {"mail": n}, name=f"mail-{n}")
        shop.fail(queue, "smtp", f"p{n}", f"550 mailbox {n} unknown")
