"""The options that several commands have, declared once, and what is done with them.

An annotation such as ``quiet: Quiet = False`` in a command's signature is the whole option; those
of a command whose options are the fields of a table of settings come by :func:`settings_options`.
The mock needs no judges, so what imports them is imported where it is used.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from functools import partial, wraps
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.config import suggest_name
from adjudge.errors import ConfigError

if TYPE_CHECKING:
    from adjudge.runs.judge_calls import JudgeCallEstimate

judge_option = partial(typer.Option, rich_help_panel="Judge calls")
ray_option = partial(typer.Option, rich_help_panel="Ray")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
JsonSummary = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
JsonAddress = Annotated[bool, typer.Option("--json", help="Print the address as JSON.")]
UntilEof = Annotated[bool, typer.Option("--until-eof", hidden=True)]
"""For who starts a server: it ends with the standard input that it was given."""

RunFolderPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]
AtStep = Annotated[
    int | None,
    typer.Option("--step", min=0, metavar="N", help="The step whose weights count, of schedules."),
]

WaitForJudge = Annotated[
    float,
    judge_option(
        "--wait-for-judge",
        metavar="SECONDS",
        min=0.0,
        show_default=False,
        help="Wait so long for a server that is still starting.",
    ),
]
RayAddress = Annotated[
    str | None,
    ray_option(
        "--ray-address",
        metavar="auto|local|ADDRESS",
        help="The Ray cluster [default: $RAY_ADDRESS, else local].",
    ),
]
PolicyModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A run folder, RUN@STEP, a checkpoint, a GGUF file, a model of `adjudge models "
        "list`, http://HOST/v1#MODEL, or a name on the hub.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="VAR", help="The variable with the endpoint's key."),
]


def output_option(verb: str, what: str = "The run folder", more: str = "") -> Any:
    """``-o``: a folder, by default one that begins with ``verb``."""
    return typer.Option("-o", "--output", help=f"{what} [default: runs/{verb}-TIME].{more}")


against_option = partial(typer.Option, "--against", metavar="OTHER")


def data_option(text: str, name: str = "--data") -> Any:
    """A file (or several) that is evaluated on."""
    return typer.Option(name, metavar="FILE", help=text)


map_option = partial(typer.Option, "--map", "-m", metavar="FIELD=COLUMN")
"""``--map``; :func:`parse_map` reads it."""

ColumnMap = Annotated[
    list[str] | None,
    map_option(
        help="Read a field from a column, such as group=task_id or messages=a.b; rows=PATH says "
        "where the rows lie within each record, such as rows=results.results (. is the record "
        "itself). Can be repeated."
    ),
]


threshold_option = partial(typer.Option, "--threshold", "-t")
"""``--threshold``, several times: a name and its number; :func:`parse_numbers` reads it."""


def split_pairs(option: str, entries: Iterable[str] | None, form: str) -> list[tuple[str, str]]:
    """``NAME=VALUE`` entries; where ``form`` is ``[NAME=]VALUE``, a name may be empty.

    Raises :class:`ConfigError` that shows ``form``, also for a name that is given twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for entry in entries or ():
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals and form.startswith("["):
            name, value = "", name
        known = name or value
        if not value or (equals and not name) or not (name or form[0] == "[") or known in found:
            raise ConfigError(f"{option} {entry!r}: must be {form}, each name once")
        found[known] = name, value
    return list(found.values())


def parse_numbers(option: str, entries: Iterable[str] | None, form: str) -> dict[str, float]:
    """:func:`split_pairs` as a mapping, with finite numbers as values."""
    numbers = {}
    for name, value in split_pairs(option, entries, form):
        try:
            numbers[name] = float(Fraction(value))
        except (ValueError, ArithmeticError):
            raise ConfigError(f"{option} {value!r}: must be {form}, with a number") from None
    return numbers


