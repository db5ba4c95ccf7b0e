"""Judge swap without training: stored rollouts graded by several judges, each two compared.

A judge is a reward spec, which grades the rollouts as ``adjudge grade`` does, or a column of
rewards that the rollouts have. Two judges are compared as ``adjudge diff`` compares two runs. The
terminal shows the tables of the page, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from adjudge.datasets.files import find_files, hash_content
from adjudge.errors import ConfigError
from adjudge.files import atomic_write
from adjudge.judge_evaluation.diff.numbers import count_kinds, describe_run, summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns
from adjudge.judge_evaluation.diff.report import (
    PAGE_SAMPLES,
    describe_worst,
    render_diff_page,
    write_verdict,
)
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    format_integer,
    format_number,
    notes_section,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, estimate_cells, lost, numeric
from adjudge.rewards.spec import RewardSpec, is_trained_judge
from adjudge.runs.folder import RunFolder
from adjudge.runs.grading import grade_rollouts, read_first_samples
from adjudge.runs.job import GradingJob
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_run_calls
from adjudge.stats import group_spread, mean, std

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,80}")
_IDENTITY = {"rollouts": "other rollouts", "map": "another --map"}
_ESTIMATE_ROWS = 200


@dataclass
class SwapStudy:
    """What is to be compared.

    ``judges``: ``FILE`` or ``NAME=FILE``; ``stored``: judges with rewards in a column, by name.
    ``budget_usd``: what each judge may cost.
    """

    rollouts: Sequence[Path]
    judges: Sequence[str]
    folder: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    budget_usd: float | None = None
    show_progress: bool = True

    def read_specs(self) -> dict[str, RewardSpec]:
        """The specs by the names of their judges.

        All are read before a judge is asked, so that a mistake in the last one costs no call.
        Raises :class:`~adjudge.errors.ConfigError` for what is no judge, for a name that is used
        twice, and for fewer than two judges.
        """
        found: dict[str, RewardSpec] = {}
        for entry in self.judges:
            name, path = _split_name(entry)
            if name in found or name in self.stored:
                raise ConfigError(
                    f"--judge {entry!r}: another judge has the name {name!r}. Give one of them "
                    f"another name: NAME={path}"
                )
            if path.suffix.lower() != ".toml" and not is_trained_judge(path):
                raise ConfigError(
                    f"--judge {path}: must be a reward spec (.toml) or a trained judge's folder"
                )
            found[name] = RewardSpec.load(path)
        if len(found) + len(self.stored) < 2:
            names = ", ".join([*found, *self.stored])
            raise ConfigError(
                f"--judge: must be two judges or more, with --stored (found {names or 'none'})"
            )
        return found

    def grading_job(self, name: str, spec: RewardSpec) -> GradingJob:
        """The grading of the rollouts by one judge, into its own folder."""
        return GradingJob(
            paths=self.rollouts,
            spec=spec,
            folder=self.folder / "judges" / name,
            mapping=self.mapping,
            show_progress=self.show_progress,
            budget_usd=self.budget_usd,
        )


def _split_name(entry: str) -> tuple[str, Path]:
    name, equals, rest = entry.partition("=")
    if equals and not Path(entry).exists():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--judge {entry!r}: a judge's name must be letters, digits, '_', '.', '-'"
            )
        return name, Path(rest)
    path = Path(entry)
    stem = path.stem if path.suffix else path.name
    if stem in ("reward", "spec", "judge") and path.absolute().parent.name:
        stem = f"{path.absolute().parent.name}.{stem}"
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", stem)[:80] or "judge", path


def estimate_swap(study: SwapStudy) -> dict[str, JudgeCallEstimate]:
    """What each judge would be asked, by its name; asks nobody, and writes nothing.

    Raises as :func:`run_swap` does for what cannot be read.
    """
    found = {}
    for name, spec in study.read_specs().items():
        samples, groups, rows = read_first_samples(study.grading_job(name, spec), _ESTIMATE_ROWS)
        found[name] = estimate_run_calls(spec, samples, groups, rows)
    return found


def run_swap(study: SwapStudy) -> dict[str, Any]:
    """Do the study and give its summary.

    Writes to its folder ``judges/NAME`` (a run folder of ``adjudge grade`` for each judge that is
    asked, from which the same study resumes), ``pairs/A-B.html`` (the page of ``adjudge diff`` for
    each two judges), ``summary.json`` and ``report.html``. Raises
    :class:`~adjudge.errors.ConfigError` for fewer than two judges and what cannot be read,
    :class:`~adjudge.errors.RunFolderError` for a folder of another study, and as
    :func:`~adjudge.runs.grading.grade_rollouts` does.
    """
    specs = study.read_specs()
    facts = {
        "kind": "swap",
        "rollouts": [hash_content(path)["sha256"] for path in find_files(study.rollouts)],
        "map": dict(study.mapping),
    }
    with RunFolder(study.folder, facts, _IDENTITY) as folder:
        # A column without rewards is refused before a judge is asked.
        stored = {
            name: DiffRun(
                Path(f"column {column}"),
                {**study.mapping, "env_reward": column},
                dumps=study.rollouts,
            )
            for name, column in study.stored.items()
        }
        runs: dict[str, DiffRun] = {}
        for name, spec in specs.items():
            graded = grade_rollouts(study.grading_job(name, spec))
            runs[name] = DiffRun(study.folder / "judges" / name, study.mapping)
            runs[name].broken = list(graded.broken)
        runs |= stored
        pairs = [_compare(folder, runs, names) for names in combinations(runs, 2)]
        broken = {row.where: row.message for run in runs.values() for row in run.broken}
        summary: dict[str, Any] = {
            "adjudge": folder.facts["adjudge"],
            "created": folder.created,
            "rollouts": [str(path) for path in study.rollouts],
            "seed": 0,
            "judges": [
                {"name": name, "kind": "spec" if name in specs else "stored", **_describe(run)}
                for name, run in runs.items()
            ],
            "pairs": pairs,
            "broken_rows": {
                "count": len(broken),
                "first": [{"where": at, "message": why} for at, why in list(broken.items())[:20]],
            },
        }
        folder.write_json("summary.json", summary)
        folder.write("report.html", render_swap_page(summary).encode())
    return summary


def _compare(
    folder: RunFolder, runs: Mapping[str, DiffRun], names: tuple[str, str]
) -> dict[str, Any]:
    """Two judges as the summary has them, and the page of both."""
    paired = PairedRuns(*(runs[name] for name in names))
    found = {"judges": list(names), **summarise_diff(paired)}
    found["verdict"] = write_verdict(found)
    page = render_diff_page(
        {**found, "worst": describe_worst(paired, PAGE_SAMPLES), "conditions": []}
    )
    atomic_write(folder.path / "pairs" / f"{'-'.join(names)}.html", page.encode())
    return found


def _describe(run: DiffRun) -> dict[str, Any]:
    rewards = [row.reward for row in run.rows]
    present = [one for one in rewards if one is not None]
    spread = group_spread(rewards, [row.group_key for row in run.rows])
    return {
        **describe_run(run),
        "groups": spread.groups,
        "judged": len(present),
        "missing": count_kinds([row.kind for row in run.rows]),
        "mean": mean(present),
        "std": std(present),
        "compared_groups": len(spread.stds),
        "flat_groups": spread.zero,
    }


# --- the page -----------------------------------------------------------------------------------

_PAIR_NUMBERS: Mapping[str, tuple[str, str]] = {
    "best_changes": ("best changes", "share of groups of which no sample is best for both"),
    "sign_flips": ("sign flips", "share of samples of which the advantage changes its sign"),
    "within_kendall": ("τ-b within", "Kendall's, inside groups"),
    "kendall": ("τ-b", "Kendall's, over all samples"),
}
"""Each number of a pair: its heading, and what it is."""


def pair_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """What changes from one judge to another."""
    columns: list[object] = ["judges"]
    for heading, _ in _PAIR_NUMBERS.values():
        columns += [*numeric(heading), Column("95 %", "i")]
    rows = []
    for pair in pairs:
        page = f"pairs/{'-'.join(pair['judges'])}.html"
        cells: list[object] = [Element("a", " and ".join(pair["judges"]), href=page)]
        for name in _PAIR_NUMBERS:
            cells += estimate_cells(pair["advantages"][name])
        rows.append([*cells, format_integer(pair["advantages"]["common"])])
    about = "; ".join(": ".join(said) for said in _PAIR_NUMBERS.values())
    return Table([*columns, *numeric("common")], rows, caption=small(about), drop=("common",))


def judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    """What each judge says, and what it costs."""
    rows = []
    for one in judges:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in one["missing"].items())
        rows.append(
            [
                one["name"],
                format_integer(one["judged"]),
                lost(kinds) if kinds else "0",
                *map(format_number, (one["mean"], one["std"])),
                f"{one['flat_groups']:,} of {one['compared_groups']:,}",
                "–" if one["calls"] is None else format_integer(one["calls"]),
                format_number(one["cost_usd"], 4),
            ]
        )
    columns = ["judge", *numeric("judged"), Column("missing", "w"),
               *numeric("mean", "SD", "flat groups", "calls", "USD")]  # fmt: skip
    return Table(columns, rows, keep=("mean", "missing"))


def render_swap_page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    pairs, judges = summary["pairs"], summary["judges"]
    shares = [pair["advantages"]["best_changes"]["value"] for pair in pairs]
    most = max((share for share in shares if share is not None), default=None)
    missing = sum(sum(one["missing"].values()) for one in judges)
    return render_page(
        f"Judge swap: {len(judges)} judges on the same rollouts",
        [
            ("Rollouts", summary["rollouts"]),
            ("Intervals", f"95 %, by group (from 8 groups on), seed {summary['seed']}"),
            ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
        ],
        [
            Section("swap", "What changes when the judge is swapped", [pair_table(pairs)], "Swap"),
            Section("judges", "Judges", [judge_table(judges)], "Judges"),
            notes_section(__package__ or "", "swap_notes.html", link="How to read it"),
        ],
        tiles=[
            Tile("Samples", format_integer(judges[0]["samples"]), ""),
            Tile("Judges", format_integer(len(judges)), f"{len(pairs)} pairs"),
            Tile("Most changes", format_number(most), "of groups get another best sample"),
            Tile("No answer", format_integer(missing), "of samples × judges", missing > 0),
        ],
    )
