"""Judges for tests and first tries: ``adjudge mock``, ``adjudge models fetch`` and ``list``."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import msgspec
import typer

from adjudge.cli.console import errors, output, print_json
from adjudge.cli.options import JsonAddress, UntilEof, settings_options
from adjudge.judges.models.model_files import MODEL_FILES, fetch_model, fetched_path
from adjudge.mock import FAULTS, MockSettings, Server
from adjudge.mock.behaviours import OPTION_NAMES
from adjudge.mock.server import run_mock
from adjudge.report.table import Column, Table, styled

_TEXTS = {
    "port": "The port; 0 picks a free one.",
    "behaviour": "fixed, scripted, rubric (counts keywords), criteria (marks a rubric's criteria "
    "by the words that they quote), length (favours long candidates) or echo [default: as the "
    "other options imply].",
    "reply": "fixed: the reply's text, sent unchanged.",
    "script": "scripted: a JSONL file of texts or {reply, when, reasoning}.",
    "keywords": "rubric: a word that counts in the score. Can be repeated.",
    "latency": "fixed:S or lognormal:MEDIAN,SIGMA. Can be repeated; they add up.",
    "fail": "A fault: NAME[=VALUE]:PROBABILITY. Can be repeated; --faults lists the names.",
    "seed": "Each request number gets the same fault and latency again [default: random; it is "
    "printed].",
    "require_key": "The variable with the key that requests must send.",
}

_GROUPS = {
    **dict.fromkeys(("behaviour", "reply", "script", "keywords"), "Replies"),
    **dict.fromkeys(("latency", "fail", "seed"), "Latency and faults"),
}


@settings_options(MockSettings(port=8089), _TEXTS, OPTION_NAMES, _GROUPS)
def mock(
    settings: MockSettings,
    faults: Annotated[bool, typer.Option("--faults", help="List the faults and exit.")] = False,
    as_json: JsonAddress = False,
    until_eof: UntilEof = False,
) -> None:
    """Simulate a judge's server, with latency and faults.

    Example: adjudge mock --latency lognormal:0.2,1.288 --fail 429:0.05

    Serves /v1/chat/completions, /v1/messages, /v1/models, /classify (a scalar judge: its output
    grows with the length), /health, and /stats with the counts. The first line that it prints is
    the base URL: give it to a judge in a spec (base_url), or to a client (OPENAI_BASE_URL). By
    default every chat request gets the reply {"score": 1, "reason": "mock"}. A reply that the mock
    makes follows the JSON Schema or choices of the request, or the form that adjudge's prompt
    states, so it plays every shipped grader. It needs no key and no network. Ctrl-C stops it and
    prints the counts. In Python: adjudge.mock.serve (on a running loop) and start_mock (a process).
    """
    if faults:
        _list_faults(as_json)
        return
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
    question = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
    body = msgspec.json.encode(question).decode()
    typer.echo(server.base_url)
    typer.echo(f"OpenAI clients: OPENAI_BASE_URL={server.base_url}")
    typer.echo(f"Anthropic clients: ANTHROPIC_BASE_URL={server.url}")
    typer.echo(f"try: curl{key} {server.base_url}/chat/completions -d {shlex.quote(body)}")
    typer.echo(f"counts: {server.url}/stats; seed {server.seed}; Ctrl-C stops")


def _show(counts: dict[str, Any]) -> None:
    rows = [(name, counts[name]) for name in ("requests", "replied", "cancelled")]
    for name in ("refused", "faults"):
        rows += [(f"{name}: {kind}", count) for kind, count in sorted(counts[name].items())]
    rows.append(("connections", counts["connections"]["total"]))
    rows.append(("peak in flight", counts["in_flight"]["peak"]))
    rows.append(("seed", counts["seed"]))
    output().print(Table(["", ""], rows))


def _list_faults(as_json: bool) -> None:
    if as_json:
        print_json(FAULTS)
        return
    rows = [(styled(name, "name"), what) for name, what in FAULTS.items()]
    output().print(Table([Column("fault", wrap=False), "what the client sees"], rows))


def fetch(name: Annotated[str, typer.Argument(help="The model's name: smollm2.")]) -> None:
    """Fetch a small open model that judges without a server or a key.

    Example: adjudge models fetch smollm2
    """
    typer.echo(fetch_model(name, on_step=errors().print))


def list_models() -> None:
    """List the models that `adjudge models fetch` knows, and where they are.

    Example: adjudge models list
    """
    rows = [
        (
            styled(name, "name"),
            model.about,
            model.licence,
            str(path) if path.is_file() else f"not fetched: adjudge models fetch {name}",
        )
        for name, model in MODEL_FILES.items()
        for path in [fetched_path(model)]
    ]
    output().print(Table([Column("model", wrap=False), "", "licence", "file"], rows))