RecordTape = Annotated[
    Path | None,
    judge_option(
        "--record", metavar="CASSETTE", help="Keep replies; send only calls that are not in it."
    ),
]
ReplayTape = Annotated[
    Path | None,
    judge_option(
        "--replay",
        metavar="CASSETTE",
        help="Answer all calls from a recorded file, without network.",
    ),
]
"""What :func:`~adjudge.runs.job.open_cassette` opens."""


budget_option = partial(judge_option, "--budget-usd", min=0.0)
Budget = Annotated[
    float | None, budget_option(help="The most that the judges may cost in this folder.")
]


_LINE = re.compile(
    r"""(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*
    (?: '([^']*)'[ \t]*(?:\#.*)?  |  "((?:[^"\\]|\\.)*)"[ \t]*(?:\#.*)?
      | ((?!['"])(?:[^\#]|(?<![ \t])\#)*?)(?:[ \t]+\#.*)? )""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r'\\([\\"nrt])')
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}


def load_env_file(path: Path | str) -> list[str]:
    r"""Set the variables of a file, except those that are set; gives the names of those it set.

    A line is ``NAME=value``; of two the later one counts, and ``export`` in front is allowed.
    ``'…'`` is taken as it stands; in ``"…"`` ``\\``, ``\"``, ``\n``, ``\r`` and ``\t`` are
    replaced; without quotes, a value ends before `` #`` or white space at its end. ``#`` begins a
    comment. Nothing else is replaced, and nothing is run. Raises :class:`ConfigError` that names
    file and line, never what stands there, before anything is set.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None  # its message has the bytes
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if stripped and not stripped.startswith("#"):
            read = _LINE.fullmatch(stripped)
            if read is None or "\0" in stripped:
                raise ConfigError(
                    f"{path}:{number}: the line is not NAME=value. Close a quote on the same line, "
                    "write nothing after it, and use no NUL character."
                )
            name, exact, quoted, plain = read.groups("")
            escaped = _ESCAPED.sub(lambda match: _PLAIN.get(match[1], match[1]), quoted)
            found[name] = exact or escaped or plain
    fresh = {name: value for name, value in found.items() if name not in os.environ}
    os.environ.update(fresh)
    return list(fresh)


def _load_environment(path: Path | None) -> Path | None:
    if path is not None:
        load_env_file(path)
    return path


EnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env-file",
        callback=_load_environment,
        help="A file of KEY=VALUE lines for the environment.",
    ),
]
"""Loads the file where the command line is read, before the command itself."""


def new_folder(verb: str) -> Path:
    """A run folder that does not exist yet: ``runs/VERB-TIME``, with a number if need be."""
    first = Path("runs") / f"{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], later) if not path.exists())


def parse_map(entries: Iterable[str] | None, fields: Collection[str]) -> dict[str, str]:
    """``FIELD=COLUMN`` entries as a mapping, and ``rows=PATH``; raises :class:`ConfigError`.

    A field that is nearly one of ``fields`` is let through with a note on standard error.
    """
    mapping = dict(split_pairs("--map", entries, "FIELD=COLUMN, such as messages=traj"))
    rows = mapping.get("rows", ".")
    if not all(step.strip() for step in rows.split(".")) and rows != ".":
        raise ConfigError(f"--map rows={rows}: must be a path, such as results.results, or .")
    for field in mapping:
        if field not in {*fields, "rows"} and (hint := suggest_name(field, fields)):
            errors().print(f"[yellow]--map {clean(field)}[/]: an extra field{clean(hint)}")
    return mapping


def check_replay(replay: Path | None, summary: Mapping[str, Any]) -> None:
    """End with exit code 1 where calls were not in the replayed file."""
    if replay is not None and (misses := summary["cassette"]["misses"]):
        errors().print(f"[red]replay:[/] {misses:,} calls are not in {clean(replay)}")
        raise typer.Exit(1)


