"""`queen apply`: queues as a file declares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run, Running
from cli.terminal import Terminal


def written(folder: Path, text: str) -> str:
    file = folder / "queues.yaml"
    file.write_text(text)
    return str(file)


def test_queues_become_what_the_file_says(queen: Run, name: str, tmp_path: Path) -> None:
    queen("queues", "create", name, "--namespace", "shop", "leaseTime=17", "retryLimit=9")
    file = written(
        tmp_path,
        f"""
queues:
  {name}:
    options:
      leaseTime: 60
      deadLetterQueue: true
  {name}-new:
    task: mail
    options: {{ttl: 5}}
""",
    )
    shown = queen("apply", "-f", file, "--dry-run")
    assert shown.out.splitlines() == [
        f"~ {name} changes",
        "    leaseTime: 17 → 60",
        "    retryLimit: 9 → 3 (default)",
        "    deadLetterQueue: false → true",
        f"+ {name}-new is new",
        '    task: "mail"',
        "    ttl: 5",
        "nothing was applied (--dry-run)",
    ]
    assert queen("queues", "show", f"{name}-new").status == 3
    assert queen("apply", "-f", file).status == 2, "there is nobody to ask"
    assert queen("apply", "-f", file, "--yes").out.splitlines()[-1] == "2 queues configured"
    about = queen("queues", "show", name, "--json").json["queue"]
    assert (about["namespace"], about["options"]["leaseTime"], about["options"]["retryLimit"]) == ("shop", 60, 3)
    made = queen("queues", "show", f"{name}-new", "--json").json["queue"]
    assert (made["task"], made["options"]["ttl"]) == ("mail", 5)
    again = queen("apply", "-f", file, "--json")
    assert [one["change"] for one in again.json] == ["keep", "keep"]
    assert queen("apply", "-f", file).out.splitlines()[-1] == "nothing to change"
    assert queen("apply", file).out.splitlines()[-1] == "nothing to change"
    for wrong in ([], [file, "-f", file]):
        assert "name one file that declares queues" in queen("apply", *wrong).err


def test_it_asks_before_it_changes_anything(running: Running, queen: Run, name: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"queues: {{{name}: {{}}}}")
    for answer, status in ((b"n\n", 1), (b"y\n", 0)):
        with Terminal("apply", "-f", file, url=running.url, folder=tmp_path) as terminal:
            terminal.until("Apply this to 1 queue?")
            terminal.press(answer)
            assert terminal.end() == status
        assert queen("queues", "show", name).status == (0 if status == 0 else 3)


def test_json_shows_what_it_asks_about_and_stays_alone_on_stdout(queen: Run, name: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"queues: {{{name}: {{options: {{leaseTime: 60}}}}}}")
    asked = queen("apply", "-f", file, "--json")
    assert (asked.status, asked.out) == (2, "")
    assert asked.err.splitlines()[:2] == [f"+ {name} is new", "    leaseTime: 60"]
    assert "Apply this to 1 queue?" in asked.err
    done = queen("apply", "-f", file, "--json", "--yes")
    assert (done.json[0]["change"], done.err) == ("create", "")


def test_it_can_be_read_from_standard_input(queen: Run, name: str) -> None:
    assert queen("apply", "-f", "-", "--yes", stdin=f'{{"queues": {{"{name}": null}}}}').status == 0
    assert queen("queues", "show", name).status == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queues: [", "is not YAML: line 1"),
        ("- 1", "it must have a mapping `queues`"),
        ("queues: {}", "it must have a mapping `queues`"),
        ("queues: {a: {}}\ntopics: {}", "the file: there is no 'topics'"),
        ("queues: {a: {}, a: {}}", "a is there twice"),
        ("queues: {1: {}}", "in quotes"),
        ("queues: {a: 1}", "a: it must be a mapping"),
        ("queues: {a: {option: {}}}", "did you mean 'options'?"),
        ("queues: {a: {options: {leasTime: 1}}}", "did you mean 'leaseTime'?"),
        ("queues: {a: {options: {leaseTime: -1}}}", "$.leaseTime"),
        ("queues: {a: {options: {leaseTime: soon}}}", "$.leaseTime"),
        ("queues: {a: {task: 1}}", "task must be text"),
        ("queues: {'': {}}", "queue"),
        ("queues: {a: {options: &a {ttl: *a}}}", "recursive"),
        ("queues: !!python/object:os.system {}", "is not YAML"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(queen: Run, text: str, told: str, tmp_path: Path) -> None:
    refused = queen("apply", "-f", written(tmp_path, text), "--yes")
    assert (refused.status, refused.out, told in refused.err) == (2, "", True), refused.err
    assert queen("queues", "show", "a").status == 3


def test_a_file_that_is_not_there(queen: Run, tmp_path: Path) -> None:
    assert queen("apply", "-f", str(tmp_path / "none.yaml")).status == 2
