"""One name for one thing, over the options of all commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import typer

from adjudge.cli.main import command_line

WRITES_NO_FILES = {
    "conformance",
    "graders", "rubric lint", "serve", "mock", "models fetch", "models list", "view",
    "watch", "doctor", "study diff",
}  # fmt: skip
ASKS_JUDGES = {
    "grade", "regrade", "probe", "eval judge", "eval policy", "eval healthbench", "study swap",
    "study run", "study replay", "train",
}  # fmt: skip
TWO_MEANINGS = {"-j"}
"""``--judge`` and ``--jobs``."""
OTHER_SPELLINGS = {
    "--api-key", "--budget", "--dataset", "--folder", "--max-concurrency", "--out", "--output-dir",
    "--spend-ceiling-usd", "--timeout", "--url",
}  # fmt: skip


def all_options(command: Any, words: str = "") -> Iterator[tuple[str, list[str]]]:
    if hasattr(command, "load"):
        command = command.load()
    if hasattr(command, "list_commands"):
        for word in command.commands:
            yield from all_options(command.commands[word], f"{words} {word}".strip())
        return
    for one in command.params:
        yield words, (one.opts if one.param_type_name == "option" else [])


OPTIONS = list(all_options(typer.main.get_command(command_line())))


def commands_with(name: str) -> set[str]:
    return {words for words, names in OPTIONS if name in names}


def test_what_is_written_goes_where_output_says() -> None:
    commands = {words for words, _ in OPTIONS}
    assert commands_with("--output") == commands_with("-o") == commands - WRITES_NO_FILES


def test_what_may_cost_can_be_estimated() -> None:
    assert commands_with("--dry-run") == ASKS_JUDGES


def test_an_idea_has_one_name() -> None:
    short: dict[str, set[str]] = defaultdict(set)
    for _, names in OPTIONS:
        assert not OTHER_SPELLINGS & set(names)
        for name in names:
            if len(name) == 2:
                short[name] |= {one for one in names if len(one) > 2}
    assert {name for name, long in short.items() if len(long) > 1} == TWO_MEANINGS