def wait_for_judges(specs: Iterable[str | Path], seconds: float) -> None:
    """Wait until the judges of those reward specs can be reached, ``seconds`` in all; 0: do not.

    Raises :class:`~adjudge.errors.JudgeUnavailable`. What is no spec has no judge to wait for.
    """
    if not seconds:
        return
    from adjudge.engine.loop import run_blocking  # noqa: PLC0415
    from adjudge.rewards.spec import RewardSpec  # noqa: PLC0415

    def say(wait: str) -> None:
        errors().print(f"[yellow]{clean(wait)}[/]", soft_wrap=True)

    until = time.monotonic() + seconds
    for path in specs:
        if Path(path).suffix != ".toml":
            continue
        for model in RewardSpec.load(path).build_judges().values():
            left = max(0.0, until - time.monotonic())
            run_blocking(model.wait_until_reachable(left, say))


Command = Callable[..., None]


def settings_options(
    default: Any,
    texts: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command an option for each field in ``texts``, in place of its ``settings``.

    ``default`` has the values of options that are left out, and the other fields. ``texts``: what
    the help says of each, in its order. A field of several values is an option that can be
    repeated; ``names``: options that are not called as their fields are;
    ``groups``: the groups of the help that options are in.
    """
    types = get_type_hints(type(default))
    fields = inspect.signature(type(default)).parameters
    options: list[inspect.Parameter] = []
    for name, text in texts.items():
        word = "--" + (names or {}).get(name, name).replace("_", "-")
        option = typer.Option(word, help=text, rich_help_panel=(groups or {}).get(name))
        several = isinstance(getattr(default, name), tuple)
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if several else getattr(default, name),
            annotation=Annotated[list[str] | None if several else types[name], option],
        )
        options.append(parameter)

    def add(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in texts}
            for name, value in values.items():
                if isinstance(getattr(default, name), tuple):
                    values[name] = tuple(value or ())
            others = {name: getattr(default, name) for name in fields}
            command(settings=type(default)(**others | values), **given)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += options if one.name == "settings" else [one]
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in keywords}
        return run

    return add


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Estimate calls, tokens and cost, and stop.")
]


def print_call_estimates(
    found: Mapping[str, JudgeCallEstimate],
    *,
    as_json: bool,
    of: str = "judge",
    facts: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """A row for each judge, or what else ``of`` says, and their sum; ``facts`` are for ``--json``.

    Exit code 2 where a judge cannot be asked.
    """
    from adjudge.report.page import bold  # noqa: PLC0415
    from adjudge.report.table import Table, numeric  # noqa: PLC0415
    from adjudge.runs.judge_calls import JudgeCallEstimate  # noqa: PLC0415

    in_all = JudgeCallEstimate("outcome")
    for one in found.values():
        in_all.add_all(one)
    if as_json:
        print_json(
            {
                **facts,
                "graders" if of == "grader" else "judges": {
                    name: msgspec.to_builtins(one) for name, one in found.items()
                },
                "in_all": msgspec.to_builtins(in_all),
            }
        )
    else:
        rows: list[list[object]] = [[name, *_cells(one)] for name, one in found.items()]
        if len(rows) > 1:
            rows.append([bold("in all"), *_cells(in_all)])
        columns = [of, *numeric("calls", "tokens in", "tokens out", "USD")]
        console = output()
        console.print(Table(columns, rows, keep=("calls", "USD")))
        console.print(
            "[dim]Nobody was asked. Tokens out and cost are upper bounds by max_tokens, without "
            "retries, caches and what a run folder already has.[/]"
        )
    if in_all.why:
        for name, one in found.items():
            if one.why:
                errors().print(f"{clean(name)} cannot ask about these: {clean(one.why)}")
        raise typer.Exit(2)


def _cells(one: JudgeCallEstimate) -> list[str]:
    cost = "no price" if one.cost_usd is None else f"≤ {one.cost_usd:,.4g}"
    cost = cost if one.calls else "0"
    return [f"{one.calls:,}", f"{one.input_tokens:,}", f"≤ {one.output_tokens:,}", cost]
