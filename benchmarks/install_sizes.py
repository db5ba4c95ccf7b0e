"""How much ``pip install`` brings for each extra, each in an empty environment.

    python benchmarks/install_sizes.py [EXTRA …]

Prints a table: packages, MB on disk without bytecode, and whether torch is among them. Needs a
package index. The extras of adjudge-lab are called ``lab:train``. Default: all.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def extras() -> list[str]:
    """No extra, then those of adjudge, the lab, and those of the lab."""
    names = [""]
    for prefix, folder in (("", ROOT), ("lab:", ROOT / "lab")):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names += ["lab:"] if prefix else []
        names += [f"{prefix}{name}" for name in project["optional-dependencies"]]
    return names


def weigh(extra: str) -> tuple[int, int, bool]:
    """Packages, MB and whether torch is among them, of one extra in an empty environment."""
    name = extra.removeprefix("lab:")
    part = f"[{name}]" if name else ""
    needs = [".", f"./lab{part}"] if extra.startswith("lab:") else [f".{part}"]
    folder = Path(tempfile.mkdtemp())
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "v"], check=True)
        python = folder / "v" / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*command, "--no-compile", *needs], cwd=ROOT, check=True)
        [site] = (folder / "v" / "lib").glob("python*/site-packages")
        files = [file for file in site.rglob("*") if file.is_file() and file.suffix != ".pyc"]
        mb = sum(file.stat().st_size for file in files) / 1e6
        return len([*site.glob("*.dist-info")]), round(mb), (site / "torch").is_dir()
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*", help="which extras [default: all]")
    print("| extra | packages | MB | torch |\n|---|---|---|---|")
    for extra in parser.parse_args().extras or extras():
        packages, mb, torch = weigh(extra)
        print(f"| `{extra}` | {packages} | {mb} | {'yes' if torch else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
