"""``adjudge mock``: a provider to try a set-up against."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adjudge.cli.consoles import print_json
from adjudge.mock import FAULTS, MockSettings, Server
from adjudge.mock.process import run

__all__ = ["mock"]

PORT = 8089

_FAULT_HELP = "NAME[=VALUE]:PROBABILITY, repeatable; --faults lists the names."
_LATENCY_HELP = (
    "Repeatable, they add up: fixed:S, lognormal:MEDIAN,SIGMA, pareto:MINIMUM,ALPHA, hang:PROB,S, "
    "load:S (for each other request in flight)."
)


def mock(
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="A public one needs --require-key.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="The model name in replies.")] = "mock",
    behaviour: Annotated[
        str | None, typer.Option(help="fixed, scripted, rubric, length or echo.")
    ] = None,
    reply: Annotated[str | None, typer.Option(help="fixed: the text, sent as it stands.")] = None,
    reasoning: Annotated[str, typer.Option(help="fixed: thinking, in its own field.")] = "",
    script: Annotated[
        str | None, typer.Option(help="scripted: JSONL of texts or {reply, when, reasoning}.")
    ] = None,
    keyword: Annotated[
        list[str] | None, typer.Option(help="rubric: counts in the score; repeatable.")
    ] = None,
    latency: Annotated[list[str] | None, typer.Option(help=_LATENCY_HELP)] = None,
    chunk_delay: Annotated[float, typer.Option(help="Seconds between a stream's events.")] = 0.0,
    fail: Annotated[list[str] | None, typer.Option(help=_FAULT_HELP)] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(help="START,END in seconds after the start: resets, or with ,503 answers."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes draws reproducible per request number.")
    ] = None,
    stream_only: Annotated[bool, typer.Option(help="400 unless the request streams.")] = False,
    rpm: Annotated[float | None, typer.Option(help="Requests per minute; 429 above.")] = None,
    require_key: Annotated[
        str | None, typer.Option(help="Environment variable with the key to ask for.")
    ] = None,
    faults: Annotated[bool, typer.Option("--faults", help="List the faults and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="First and last line as JSON.")] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Serve OpenAI's and Anthropic's chat endpoints, with latency and faults on purpose.

    /v1/chat/completions, /v1/messages, /v1/models, /health, and /stats with the counts. Every chat
    request gets {"score": 1, "reason": "mock"} unless told otherwise. Ctrl-C stops it.

    Example: adjudge mock --latency lognormal:0.2,1.288 --latency hang:0.005,60 --fail 429:0.05
    """
    if faults:
        _list_faults(as_json)
        return
    settings = MockSettings(
        host=host, port=port, model=model, behaviour=behaviour, reply=reply, reasoning=reasoning,
        script=script, keywords=tuple(keyword or ()), latency=tuple(latency or ()),
        chunk_delay=chunk_delay, fail=tuple(fail or ()), outage=tuple(outage or ()), seed=seed,
        stream_only=stream_only, rpm=rpm, require_key=require_key,
    )  # fmt: skip
    counts = run(settings, _announce_json if as_json else _announce, until_eof=until_eof)
    if as_json:
        typer.echo(msgspec.json.encode(counts))
    else:
        _show(counts)


def _announce_json(server: Server) -> None:
    facts = {
        "base_url": server.base_url,
        "url": server.url,
        "port": server.port,
        "seed": server.seed,
        "pid": os.getpid(),
    }
    typer.echo(msgspec.json.encode(facts))


def _announce(server: Server) -> None:
    settings = server.settings
    key = f" -H 'authorization: Bearer '${settings.require_key}" if settings.require_key else ""
    question = {"model": settings.model, "messages": [{"role": "user", "content": "hello"}]}
    body = msgspec.json.encode(question).decode()
    typer.echo(server.base_url)
    typer.echo(f"OpenAI clients: OPENAI_BASE_URL={server.base_url}")
    typer.echo(f"Anthropic clients: ANTHROPIC_BASE_URL={server.url}")
    typer.echo(f"try: curl{key} {server.base_url}/chat/completions -d {_quoted(body)}")
    typer.echo(f"counts: {server.url}/stats; seed {server.seed}; Ctrl-C stops")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _show(counts: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("requests", "replied", "cancelled"):
        table.add_row(name, f"{counts[name]}")
    for name in ("refused", "faults"):
        for kind, count in sorted(counts[name].items()):
            table.add_row(f"{name}: {kind}", f"{count}")
    table.add_row("connections", f"{counts['connections']['total']}")
    table.add_row("peak in flight", f"{counts['in_flight']['peak']}")
    table.add_row("seed", f"{counts['seed']}")
    Console(highlight=False).print(table)


def _list_faults(as_json: bool) -> None:
    if as_json:
        print_json(FAULTS)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", style="cyan", no_wrap=True)
    table.add_column("what the client sees")
    for name, what in FAULTS.items():
        table.add_row(name, escape(what))
    Console(highlight=False).print(table)
