"""``adjudge doctor SPEC``: one judge after the other, asked what its server honours."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.engine.clock import SystemClock
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.judges.base import ChatModel
from adjudge.judges.checkup import Finding, check_judge, wait_until_reached
from adjudge.judges.http_model import HttpChatModel
from adjudge.judges.table import JudgeTable, build_judge
from adjudge.judges.transport import AiohttpTransport
from adjudge.rewards.built import check_graders, check_machine
from adjudge.rewards.spec import RewardSpec

__all__ = ["WaitForJudge", "check_spec", "wait_for_judges"]

WaitForJudge = Annotated[
    float,
    typer.Option(
        "--wait-for-judge",
        metavar="SECONDS",
        min=0.0,
        help="How long to wait for a judge that is still starting. Without it a judge that has "
        "never been reached ends the command (exit code 3).",
    ),
]

_MARKS = {
    "yes": "[green]✓[/]",
    "no": "[yellow]no[/]",
    "unclear": "[yellow]unclear[/]",
    "failed": "[red]failed[/]",
    "not offered": "[dim]not offered[/]",
}


def check_spec(path: Path, *, as_json: bool) -> None:
    """Build the spec's graders, ask its judges, and print what was found."""
    spec = RewardSpec.load(path)
    judges = spec.build_judges()
    graders = spec.build_graders(judges)
    check_graders(spec, graders)
    lacking = _lacking(spec, graders)
    found = {name: _checked(spec, name, judges[name], as_json=as_json) for name in judges}
    if as_json:
        report = {
            "spec": str(path),
            "graders": [entry.name for entry in spec.graders],
            "lacking": lacking,
            "judges": {name: _plain(judges[name], findings) for name, findings in found.items()},
        }
        print_json(report)
    else:
        console = output()
        names = ", ".join(entry.name for entry in spec.graders)
        console.print(f"{clean(path)}: graders can be built: {names}")
        for problem in lacking:
            console.print(f"[red]lacking here:[/] {clean(problem)}", soft_wrap=True)
        if not judges:
            console.print("no judges: nothing was asked")
        for name, findings in found.items():
            _print(console, name, judges[name], findings, spec.judges[name])
    if lacking:
        raise typer.Exit(2)
    if any(finding.feature == "reply" and finding.honoured != "yes"
           for findings in found.values() for finding in findings):  # fmt: skip
        raise typer.Exit(3)


def wait_for_judges(specs: Iterable[str | Path], seconds: float) -> None:
    """Wait until the judges of those reward specs can be reached, ``seconds`` in all; 0: do not.

    Raises :class:`~adjudge.errors.JudgeUnavailable`. What is no spec has no judge to wait for.
    """
    if not seconds:
        return
    until = time.monotonic() + seconds
    for path in specs:
        if Path(path).suffix != ".toml":
            continue
        for model in RewardSpec.load(path).build_judges().values():
            if isinstance(model, HttpChatModel):
                run_blocking(_reached(model, max(0.0, until - time.monotonic())))


async def _reached(model: HttpChatModel, seconds: float) -> None:
    transport = AiohttpTransport()
    try:
        await wait_until_reached(
            model.base_urls,
            seconds,
            transport=transport,
            clock=SystemClock(),
            on_wait=lambda said: errors().print(f"[yellow]{clean(said)}[/]", soft_wrap=True),
        )
    finally:
        await transport.aclose()


def _lacking(spec: RewardSpec, graders: Mapping[str, Any]) -> list[str]:
    """What this machine lacks, a sentence each."""
    try:
        check_machine(spec, graders)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def _checked(spec: RewardSpec, name: str, model: ChatModel, *, as_json: bool) -> list[Finding]:
    table = spec.judges[name]
    if not isinstance(model, HttpChatModel):
        return []

    def build(variant: JudgeTable) -> ChatModel:
        return build_judge(name, variant, where=spec.where)

    if as_json:
        return run_blocking(check_judge(table, build))
    with errors().status(f"asking {clean(name)}"):
        return run_blocking(check_judge(table, build))


def _plain(model: ChatModel, findings: Sequence[Finding]) -> dict[str, Any]:
    return {**_facts(model), "findings": [msgspec.to_builtins(one) for one in findings]}


def _facts(model: ChatModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": model.kind, "model": model.model}
    if isinstance(model, HttpChatModel):
        key = model.api_key_env
        facts["base_urls"] = list(model.base_urls)
        facts["api_key_env"] = key
        facts["key_is_set"] = bool(os.environ.get(key, "").strip())
    return facts


def _print(
    console: Console, name: str, model: ChatModel, findings: Sequence[Finding], table: JudgeTable
) -> None:
    console.print(f"\n[bold]{clean(name)}[/]  {clean(_headline(model, table))}")
    if not findings:
        console.print("[dim]has no server: nothing was asked[/]")
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "honoured", "sent", "seen"):
        shown.add_column(heading, overflow="fold")
    for one in findings:
        sent = {True: "yes", False: "no", None: ""}[one.sent]
        shown.add_row(one.feature, _MARKS[one.honoured], sent, clean(one.note))
    console.print(shown)
    for advice in _advice(findings):
        console.print(f"[yellow]→[/] {clean(advice)}")


def _headline(model: ChatModel, table: JudgeTable) -> str:
    facts = _facts(model)
    if "base_urls" not in facts:
        return f"{table.type}: {model.model}"
    key = f"{facts['api_key_env']} {'is set' if facts['key_is_set'] else 'is not set'}"
    return f"{table.type}: {model.model} @ {', '.join(facts['base_urls'])} ({key})"


def _advice(findings: Sequence[Finding]) -> list[str]:
    """The ``features`` that would be true, where the setting is not."""
    checked = [one for one in findings if one.feature in ("schema", "choices", "logprobs")]
    if any(one.honoured == "unclear" for one in checked):
        return []
    wrong = [one for one in checked if one.sent is not None and one.sent != (one.honoured == "yes")]
    if not wrong:
        return []
    true = [one.feature for one in checked if one.honoured == "yes"]
    listed = ", ".join(f'"{name}"' for name in [*true, "stream_usage"])
    return [f"features = [{listed}] would say what this server does"]
