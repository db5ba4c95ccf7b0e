"""``adjudge probe``: a report card of one judge."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder
from adjudge.cli.judges import WaitForJudge, wait_for_judges
from adjudge.cli.probe_tables import cost_line, print_card
from adjudge.config import load_toml, validate
from adjudge.errors import ConfigError, ErrorKind, JudgeAuthError, JudgeUnavailable
from adjudge.judges.cache import ReplyCache
from adjudge.rewards.spec import RewardSpec
from adjudge.studies.probes.catalogue import PROBES, probe_named
from adjudge.studies.probes.cost import expected
from adjudge.studies.probes.job import ProbeJob, prepare
from adjudge.studies.probes.run import run_probes

__all__ = ["parse_thresholds", "probe"]

_FILES = "probe.json  probe.xml  probe.md  report.html  answers.jsonl"


class LanguageName(StrEnum):
    """In which language the questions are asked."""

    MIXED = "mixed"
    EN = "en"
    ZH = "zh"


class _Thresholds(BaseModel):
    """A file of thresholds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thresholds: dict[str, float] = Field(min_length=1)


def probe(
    spec: Annotated[Path, typer.Argument(help="The reward spec, a TOML file.")],
    grader: Annotated[
        str | None,
        typer.Option("--grader", "-g", help="Which of its graders [default: the one with a judge]"),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option("--items", help="Questions of your own, JSONL [default: 40 that ship]"),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="A,B", help="These probes [default: all]")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=2, help="So many topics [default: all]")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Asks of what is asked repeatedly.")
    ] = 3,
    language: Annotated[
        LanguageName, typer.Option("--language", help="mixed: half of the topics in each.")
    ] = LanguageName.MIXED,
    family: Annotated[
        str, typer.Option("--family", help="The judge's own, as the items' answers name it.")
    ] = "",
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Give the items' references [default: to graders that ask for one]",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option("--threshold", "-t", metavar="PROBE=MOST", help="The largest effect allowed."),
    ] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option("--thresholds", help="A TOML file with a table [thresholds] of them."),
    ] = None,
    family_wise: Annotated[
        bool, typer.Option("--family-wise", help="Wider intervals, for all probes together.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Uncertain fails too (exit code 1).")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The run folder [default: runs/probe-TIME]."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="CASSETTE", help="Keep the judge's replies in this file."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="CASSETTE", help="Answer from this file, no network."),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option("--budget-usd", min=0.0, help="What the judge may cost; needs its price."),
    ] = None,
    wait_for_judge: WaitForJudge = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask nobody: estimate calls and cost, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the card as JSON instead of a table.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Probe one judge: what sways it that should not, and by how much.

    Each probe changes an answer in one way (longer, in Markdown, flattering, with a false source,
    shown first, …) that a good judge ignores, or must notice. The effect has a 95 % interval and a
    threshold: fail when all of the interval lies beyond it, pass when none of it does, else
    uncertain.

    Writes probe.json, probe.xml (JUnit), probe.md, report.html and every answer to the run folder.
    The same command with the same -o resumes, also with other probes or thresholds.

    Exit code: 0 no probe failed, 1 one did, 2 bad input, 3 the judge did not answer, 4 the budget
    left nothing to ask it.

    Example: adjudge probe reward.toml --only position,length --threshold length=0.1 -o runs/card
    """
    if record is not None and replay is not None:
        raise ConfigError("--record and --replay: one of the two")
    job = ProbeJob(
        spec=RewardSpec.load(spec),
        folder=folder or new_folder("probe"),
        grader=grader,
        items=items,
        only=[name.strip() for name in (only or "").split(",") if name.strip()],
        n=n,
        repeats=repeats,
        seed=seed,
        language=language.value,
        thresholds=_limits(thresholds, threshold or []),
        family=family,
        with_reference=reference,
        family_wise=family_wise,
        strict=strict,
        budget_usd=budget_usd,
        show_progress=not quiet,
    )
    if dry_run:
        _print_cost(job, as_json=as_json)
        return
    if not quiet and replay is None:
        errors().print(f"[dim]{cost_line(expected(job, prepare(job)))}[/]")
    if replay is None:
        wait_for_judges([spec], wait_for_judge)
    if record is not None:
        job.cassette = ReplyCache(record, "record", sampled=True)
    elif replay is not None:
        job.cassette = ReplyCache(replay, "strict")
    _run(job)
    _report(job, as_json=as_json)
    failing = ("fail", "uncertain") if strict else ("fail",)
    if replay is not None and job.card["cassette"]["misses"]:
        misses = job.card["cassette"]["misses"]
        errors().print(f"[red]replay:[/] {misses:,} calls are not in {clean(replay)}")
        raise typer.Exit(1)
    if any(one.verdict in failing for one in job.findings):
        raise typer.Exit(1)
    if job.card["missing"]["count"] == job.card["questions"]:
        errors().print("[red]the judge gave no answer that can be used[/]")
        raise typer.Exit(4 if set(job.card["missing"]["by_kind"]) == {ErrorKind.BUDGET} else 3)


def _print_cost(job: ProbeJob, *, as_json: bool) -> None:
    cost = expected(job, prepare(job))
    if as_json:
        print_json(cost)
    else:
        output().print(cost_line(cost))


def _run(job: ProbeJob) -> None:
    try:
        with redirect_stdout(sys.stderr):
            run_probes(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        raise


def _report(job: ProbeJob, *, as_json: bool) -> None:
    if as_json:
        print_json(job.card)
        return
    console = output()
    print_card(console, job.card, job.findings)
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {_FILES}")


def _limits(file: Path | None, given: list[str]) -> dict[str, float]:
    """Thresholds of a file, then those of the command line."""
    limits: dict[str, float] = {}
    if file is not None:
        limits.update(validate(_Thresholds, load_toml(file), str(file)).thresholds)
        for name in limits:
            if name not in PROBES:
                try:
                    probe_named(name)
                except ConfigError as error:
                    raise ConfigError(f"{file}: thresholds: {error}") from None
    return limits | parse_thresholds(given)


def parse_thresholds(entries: list[str]) -> dict[str, float]:
    """``PROBE=MOST`` entries as a mapping; raises :class:`ConfigError`."""
    limits: dict[str, float] = {}
    for entry in entries:
        name, equals, value = (part.strip() for part in entry.partition("="))
        try:
            limit = float(value) if equals else -1.0
        except ValueError:
            limit = -1.0
        if not 0 <= limit < float("inf"):
            raise ConfigError(f"--threshold {entry!r}: must be PROBE=MOST, such as position=0.1")
        limits[probe_named(name).name] = limit
    return limits
