"""Every button of the dashboard is pressed by a test in a browser (`press` in tests/dashboard/steps.py).

The buttons are read from the scripts, the presses from the tests. A press is checked there: the button must do what
its file says. Of a button in a dialog only the label counts, wherever the dialog was opened.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard.labels import DASHBOARD, Button, buttons, buttons_in, not_pressed, presses

TESTS = Path(__file__).parents[1] / "dashboard"

SCRIPT = """
button(icon("M3 6h18"), () => toggle(), { kind: "icon menu", title: "Menu" });
rows.map((row) => button(row.name, () => page.set({ queue: row.name })));  // a "name, or (another"
may("admin") && button(`Redrive all ${number(total)}`, () => ask({
  title: `Of ${queue ? `one, ${queue}` : "all"}?`,
  action: end ? "Skip" : "Move",
}));
button(all ? "Select none" : "Select all", select, { kind: "primary" });
"""


def test_every_button_is_pressed() -> None:
    pressed = {press for file in TESTS.glob("test_*.py") for press in presses(file.read_text())}
    missing = not_pressed(buttons(), pressed)
    assert missing == [], 'no browser test presses these; use press(page, "label", of="file") and check what it does'


def test_buttons_are_made_by_the_function_that_is_looked_for() -> None:
    scripts = "".join(file.read_text() for file in [*DASHBOARD.glob("*.js"), DASHBOARD / "index.html"])
    assert scripts.count('h("button"') == 1
    assert "<button" not in scripts
    assert 'createElement("button"' not in scripts


def test_labels_are_found_in_scripts() -> None:
    found = sorted(buttons_in("groups", SCRIPT), key=str)
    assert [(button.file, button.label) for button in found] == [
        ("groups", "Menu"),
        ("groups", "Redrive all ${number(total)}"),
        ("groups", "Select all"),
        ("groups", "Select none"),
        ("groups", None),
        ("ui", "Move"),
        ("ui", "Skip"),
    ]


def test_presses_are_found_in_tests() -> None:
    tests = """
def test(page):
    press(page, "Menu", of="groups", touch=True)
    walk.press(f"Redrive all {count}", of="groups", within=row)
    press(page, label, of="groups")
    page.keyboard.press("Escape")
    confirm(page, "Skip")
    type_name(page, queue, "Move")
"""
    assert presses(tests) == {("groups", "Menu"), ("groups", "Redrive all …"), ("ui", "Skip"), ("ui", "Move")}


@pytest.mark.parametrize(
    ("pressed", "missing"),
    [
        ({("queues", "Clear"), ("queues", "billing")}, []),
        ({("queues", "Clear")}, [Button("queues", None)]),
        ({("queues", "billing")}, [Button("queues", "Clear")]),
        ({("partition", "Clear"), ("queues", "billing")}, [Button("queues", "Clear")]),
    ],
    ids=["all", "only those with a label", "only another", "that of another file"],
)
def test_what_is_not_pressed_is_missing(pressed: set[tuple[str, str]], missing: list[Button]) -> None:
    assert not_pressed({Button("queues", "Clear"), Button("queues", None)}, pressed) == missing
