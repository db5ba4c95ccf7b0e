"""Where the command line prints, and how other people's text is made safe to print."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["clean", "errors", "log_rubrics", "output", "print_json"]


def output() -> Console:
    """Standard output; numbers uncoloured, no ``:100:`` turned into an emoji."""
    return Console(highlight=False, emoji=False)


def errors() -> Console:
    """Standard error; lines are never broken, so that paths can be copied."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def print_json(value: object) -> None:
    """``value`` on standard output as indented JSON, and nothing else: programs read it."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def clean(text: object) -> str:
    """``text`` without control characters (terminal escapes, line breaks) or markup of its own."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))
    return escape(shown)


@contextmanager
def log_rubrics(*, to_stderr: bool) -> Iterator[None]:
    """Rubric calls and scores on standard error, a line each, while this lasts."""
    if not to_stderr:
        yield
        return
    logger, handler = logging.getLogger("adjudge.rubric"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
