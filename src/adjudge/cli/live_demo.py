"""``adjudge demo --live``: eight answers, judged by a real language model on this machine.

The answers come in pairs, a right one and a wrong one, so that a reader can check by eye what the
judge says of them.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from adjudge.cli.console import clean, errors
from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.judges.models.model_files import MODEL_FILES, fetch_model, fetched_path, models_folder
from adjudge.report.elements import Element
from adjudge.report.table import Column, Table, lost, numeric, styled
from adjudge.runs.graded_run import GradedRow

_MODEL = "smollm2"
_RUBRIC, _PAIR = "rubric", "pair"
_CORRECT, _ERROR = "correct", "error"
_WORDS = 160
"""How much of the judge's words the table shows; the report has all."""


class LiveFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge's verdicts come to, as counts.

    ``judged``: answers with a verdict on "answers correctly"; ``agreed``: where that verdict is the
    environment's. ``checked``: answers that have the verdict on "states something false", too;
    ``contradicted``: those called correct and false at once, or neither. ``orders``: verdicts on
    pairs; ``first_chosen``: those for the answer that stood first. ``compared``: pairs with a
    verdict in both orders; ``same_winner``: those that one answer won in both; ``right_winner``:
    those that the right answer won in both; ``first_winner``: those where whichever stood first
    won, in both. ``failures``: graders' results without a score, by
    kind; a verdict that is missing is in no other count.
    """

    answers: int
    judged: int
    agreed: int
    checked: int
    contradicted: int
    pairs: int
    orders: int
    first_chosen: int
    compared: int
    same_winner: int
    right_winner: int
    first_winner: int
    failures: dict[str, int]


def fetch_live_model() -> None:
    """Fetch the model unless it is there; say what is fetched, and how long it computes.

    Raises :class:`~adjudge.errors.ConfigError` where the library is missing or nothing comes.
    """
    if find_spec("xllamacpp") is None:
        raise ConfigError(
            "--live: the package xllamacpp is not installed. Run: " + install_command("embedded")
        )
    model = MODEL_FILES[_MODEL]
    if not fetched_path(model).is_file():
        errors().print(
            f"{model.about} ({model.megabytes} MB, licence {model.licence}); fetched once, and "
            f"kept in {clean(models_folder())}"
        )
        fetch_model(_MODEL, on_step=errors().print)
    errors().print(
        "a whole run asks 24 questions, about a minute of CPU time; the first verdicts come late"
    )


def count_findings(rows: Sequence[GradedRow]) -> LiveFindings:
    """The counts of a run over the demonstration's answers."""
    marks = [(_is_right(row), _mark(row, _CORRECT), _mark(row, _ERROR)) for row in rows]
    judged = [correct == right for right, correct, _ in marks if correct is not None]
    checked = [one == two for _, one, two in marks if one is not None and two is not None]
    orders: dict[tuple[str, bool], bool] = {}
    for row in rows:
        for right_is_first, first_won in _pair_orders(row):
            # The two answers of a pair ask the same two questions.
            orders.setdefault((row.group, right_is_first), first_won)
    groups = {row.group for row in rows}
    won = [
        (orders[group, True], not orders[group, False])  # by the right answer
        for group in groups
        if (group, True) in orders and (group, False) in orders
    ]
    return LiveFindings(
        answers=len(rows),
        judged=len(judged),
        agreed=sum(judged),
        checked=len(checked),
        contradicted=sum(checked),
        pairs=len(groups),
        orders=len(orders),
        first_chosen=sum(orders.values()),
        compared=len(won),
        same_winner=sum(one == other for one, other in won),
        right_winner=sum(one and other for one, other in won),
        first_winner=sum(one and not other for one, other in won),
        failures=Counter(
            str(detail["kind"])
            for row in rows
            for name in (_RUBRIC, _PAIR)
            if "error" in (detail := _detail(row, name))
        ),
    )


def _is_right(row: GradedRow) -> bool:
    return row.env_reward == 1


def _detail(row: GradedRow, grader: str) -> Mapping[str, Any]:
    return (row.result.details or {}).get(grader) or {}


def _criterion(row: GradedRow, name: str) -> Mapping[str, Any]:
    metadata = _detail(row, _RUBRIC).get("metadata") or {}
    criterion: Mapping[str, Any] = (metadata.get("criteria") or {}).get(name) or {}
    return criterion


def _mark(row: GradedRow, name: str) -> bool | None:
    """Whether the judge called a criterion met; ``None`` without a verdict."""
    met: bool | None = _criterion(row, name).get("met")
    return met


