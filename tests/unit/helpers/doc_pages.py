"""Runs a page of the documentation as its reader would, block by block, in an empty folder.

What a block is, its fence says:

* ``sh``: commands for bash. They must succeed; a last line ``# exit 1`` allows that code.
* ``python``: a script; ``pycon``: examples for doctest. With ``title="NAME"`` any block is the file
  of that name instead.
* ``text``: what the block before printed. ``…`` stands for anything within a line; a line that is
  ``…`` alone for any lines. Spaces at the ends of lines do not count.

Comments steer it, and no reader sees them: ``<!-- not run: WHY -->`` before a block leaves it out,
``<!-- setup ... -->`` is a block of commands that is not shown (a mock on ``$PORT``, files), and
``<!-- needs: trl -->`` at a page's top names an environment of CI that runs it, in place of the
main one. What commands started in the background ends with the page.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
MADE = ("cli", "grader-reference", "metrics", "reference", "run-file")
"""Pages that are made from the code."""
_TIMEOUT_S = 300
_PIECE = re.compile(
    r"<!--\s*(?P<word>not run|setup|needs)\b:?(?P<note>.*?)-->"
    r"|^(?P<indent> *)```(?P<kind>\w+)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```\s*$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block, or hidden commands (``setup``); ``line`` is that of its fence."""

    kind: str
    body: str
    title: str | None
    line: int


def find_pages(needs: str | None = None) -> list[Path]:
    """The pages that run in the environment ``needs``; ``None`` is the main one."""
    pages = [one for one in sorted((ROOT / "docs").rglob("*.md")) if one.stem not in MADE]
    return [page for page in pages if _needs(page.read_text(encoding="utf-8")) == needs]


def _needs(text: str) -> str | None:
    found = re.search(r"<!--\s*needs:\s*(\w+)\s*-->", text)
    return found[1] if found else None


def read_blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that run, in order."""
    skip = False
    for found in _PIECE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["word"] == "not run":
            assert found["note"].strip(), f"line {line}: say why it is not run"
            skip = True
        elif found["word"] == "setup":
            yield Block("setup", found["note"], None, line)
        elif found["kind"] is not None:
            title = re.search(r'title="([^"]+)"', found["info"])
            body = re.sub(f"(?m)^{found['indent']}", "", found["body"])
            if not skip:
                yield Block(found["kind"], body, title[1] if title else None, line)
            skip = False


def run_page(page: Path, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Do what the page says in ``folder``; an ``AssertionError`` names the line that fails.

    ``environment``: of the page's first block; the last block's is in it afterwards. By default the
    one that runs the tests.
    """
    try:
        _run_page(page, folder, _environment(folder) if environment is None else environment)
    finally:
        _end_processes()


def _run_page(page: Path, folder: Path, environment: dict[str, str]) -> None:
    printed = ""
    for block in read_blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        if block.title is not None:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, encoding="utf-8")
        elif block.kind in ("sh", "setup", "python", "pycon"):
            printed = _run(block, folder, environment, where)
        elif block.kind == "text":
            assert _matches(block.body, printed), (
                f"{where}: this was printed instead:\n{printed[-6000:]}"
            )


def bare_environment(folder: Path) -> dict[str, str]:
    """What the shell of a new machine has: ``python3``, an empty HOME, and pip's settings."""
    kept = re.compile(r"PIP_|SSL_CERT|TMPDIR$|\w+_PROXY$", re.IGNORECASE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pip"
    home = folder / "home"
    home.mkdir()
    return {
        "PIP_CACHE_DIR": str(cache),
        **{name: value for name, value in os.environ.items() if kept.match(name)},
        "HOME": str(home),
        "PATH": f"{_write_programs(folder / 'bin', python3='')}:/usr/bin:/bin",
        **_shown(),
    }


def _environment(folder: Path) -> dict[str, str]:
    keys = [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("OPENAI")]
    kept = {name: value for name, value in os.environ.items() if name not in keys}
    programs = _write_programs(
        folder.parent / f"{folder.name}-bin", adjudge="-m adjudge", python=""
    )
    return {
        **kept,
        "PATH": f"{programs}:{kept.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")]),
        "DOCS": str(ROOT / "docs"),
        "HF_HUB_OFFLINE": "1",
        **_shown(),
    }


def _shown() -> dict[str, str]:
    """What pages use and how wide they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"PORT": str(port), "COLUMNS": "100", "NO_COLOR": "1"}


def _write_programs(folder: Path, **arguments: str) -> Path:
    """Programs that start this Python, by their names; with the arguments of each."""
    folder.mkdir(exist_ok=True)
    for name, first in arguments.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {first} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _run(block: Block, folder: Path, environment: dict[str, str], where: str) -> str:
    """What the block printed; its environment is kept for the blocks after it."""
    code = 0
    if block.kind == "python":
        command = ["python", "-c", block.body]
    elif block.kind == "pycon":
        examples = Path(f"{folder}-examples")
        examples.write_text(block.body, encoding="utf-8")
        command = ["python", "-m", "doctest", str(examples)]
    else:
        expected = re.search(r"# exit (\d+)\s*\Z", block.body)
        code = int(expected[1]) if expected else 0
        keep = f"trap 'env -0 > {folder}-env' EXIT\n"
        command = ["bash", "-e", "-o", "pipefail", "-c", keep + block.body]
    output = folder.parent / f"{folder.name}-output"
    with output.open("w+", encoding="utf-8") as file:
        # A file, since what goes on in the background would hold a pipe open.
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        _sessions.append(process.pid)
        found = process.wait(_TIMEOUT_S)
    printed = output.read_text(encoding="utf-8")
    assert found == code, f"{where}: ended with {found}, not {code}:\n{printed[-6000:]}"
    kept = Path(f"{folder}-env")
    if kept.exists():
        for pair in kept.read_text(encoding="utf-8").split("\0"):
            name, separator, value = pair.partition("=")
            if separator:
                environment[name] = value
    return printed


_sessions: list[int] = []


def _end_processes() -> None:
    """End what pages started in the background."""
    for session in _sessions:
        try:
            os.killpg(session, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _sessions.clear()


def _matches(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed; see the top of this file."""
    lines = [line.rstrip() for line in shown.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line.strip() == "…" else _line_pattern(line) for line in lines
    )
    text = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"
    return re.fullmatch(pattern, text) is not None


def _line_pattern(line: str) -> str:
    return "[^\n]*?".join(re.escape(part) for part in line.split("…")) + "\n"
