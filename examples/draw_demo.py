"""Draws the first screen of `adjudge demo` as docs/assets/demo.svg, from a real run.

python examples/draw_demo.py docs/assets/demo.svg
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 104


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        done = subprocess.run(
            [sys.executable, "-m", "adjudge", "demo", "-o", "runs/demo"],
            cwd=folder, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
    shown = done.stdout.split("\nYour own rollouts")[0]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("$ adjudge demo\n" + shown))
    svg = console.export_svg(title="adjudge demo")
    # The picture must not fetch fonts from anywhere.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(re.sub(r"terminal-\d+", "terminal", svg), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
