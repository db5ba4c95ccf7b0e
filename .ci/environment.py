"""Make an environment of `requirements/environments.toml`, unless it is there as the file says.

    python .ci/environment.py NAME [--where]

It says what it installs, and how long that took; pip's output is shown only if pip fails.
`--where` prints the environment's folder and installs nothing. Standard library only: it runs on a
machine that has nothing else.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
SHOWN_LINES = 40
"""Of pip's output, where it fails."""


def find_cache() -> Path:
    """The folder outside of the checkout that keeps environments and what the nightly knows."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "adjudge"


def find_folder(name: str, table: dict[str, Any]) -> Path:
    """Where the environment is, or will be."""
    inside = table.get("folder")
    return ROOT / inside if inside else find_cache() / "envs" / name


def describe(table: dict[str, Any]) -> str:
    """What is installed, in a few words."""
    locked = [
        f"{(REQUIREMENTS / name).read_text().count('==')} locked packages ({name})"
        for name in table.get("locked", ())
    ]
    packages = [*table.get("packages", ()), *table.get("no_deps", ())]
    return ", ".join([*locked, *packages[:3], *(["…"] if len(packages) > 3 else [])])


def list_steps(table: dict[str, Any]) -> list[list[str]]:
    """The arguments of each call of pip, in their order."""
    steps = [
        ["--require-hashes", "-r", str(REQUIREMENTS / name)] for name in table.get("locked", ())
    ]
    if packages := table.get("packages"):
        steps.append(packages)
    if packages := table.get("no_deps"):
        steps.append(["--no-deps", *packages])
    source = ["--no-deps", "--no-build-isolation", "-e"]
    return steps + [[*source, str(ROOT / folder)] for folder in table.get("editable", ())]


def digest(table: dict[str, Any]) -> str:
    """Changes when what is to be installed does."""
    texts = [json.dumps(table, sort_keys=True), sys.version]
    texts += [(REQUIREMENTS / name).read_text() for name in table.get("locked", ())]
    for folder in table.get("editable", ()):
        texts += [str(ROOT), (ROOT / folder / "pyproject.toml").read_text()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def run(name: str, log: Path, command: list[str]) -> None:
    """Run a command; where it fails, show the end of what it printed and leave."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with log.open("ab") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        )
    if done.returncode:
        tail = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        print(*tail, sep="\n", file=sys.stderr)
        sys.exit(f"{name}: failed: {' '.join(command)}\n{name}: all of its output: {log}")


def make(name: str, table: dict[str, Any]) -> None:
    """Make the environment, or bring it up to date."""
    folder = find_folder(name, table)
    stamp = folder / f".ready-{name}"
    wanted = digest(table)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two suites may ask for one environment at a time
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"{name}: installing {describe(table)} into {folder}", flush=True)
        start = time.monotonic()
        _install(name, table, folder)
        stamp.write_text(wanted)
        print(f"{name}: ready after {time.monotonic() - start:.0f} s", flush=True)


def _install(name: str, table: dict[str, Any], folder: Path) -> None:
    python = folder / "bin" / "python"
    log = folder / f"{name}.log"
    log.write_bytes(b"")
    if not python.exists():
        run(name, log, [sys.executable, "-m", "venv", str(folder)])
    for step in list_steps(table):
        run(name, log, [str(python), "-m", "pip", "--disable-pip-version-check", "install", *step])
    if module := table.get("then"):
        run(name, log, [str(python), "-m", *module])


def main() -> None:
    """Read the command line."""
    tables = tomllib.loads((REQUIREMENTS / "environments.toml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=tables)
    parser.add_argument("--where", action="store_true", help="print the folder, install nothing")
    options = parser.parse_args()
    if options.where:
        print(find_folder(options.name, tables[options.name]))
    else:
        make(options.name, tables[options.name])


if __name__ == "__main__":
    main()
