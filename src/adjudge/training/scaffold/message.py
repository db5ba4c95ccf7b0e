"""The system message that shows rubrics to the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.prompts.fence import clean_text
from adjudge.rubrics import Criterion
from adjudge.training.runfile.tables import Scaffold

__all__ = ["scaffolded", "system_message"]

_BASE = "You are a helpful assistant."
_OPENING = f"{_BASE} These criteria say what a good answer is."
_GOOD = "It should do this:"
_BAD = "It should not do this:"
_WARNING = (
    "Do not mention the criteria, nor let it show that you know them: answer as if there were only "
    "the question."
)


def system_message(shown: Sequence[Criterion], scaffold: Scaffold) -> str | None:
    """The text that shows the policy ``shown``, with what each is worth; ``None``: say nothing.

    Nothing is said where nothing is shown, unless ``add_base_when_zero``. A criterion is data: one
    line each, without the control tokens of chat templates.

    >>> print(system_message([Criterion("Names a dose", points=5)], Scaffold(
    ...     include_evaluation_warning=False)))
    You are a helpful assistant. These criteria say what a good answer is.
    <BLANKLINE>
    It should do this:
    1. Names a dose (worth 5 points)
    """
    if not shown:
        return _BASE if scaffold.add_base_when_zero else None
    good = [f"{_line(one)} (worth {one.worth:g} points)" for one in shown if one.worth > 0]
    bad = [f"{_line(one)} (penalty {-one.worth:g} points)" for one in shown if one.worth < 0]
    parts = [_OPENING, _list(_GOOD, good), _list(_BAD, bad)]
    if scaffold.include_evaluation_warning:
        parts.append(_WARNING)
    return "\n\n".join(part for part in parts if part)


def scaffolded(messages: Sequence[Mapping[str, Any]], text: str | None) -> list[dict[str, Any]]:
    """``messages`` with ``text`` as their system message, or at the end of the one they have.

    >>> scaffolded([{"role": "user", "content": "Hello"}], "Be polite.")[0]
    {'role': 'system', 'content': 'Be polite.'}
    """
    turns = [dict(turn) for turn in messages]
    if text is None:
        return turns
    said = turns[0].get("content") if turns and turns[0].get("role") == "system" else None
    if isinstance(said, str):
        turns[0]["content"] = f"{said}\n\n{text}"
        return turns
    if isinstance(said, list):  # content in parts: a second system message is refused by templates
        turns[0]["content"] = [*said, {"type": "text", "text": text}]
        return turns
    return [{"role": "system", "content": text}, *turns]


def _line(criterion: Criterion) -> str:
    """A criterion's text on one line, so that no part of it can pass for another."""
    return " ".join(clean_text(criterion.text).split())


def _list(title: str, lines: Sequence[str]) -> str:
    numbered = [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    return "\n".join([title, *numbered]) if numbered else ""
