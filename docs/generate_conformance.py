"""Write ``docs/conformance/results.json``, and the tables of trainers that are made of it.

    python docs/generate_conformance.py [--sources DIR] [--only NAME] [--table]

The tables are in ``docs/trainers.md`` (a row an adapter: what its trainer does by itself, and what
it does with adjudge) and in ``results/conformance.md`` (a row a trainer that was driven).

Each trainer of ``docs/conformance/trainers.toml`` is fetched (its release by pip, its commit from
GitHub, both without dependencies) and driven by ``adjudge conformance`` in a process of its own,
which needs torch. A folder of its name in ``--sources`` is used as it is. Where a source cannot be
had, the trainer keeps the results that it has, and the command says so and goes on. It names the
rows that are older than a month. ``--table`` writes the tables from the results that are there.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.trainers import TRAINERS as ADAPTERS, Trainer
from adjudge_lab.conformance.checks import (
    TRAINER_CHECKS,
    CheckEnd,
    Conformance,
    rank_way,
)

ROOT = Path(__file__).parents[1]
TRAINERS = ROOT / "docs" / "conformance" / "trainers.toml"
RESULTS = ROOT / "docs" / "conformance" / "results.json"
PAGE = ROOT / "docs" / "trainers.md"
EVIDENCE = ROOT / "results" / "conformance.md"

_MONTH = datetime.timedelta(days=31)
_LONGEST_S = 600
_ARCHIVE = "https://github.com/{name}/archive/{commit}.tar.gz"
_COLUMNS: tuple[str, ...] = (
    "trainer",
    "version, run on",
    "how you mark it missing",
    "verdict",
    "with two functions",
)
_COLUMNS += ("what fails", "decided at", "other ways")
_SEEN = ("trainer", "prompt and conversation", "`reference`", "other fields", "group")
_ADAPTER_COLUMNS = ("trainer", "tested", "you add", "alone", "with adjudge", "refused")


def fetch_trainer(trainer: Mapping[str, Any], folder: Path) -> None:
    """The trainer's files, in ``folder``.

    Raises ``OSError``, ``tarfile.TarError`` or ``subprocess.SubprocessError`` where they cannot be
    had.
    """
    if requirements := trainer.get("requirements"):
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--ignore-requires-python",
        ]
        options += ["--target", str(folder)]
        command = [sys.executable, "-m", "pip", "install", *options, *requirements]
        subprocess.run(  # noqa: S603  (names of our own file)
            command, check=True, capture_output=True, text=True, timeout=_LONGEST_S
        )
    for repository in trainer.get("repositories", []):
        url = _ARCHIVE.format(**repository)
        with urllib.request.urlopen(url, timeout=60) as reply:  # noqa: S310  (an https address)
            packed = io.BytesIO(reply.read())
        place = folder / repository.get("folder", "")
        with tarfile.open(fileobj=packed) as archive:
            for member in archive.getmembers():
                _, _, member.name = member.name.partition("/")  # the folder of the commit
                if member.name:
                    archive.extract(member, place, filter="data")


def run_suite(trainer: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What ``adjudge conformance`` finds, by way.

    Raises ``RuntimeError`` with the command's message where it says nothing about the trainer.
    """
    source = folder / trainer.get("package", "")
    command = [sys.executable, "-m", "adjudge_lab", "conformance", trainer["driver"], "--json"]
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "lab/src"))
    done = subprocess.run(  # noqa: S603
        [*command, "--source", str(source)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
    found = json.loads(done.stdout)
    report = msgspec.convert(
        {name: found[name] for name in Conformance.__struct_fields__}, Conformance
    )
    settings = list(dict.fromkeys(one.setting for one in report.findings))
    ways: dict[str, Any] = {}
    bad = (CheckEnd.FAILS, CheckEnd.DROPS)
    for way in report.ways:
        findings = [one for one in report.findings if one.way == way]
        fails: dict[str, list[str]] = {}
        for one in findings:
            if one.outcome in bad:
                fails.setdefault(one.check, []).append(one.setting)
        judged = {one.check for one in findings if one.outcome is not CheckEnd.UNKNOWN}
        ways[way] = {
            "documented": way not in report.undocumented,
            "functions": 2 if way in report.beside_another else 1,
            "verdict": report.judge_way(way),
            "settings": {setting: report.judge_way(way, setting) for setting in settings},
            "fails": fails,
            "not judged": [check for check in TRAINER_CHECKS if check not in judged],
        }
    return {
        "title": trainer["title"],
        "version": _describe_version(trainer),
        "driver": trainer["driver"],
        "run": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "decided at": report.decided_at,
        "ways": ways,
    }


def format_results(results: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line a way, so that a change of one is a change of one line."""
    trainers = []
    for name, one in results.items():
        head = json.dumps({key: value for key, value in one.items() if key != "ways"})
        ways = [f"  {json.dumps(way)}: {json.dumps(found)}" for way, found in one["ways"].items()]
        trainers.append(f' {json.dumps(name)}: {head[:-1]}, "ways": {{\n' + ",\n".join(ways))
    return "{\n" + "\n }},\n".join(trainers) + "\n }}\n}\n"


def format_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The Markdown table: a row a trainer, with its best way and what the others come to."""
    rows = []
    for one in results.values():
        beside = {way: found for way, found in one["ways"].items() if found["functions"] > 1}
        alone = [way for way in one["ways"].items() if way[0] not in beside]
        (way, found), *others = sorted(alone, key=_rank_way)
        note = "" if found["documented"] else " (not documented)"
        cells = (
            *(one["title"], f"{one['version']}, {one['run']}", f"`{way}`{note}"),
            *(_show_verdict(found), _show_ways(beside.items())),
            *(_show_failures(found), f"`{one['decided at']}`", _show_ways(others)),
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    return _format_head(_COLUMNS) + "".join(rows)


def format_adapters(adapters: Iterable[Trainer], results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of ``docs/trainers.md``: a row an adapter, in the order of ``adapters``."""
    rows = []
    for one in adapters:
        driven = [results[name] for name in one.measured]
        several = len({result["title"] for result in driven}) > 1
        names = [result["title" if several else "version"] for result in driven]
        versions = [result["version"] for result in driven][: None if several else 1]
        verdicts = [_show_default(result) for result in driven]
        if len(driven) > 1:
            verdicts = [
                f"{name.partition(' ')[0]}: {verdict}"
                for name, verdict in zip(names, verdicts, strict=True)
            ]
        cells = (
            *(one.title, one.tested or "; ".join(versions), one.add),
            *("; ".join(verdicts) or "–", one.missing, one.refused),
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    return _format_head(_ADAPTER_COLUMNS) + "".join(rows)


def make_tables(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[Path, str, str]]:
    """Each generated table: its page, its name there, and its text."""
    return [
        (PAGE, "results", format_adapters(ADAPTERS, results)),
        (PAGE, "samples", format_seen(ADAPTERS)),
        (EVIDENCE, "results", format_table(results)),
    ]


def format_seen(adapters: Iterable[Trainer]) -> str:
    """The second table of ``docs/trainers.md``: what graders see, a row for trainers that agree."""
    names: dict[tuple[str, ...], list[str]] = {}
    for one in adapters:
        if one.sees:
            names.setdefault(one.sees, []).extend(one.install)
    rows = [f"| {', '.join(who)} | {sees} |\n" for sees, who in names.items()]
    return _format_head(_SEEN) + "".join(rows)


def _format_head(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"


def _show_default(result: Mapping[str, Any]) -> str:
    """The verdicts of a trainer's best way with one function, its default setting's first."""
    alone = [way for way in result["ways"].items() if way[1]["functions"] == 1]
    _, found = min(alone, key=_rank_way)
    return " or ".join(dict.fromkeys(map(_mark, found["settings"].values())))


def insert_table(page: str, table: str, name: str = "results") -> str:
    """The page with the table in the place of the one that it has by that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}{end}{after}"


def _describe_version(trainer: Mapping[str, Any]) -> str:
    parts = [one.split("==") for one in trainer.get("requirements", [])]
    named = {"trl": "TRL"}  # beside a trainer that builds on it
    texts = [
        version if at == 0 else f"{named[name]} {version}"
        for at, (name, version) in enumerate(parts)
        if at == 0 or name in named
    ]
    for number, one in enumerate(trainer.get("repositories", [])):
        commit = f"{one['commit'][:7]} ({one['date']})"
        texts.append(commit if number == 0 else f"{one['name'].split('/')[1]} {one['commit'][:7]}")
    return ", ".join(texts)


def find_old_rows(results: Mapping[str, Mapping[str, Any]], today: datetime.date) -> list[str]:
    """A sentence for each trainer that was last run more than a month ago."""
    days = {name: datetime.date.fromisoformat(one["run"]) for name, one in results.items()}
    return [
        f"{name}: run on {day}, which is more than a month ago"
        for name, day in days.items()
        if today - day > _MONTH
    ]


def _rank_way(way: tuple[str, Mapping[str, Any]]) -> tuple[int, bool, int]:
    return rank_way(way[1]["verdict"], way[1]["documented"])


def _show_ways(ways: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Other ways by their verdict."""
    by_verdict: dict[str, list[str]] = {}
    for name, found in ways:
        by_verdict.setdefault(_mark(found["verdict"]), []).append(name)
    return "; ".join(f"{verdict}: {_quote(names)}" for verdict, names in by_verdict.items()) or "–"


def _show_verdict(found: Mapping[str, Any]) -> str:
    """The verdict, or those of the settings where they differ, the trainer's default first."""
    by_verdict: dict[str, list[str]] = {}
    for setting, verdict in found["settings"].items():
        by_verdict.setdefault(_mark(verdict), []).append(setting)
    if len(by_verdict) == 1:
        return next(iter(by_verdict))
    return "; ".join(f"{verdict} ({_quote(those)})" for verdict, those in by_verdict.items())


def _show_failures(found: Mapping[str, Any]) -> str:
    """Checks that fail, with their settings where not all do, and what cannot be judged at all."""
    checks: dict[tuple[str, ...], list[str]] = {}
    for check, settings in found["fails"].items():
        everywhere = len(settings) == len(found["settings"])
        checks.setdefault(() if everywhere else tuple(settings), []).append(check)
    texts = [
        ", ".join(those) + (f" ({_quote(settings)})" if settings else "")
        for settings, those in sorted(checks.items())
    ]
    if found["not judged"] and found["verdict"] != "stops":
        texts.append(f"not judged: {', '.join(found['not judged'])}")
    return "; ".join(texts) or "–"


def _mark(verdict: str) -> str:
    return f"**{verdict}**" if verdict == "wrong" else verdict


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Drive the trainers that can be had, and write the results and both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, help="a folder with trainers, by their names")
    parser.add_argument("--only", action="append", help="the name of a trainer; may be repeated")
    parser.add_argument("--table", action="store_true", help="write the tables only")
    options = parser.parse_args()
    declared = tomllib.loads(TRAINERS.read_text(encoding="utf-8"))
    trainers = declared["trainer"]
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    results: dict[str, Any] = {}
    for trainer in trainers:
        name = trainer["name"]
        if name in kept:
            results[name] = kept[name]
        if options.table or (options.only and name not in options.only):
            continue
        try:
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                if options.sources is not None and (options.sources / name).is_dir():
                    folder = options.sources / name
                else:
                    fetch_trainer(trainer, folder)
                results[name] = run_suite(trainer, folder)
        except (OSError, tarfile.TarError, subprocess.SubprocessError, RuntimeError) as error:
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            sys.stdout.write(f"{name}: not run, its row stays as it was ({told[-1]:.200})\n")
            continue
        ways = results[name]["ways"]
        told = ", ".join(f"{way}: {one['verdict']}" for way, one in ways.items())
        sys.stdout.write(f"{name}: {told}\n")
    for sentence in find_old_rows(results, datetime.datetime.now(datetime.UTC).date()):
        sys.stdout.write(f"{sentence}\n")
    RESULTS.write_text(format_results(results), encoding="utf-8")
    for page, name, table in make_tables(results):
        text = page.read_text(encoding="utf-8")
        page.write_text(insert_table(text, table, name), encoding="utf-8")


if __name__ == "__main__":
    main()
