"""The labels of the dashboard's buttons, read from its sources, and those that its tests press."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DASHBOARD = Path(__file__).parents[2] / "src" / "queenmq" / "dashboard"
DIALOG = "ui"  # the file of the button that confirms in a dialog, whoever opened it
_CONFIRM = ("confirm", "type_name")
_LITERAL = r"\"[^\"]*\"|`[^`]*`"
_LABEL = re.compile(rf"(?:[^\"`?]+\? )?({_LITERAL})(?: : ({_LITERAL}))?")
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|[()\[\]{},]", re.DOTALL
)


@dataclass(frozen=True, order=True)
class Button:
    """`label` is None if only a server knows it, such as the name of a group."""

    file: str
    label: str | None

    def is_called(self, text: str) -> bool:
        """Parts of a label that the script fills in may be anything."""
        parts = re.split(r"\$\{[^}]*\}", self.label or "${}")
        return re.fullmatch(".+".join(map(re.escape, parts)), text) is not None


def buttons() -> set[Button]:
    """All of the dashboard."""
    return {button for file in DASHBOARD.glob("*.js") for button in buttons_in(file.stem, file.read_text())}


def buttons_in(file: str, script: str) -> Iterator[Button]:
    for text, *rest in _calls("button", script):
        options = rest[-1] if rest else ""
        if 'kind: "icon' in options:
            (text,) = re.findall(r'title: ("[^"]+")', options)
        if (file, text) == (DIALOG, "action"):
            continue  # of `ask`: each call of it says the label
        labels = _labels(text)
        yield from (Button(file, label) for label in labels)
        if not labels:
            yield Button(file, None)
    for given, *_ in _calls("ask", script):
        if not given.startswith("{"):
            continue  # another function of that name
        (action,) = (part for part in _parts(given, 1) if part.startswith("action:"))
        labels = _labels(action.removeprefix("action:").strip())
        assert labels, f"{file}: the label is not said where `ask` is called: {action}"
        yield from (Button(DIALOG, label) for label in labels)


def presses(tests: str) -> set[tuple[str, str]]:
    """The file and the label of what these tests press, as far as both are literals."""
    found = set()
    for call in ast.walk(ast.parse(tests)):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
        of = next((_text(keyword.value) for keyword in call.keywords if keyword.arg == "of"), None)
        file = DIALOG if name in _CONFIRM else of if name == "press" else None
        label = _text(call.args[-1])
        if file and label:
            found.add((file, label))
    return found


def not_pressed(all_buttons: set[Button], pressed: set[tuple[str, str]]) -> list[Button]:
    """A press counts for a button without a label of its own only if it is of no other in that file."""
    said = [button for button in all_buttons if button.label is not None]
    known = {(file, text) for file, text in pressed if any(b.file == file and b.is_called(text) for b in said)}
    missing = [
        button for button in said if not any(button.is_called(text) for file, text in known if file == button.file)
    ]
    others = {file for file, _ in pressed - known}
    return sorted(missing + [b for b in all_buttons if b.label is None and b.file not in others], key=str)


def _calls(name: str, script: str) -> Iterator[list[str]]:
    """The arguments of each call of this function."""
    for call in re.finditer(rf"(?<!function )(?<![.\w]){name}\(", script):
        yield _parts(script, call.end())


def _parts(script: str, at: int) -> list[str]:
    """What stands between the bracket that opens just before this place and the one that closes it."""
    found: list[str] = []
    depth = 0
    for token in _TOKENS.finditer(script, at):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth < 0 or (depth == 0 and token[0] == ","):
            found.append(script[at : token.start()].strip())
            at = token.end()
        if depth < 0:
            return found
    raise AssertionError(f"no bracket closes {script[at:][:80]!r}")


def _labels(expression: str) -> list[str]:
    """Of a literal, or of a choice between two; none of anything else."""
    label = _LABEL.fullmatch(expression)
    return [text[1:-1] for text in label.groups() if text] if label else []


def _text(value: ast.expr) -> str | None:
    if isinstance(value, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in value.values)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
