"""``adjudge view``: a run on a live page."""

from __future__ import annotations

import getpass
import os
import sys
import threading
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from adjudge.cli.console import clean, errors
from adjudge.errors import redact_addresses
from adjudge.runs.view.server import ViewServer, ViewSettings, serve_view


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="A local address to listen on; the page needs no key.")
    ] = "127.0.0.1",
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address and open no browser.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON and open no browser.")
    ] = False,
    author: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Who labels samples on the page [default: the user's name]."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no labels; nothing is written.")
    ] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Show a training run or a grading run on a live page.

    Example: adjudge view runs/first

    Shows curves, histograms, groups with their advantages (failures left out, or counted as 0 at a
    click), and each sample with its messages, verdicts and reward. Works before, during and after
    the run. Nothing leaves this machine. Ctrl-C stops the page, not the run.

    People can label samples there: labels.jsonl in the run's folder is the only file that the page
    writes.
    """
    if not run.exists():
        name = clean(redact_addresses(str(run)))
        errors().print(f"{name}: does not exist yet; the page waits for it")
    elif run.is_dir() and not (run / "run.json").exists() and not any(run.glob("*.jsonl")):
        errors().print(f"{clean(run)}: holds no run yet; the page waits for one")
    settings = ViewSettings(run, host, port, author or _user_name(), read_only)
    serve_view(
        settings, partial(_announce_page, as_json=as_json, no_open=no_open), until_eof=until_eof
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return "anonymous"


def _announce_page(server: ViewServer, *, as_json: bool, no_open: bool) -> None:
    if as_json:
        facts = {"url": server.url, "port": server.port, "pid": os.getpid()}
        typer.echo(msgspec.json.encode(facts))
        return
    typer.echo(server.url)
    typer.echo("Ctrl-C stops the page.")
    if not no_open and _has_screen():
        # A browser may take its time, or print on its own account.
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()


def _has_screen() -> bool:
    """Whether a browser would open a window; on a server it would take the terminal."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
