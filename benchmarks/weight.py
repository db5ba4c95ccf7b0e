"""How heavy adjudge is: import time of our own, and the size of the core install.

    python benchmarks/weight.py [--install] [--json FILE]

Import time is the median over fresh interpreters, each less a bare one. ``--install`` makes a fresh
environment from requirements/core.txt and measures its site-packages (pip and setuptools left out).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORTS = {
    "import adjudge": "import adjudge",
    "the runner": "from adjudge import GradingRunner, BaseGrader",
    "the reward function": "from adjudge import SpecRewardFunction",
    "the command line": "import adjudge.cli.main",
}


def start(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin


def import_ms(rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds):
        bare = start("pass")
        for name, code in IMPORTS.items():
            times[name].append(start(code) - bare)
    return {name: statistics.median(found) * 1e3 for name, found in times.items()}


def install() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        python = Path(name) / "env" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        lock = ROOT / "requirements" / "core.txt"
        subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
        [site] = (python.parent.parent / "lib").glob("python3*/site-packages")
        # The build backend is in the lock for the sake of `make`; a user's wheel needs none of it.
        tools = ("pip", "setuptools", "wheel", "_distutils", "pkg_resources", "hatchling",
                 "editables", "pathspec", "pluggy", "trove_classifiers", "packaging")  # fmt: skip
        kept = [entry for entry in site.iterdir() if not entry.name.lower().startswith(tools)]
        files = (f for entry in kept for f in ([entry] if entry.is_file() else entry.rglob("*")))
        size = sum(f.stat().st_size for f in files if f.is_file())
        packages = sum(entry.name.endswith(".dist-info") for entry in kept)
    return {"mb": size / 1e6, "packages": packages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {"import_ms": import_ms(arguments.rounds)}
    for name, ms in found["import_ms"].items():
        print(f"{name:24}{ms:8.0f} ms")
    if arguments.install:
        found["install"] = install()
        print(f"{'core install':24}{found['install']['mb']:8.1f} MB, "
              f"{found['install']['packages']:.0f} packages")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