def _pair_orders(row: GradedRow) -> Iterator[tuple[bool, bool]]:
    """Of each order with a verdict: whether the right answer stood first, and whether that won."""
    metadata = _detail(row, _PAIR).get("metadata") or {}
    for order, outcome in (metadata.get("verdicts") or {}).items():
        is_first = order == "as_given"
        yield _is_right(row) == is_first, (outcome == "win") == is_first


def print_findings(
    console: Console, rows: Sequence[GradedRow], answers: Sequence[str], findings: LiveFindings
) -> None:
    """The verdicts on each of ``answers``, and what they come to."""
    console.print("\n[bold]What the judge says of each answer[/]")
    console.print(_verdict_table(rows, answers))
    for sentence in _sentences(findings):
        console.print(sentence)


def _verdict_table(rows: Sequence[GradedRow], answers: Sequence[str]) -> Table:
    cells = []
    for row in rows:
        words = str(_criterion(row, _CORRECT).get("reason") or "")
        right = _is_right(row)
        score = row.scores[_RUBRIC]
        cells.append(
            [
                answers[row.index],
                f"{row.env_reward:g}",
                _missing_cell(row) if score is None else f"{score:+g}".replace("+0", "0"),
                _mark_cell(row, _CORRECT, truth=right),
                _mark_cell(row, _ERROR, truth=not right),
                f"{words[:_WORDS]}…" if len(words) > _WORDS else words,
            ]
        )
    words_heading = "its words on correct"
    columns = [
        Column("answer", "w"),
        *numeric("env", "rubric"),
        "correct?",
        "false?",
        Column(words_heading, "w"),
    ]
    return Table(columns, cells, keep=("env", "rubric", "correct?", "false?", words_heading))


def _missing_cell(row: GradedRow) -> Element:
    return lost(str(_detail(row, _RUBRIC).get("kind", "missing")))


def _mark_cell(row: GradedRow, name: str, *, truth: bool) -> Element:
    mark = _mark(row, name)
    if mark is None:
        return lost("none")
    return styled("yes" if mark else "no", "good" if mark == truth else "bad")


def _sentences(found: LiveFindings) -> Iterator[str]:
    if found.judged:
        yield (
            f'On "correct" it agrees with the environment on {found.agreed} of {found.judged} '
            f"answers (chance: {found.judged / 2:g}; a coin agrees on as many or more in "
            f"{_coin_share(found.agreed, found.judged):.0%} of such runs)."
        )
    if found.checked:
        yield (
            f"It contradicts itself on {found.contradicted} of {found.checked}: it calls the "
            "answer correct and false at once, or neither."
        )
    if found.orders:
        yield (
            f"The pairs: it chose the answer that stood first in {found.first_chosen} of "
            f"{found.orders} orders. It named the same winner in both orders in "
            f"{found.same_winner} of {found.compared} pairs (the right answer in "
            f"{found.right_winner}); in the others the place decided: the first in "
            f"{found.first_winner}, the second in "
            f"{found.compared - found.same_winner - found.first_winner}."
        )
    if found.failures:
        kinds = ", ".join(f"{clean(kind)} {count}" for kind, count in found.failures.items())
        yield f"[yellow]Missing, and in no number above:[/] {kinds}"
    yield (
        "\nA model of 135 million parameters is a weak judge, and this is what weak looks like: "
        "verdicts near a coin's, winners that follow the place, words that do not fit the verdict. "
        "It shows how judging works. Do not train on its rewards."
    )


def _coin_share(agreed: int, judged: int) -> float:
    """How often a fair coin agrees at least so often: the upper tail of Binomial(judged, 1/2)."""
    return math.ldexp(sum(math.comb(judged, k) for k in range(agreed, judged + 1)), -judged)


def print_next_steps(console: Console, folder: Path) -> None:
    """What can be done with the folder."""
    spec, rollouts = folder / "inputs" / "reward.toml", folder / "inputs" / "rollouts.jsonl"
    other = folder.with_name(f"{folder.name}-other")
    commands = {
        shlex.join(["adjudge", "view", str(folder)]): "each prompt, reply and verdict",
        shlex.join(
            ["adjudge", "grade", str(rollouts), "--spec", str(spec), "-o", str(other)]
        ): "after the change",
        shlex.join(["adjudge", "diff", str(folder), str(other)]): "what turned",
    }
    console.print(
        f"\nFor a judge of yours, change \\[judges.main] in {clean(spec)}; its comments show how "
        "for a larger GGUF file, a server, and an API with a key."
    )
    for command, purpose in commands.items():
        console.print(f"  {clean(command)}   [dim]# {purpose}[/]", soft_wrap=True)
    console.print("For your own rollouts, run adjudge init FILE.")
