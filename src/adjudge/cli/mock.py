"""``adjudge mock``: a simulated provider for tests."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adjudge.cli.console import print_json
from adjudge.mock import FAULTS, MockSettings, Server
from adjudge.mock.server import run_mock

_PORT = 8089

_FAULT_HELP = "Inject a fault: NAME[=VALUE]:PROBABILITY. Can be repeated; --faults lists the names."
_LATENCY_HELP = (
    "Add latency: fixed:S, lognormal:MEDIAN,SIGMA, pareto:MINIMUM,ALPHA, hang:PROB,S, or load:S "
    "(for "
    "each other request in flight). Can be repeated; latencies add up."
)


def mock(
    port: Annotated[int, typer.Option(help="The port; 0 picks a free one.")] = _PORT,
    host: Annotated[
        str, typer.Option(help="The address to listen on; a public one needs --require-key.")
    ] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="The model's name in replies.")] = "mock",
    behaviour: Annotated[
        str | None,
        typer.Option(
            help="How replies are made: fixed, scripted, rubric, criteria, length or echo "
            "[default: as "
            "the other options imply, else fixed]."
        ),
    ] = None,
    reply: Annotated[
        str | None, typer.Option(help="With behaviour fixed: the reply's text, sent unchanged.")
    ] = None,
    reasoning: Annotated[
        str, typer.Option(help="With behaviour fixed: reasoning text, sent in its own field.")
    ] = "",
    script: Annotated[
        str | None,
        typer.Option(
            help="With behaviour scripted: a JSONL file of texts or {reply, when, reasoning}."
        ),
    ] = None,
    keyword: Annotated[
        list[str] | None,
        typer.Option(
            help="With behaviour rubric: a word that counts in the score. Can be repeated."
        ),
    ] = None,
    latency: Annotated[list[str] | None, typer.Option(help=_LATENCY_HELP)] = None,
    chunk_delay: Annotated[
        float, typer.Option(help="Seconds between two events of a stream.")
    ] = 0.0,
    fail: Annotated[list[str] | None, typer.Option(help=_FAULT_HELP)] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="Reset connections from START to END seconds after the start (START,END), or "
            "answer "
            "503 (START,END,503). Can be repeated."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Make faults and latencies reproducible for each request number [default: "
            "random; it is printed]."
        ),
    ] = None,
    stream_only: Annotated[
        bool, typer.Option(help="Refuse requests that do not stream, with status 400.")
    ] = False,
    rpm: Annotated[
        float | None, typer.Option(help="Allow so many requests per minute; more get status 429.")
    ] = None,
    require_key: Annotated[
        str | None,
        typer.Option(help="The environment variable with the key that requests must send."),
    ] = None,
    faults: Annotated[bool, typer.Option("--faults", help="List the faults and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address and the counts as JSON.")
    ] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Serve OpenAI's and Anthropic's chat endpoints, with simulated latency and faults.

    Serves /v1/chat/completions, /v1/messages, /v1/models, /health, and /stats with the counts. By
    default every chat request gets the reply {"score": 1, "reason": "mock"}. Ctrl-C stops it.

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
    counts = run_mock(settings, _announce_json if as_json else _announce, until_eof=until_eof)
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
