"""``adjudge doctor``: what is installed, what a spec's judges honour, what reward code hides."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

import adjudge
from adjudge.cli.consoles import output, print_json
from adjudge.cli.doctor_code import check_reward_code
from adjudge.cli.judges import check_spec
from adjudge.engine.sandbox import sandbox_available

__all__ = ["doctor"]


class _Need(NamedTuple):
    feature: str
    module: str
    distribution: str
    remedy: str


_NEEDS = (
    _Need("fast event loop", "uvloop", "uvloop", "pip install uvloop"),
    _Need("answer: mathematics", "math_verify", "math-verify", "pip install 'adjudge[rules]'"),
    _Need("similarity: BLEU, chrF", "sacrebleu", "sacrebleu", "pip install 'adjudge[rules]'"),
    _Need("language", "py3langid", "py3langid", "pip install 'adjudge[rules]'"),
    _Need("ifeval: languages", "langdetect", "langdetect", "pip install 'adjudge[rules]'"),
    _Need("json_schema", "jsonschema", "jsonschema", "pip install 'adjudge[rules]'"),
    _Need("Parquet files", "pyarrow", "pyarrow", "pip install 'adjudge[parquet]'"),
)


def doctor(
    spec: Annotated[
        Path | None,
        typer.Argument(help="A reward spec: asks each of its judges. A .py file: reads the code."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine has; what a spec's judges honour; where reward code hides failures.

    Without a spec nothing is sent anywhere; the sandbox is tried out by running one trivial
    program. With a spec its graders are built, and each judge that has a server is asked a handful
    of short questions: does it reply, count tokens, keep to a JSON schema and a choice list, give
    log-probabilities, stream, repeat itself with a seed? Some servers drop such fields silently.
    The exit code is 3 when a judge does not reply, and 2 when this machine lacks what a grader
    needs (a sandbox, a key, a GPU).

    A .py file is read, never run: lines that turn a judge's failure into a number are shown with
    what a trainer makes of them and two lines instead. The exit code is 1 when there are some.

    Example: adjudge doctor reward.toml
    """
    if spec is not None and spec.suffix == ".py":
        check_reward_code(spec, as_json=as_json)
        return
    if spec is not None:
        check_spec(spec, as_json=as_json)
        return
    found = [_library(need) for need in _NEEDS]
    found.append(_sandbox())
    facts = {
        "adjudge": adjudge.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
    }
    if as_json:
        print_json({**facts, "features": found})
        return
    console = output()
    console.print(f"adjudge {facts['adjudge']} on Python {facts['python']}, {facts['platform']}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("feature", "has", "remedy"):
        table.add_column(heading)
    for one in found:
        state = f"[green]✓[/] {one['found']}" if one["ok"] else "[yellow]missing[/]"
        table.add_row(one["feature"], state, "" if one["ok"] else one["remedy"])
    console.print(table)


def _library(need: _Need) -> dict[str, Any]:
    ok = importlib.util.find_spec(need.module) is not None
    version = importlib.metadata.version(need.distribution) if ok else ""
    return {
        "feature": need.feature,
        "ok": ok,
        "found": f"{need.distribution} {version}".strip(),
        "remedy": need.remedy,
    }


def _sandbox() -> dict[str, Any]:
    reason = sandbox_available()
    return {
        "feature": "code_execution, verif (sandbox)",
        "ok": reason is None,
        "found": shutil.which("bwrap") or "",
        "remedy": reason or "",
    }
