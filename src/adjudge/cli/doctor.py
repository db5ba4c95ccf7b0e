"""``adjudge doctor``: checks of this machine and of a spec's judges.

``adjudge doctor`` says what is installed; ``adjudge doctor SPEC`` asks one judge after the other
what its server supports.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.graders.code.sandbox import sandbox_available
from adjudge.installation import install_command
from adjudge.judges.base import ChatModel
from adjudge.judges.discovery import FeatureCheck, check_judge_features
from adjudge.judges.models.http import HttpChatModel
from adjudge.judges.table import JudgeTable
from adjudge.report.page import small
from adjudge.report.table import Table, lost, styled
from adjudge.rewards.grader_fit import check_graders
from adjudge.rewards.spec import RewardSpec
from adjudge.version import __version__

_MARKS = {
    "yes": styled("✓", "good"),
    "no": lost("no"),
    "unclear": lost("unclear"),
    "failed": styled("failed", "bad"),
    "not offered": small("not offered"),
}


def check_spec(path: Path, *, as_json: bool) -> None:
    """Build the spec's graders, ask its judges, and print what was found."""
    spec = RewardSpec.load(path)
    judges = spec.build_judges()
    graders = spec.build_graders(judges)
    check_graders(spec, graders)
    lacking: list[str] = []
    try:
        spec.check_machine(graders)
    except ConfigError as error:
        lacking = str(error).splitlines()
    found = {name: _check_one_judge(name, judges[name], as_json=as_json) for name in judges}
    if as_json:
        report = {
            "spec": str(path),
            "graders": [entry.name for entry in spec.graders],
            "lacking": lacking,
            "judges": {
                name: {**_judge_facts(judges[name]), "findings": msgspec.to_builtins(findings)}
                for name, findings in found.items()
            },
        }
        print_json(report)
    else:
        console = output()
        names = ", ".join(entry.name for entry in spec.graders)
        console.print(f"{clean(path)}: all graders can be built: {names}")
        for problem in lacking:
            console.print(f"[red]missing on this machine:[/] {clean(problem)}", soft_wrap=True)
        if not judges:
            console.print("The spec has no judges; no request was sent.")
        for name, findings in found.items():
            about = _headline(judges[name], spec.judges[name])
            console.print(f"\n[bold]{clean(name)}[/]  {clean(about)}")
            _print_findings(console, findings)
    if lacking:
        raise typer.Exit(2)
    if any(finding.feature == "reply" and finding.honoured != "yes"
           for findings in found.values() for finding in findings):  # fmt: skip
        raise typer.Exit(3)


def _check_one_judge(name: str, model: ChatModel, *, as_json: bool) -> list[FeatureCheck]:
    if not isinstance(model, HttpChatModel):
        return []
    with nullcontext() if as_json else errors().status(f"asking {clean(name)}"):
        return run_blocking(check_judge_features(model))


def _judge_facts(model: ChatModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": model.kind, "model": model.model}
    if isinstance(model, HttpChatModel) and model.kind != "embedded":
        key = model.api_key_env
        facts["base_urls"] = list(model.base_urls)
        facts["api_key_env"] = key
        facts["key_is_set"] = bool(os.environ.get(key, "").strip())
    return facts


def _print_findings(console: Console, findings: Sequence[FeatureCheck]) -> None:
    if not findings:
        console.print("[dim]This judge has no server; no request was sent.[/]")
        return
    sent = {True: "yes", False: "no", None: ""}
    rows = [[one.feature, _MARKS[one.honoured], sent[one.sent], one.note] for one in findings]
    console.print(Table(["feature", "supported", "sent", "observed"], rows, drop=("sent",)))
    for advice in _advice(findings):
        console.print(f"[yellow]→[/] {clean(advice)}")


def _headline(model: ChatModel, table: JudgeTable) -> str:
    facts = _judge_facts(model)
    if "base_urls" not in facts:
        return f"{table.type}: {model.model}"
    key = f"{facts['api_key_env']} {'is set' if facts['key_is_set'] else 'is not set'}"
    return f"{table.type}: {model.model} @ {', '.join(facts['base_urls'])} ({key})"


def _advice(findings: Sequence[FeatureCheck]) -> list[str]:
    """The ``features`` that would be true, where the setting is not."""
    checked = [one for one in findings if one.feature in ("schema", "choices", "logprobs")]
    wrong = [one for one in checked if one.sent is not None and one.sent != (one.honoured == "yes")]
    if not wrong or any(one.honoured == "unclear" for one in checked):
        return []
    true = [one.feature for one in checked if one.honoured == "yes"]
    listed = ", ".join(f'"{name}"' for name in [*true, "stream_usage"])
    return [f"Set features = [{listed}], which is what this server supports."]


_OPTIONAL_LIBRARIES = (
    ("fast event loop", "uvloop", ""),
    ("answer: mathematics", "math-verify", "full"),
    ("similarity: BLEU, chrF", "sacrebleu", "full"),
    ("language", "py3langid", "language"),
    ("ifeval: languages", "langdetect", "full"),
    ("json_schema", "jsonschema", "full"),
    ("intervals of audit, probe, eval, study", "scipy", "full"),
    ("Parquet files", "pyarrow", "full"),
    ("embedded judge", "xllamacpp", "embedded"),
)
"""What needs a library, the library, and the extra that brings it."""


def doctor(
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="A reward spec, whose judges are asked. Without it, the installed libraries are "
            "listed."
        ),
    ] = None,
    as_json: JsonSummary = False,
) -> None:
    """Check this machine, or the judges of a spec.

    Example: adjudge doctor reward.toml

    Without an argument the optional libraries are listed and the sandbox runs one small program;
    nothing is sent over the network. With a reward spec its graders are built, and each judge that
    has a server gets a few short requests: does it reply, count tokens, follow a JSON schema and a
    choice list, return log-probabilities, stream, and repeat a reply with the same seed?

    Exit code: 2 when this machine lacks what a grader needs (a sandbox, a key, a GPU);
    3 when a judge does not reply.
    """
    if spec is not None:
        check_spec(spec, as_json=as_json)
        return
    found = [_library_state(*need) for need in _OPTIONAL_LIBRARIES]
    found.append(_sandbox_state())
    facts = {
        "adjudge": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
    }
    if as_json:
        print_json({**facts, "features": found})
        return
    console = output()
    console.print(f"adjudge {facts['adjudge']} on Python {facts['python']}, {facts['platform']}")
    rows = [
        [one["feature"], [styled("✓ ", "good"), one["found"]], ""]
        if one["ok"]
        else [one["feature"], lost("missing"), one["remedy"]]
        for one in found
    ]
    console.print(Table(["feature", "has", "remedy"], rows, keep=("has", "remedy")))


def _library_state(feature: str, library: str, extra: str) -> dict[str, Any]:
    ok = importlib.util.find_spec(library.replace("-", "_")) is not None
    return {
        "feature": feature,
        "ok": ok,
        "found": f"{library} {importlib.metadata.version(library)}" if ok else "",
        "remedy": install_command(extra) if extra else f"pip install {library}",
    }


def _sandbox_state() -> dict[str, Any]:
    reason = sandbox_available()
    return {
        "feature": "code_execution, verif (sandbox)",
        "ok": reason is None,
        "found": shutil.which("bwrap") or "",
        "remedy": reason or "",
    }
