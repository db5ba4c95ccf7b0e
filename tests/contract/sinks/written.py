"""A run that logs and may be killed, in a process of its own: `written.py TO FOLDER FIRST LAST`.

Its rows go to `metrics.jsonl`, too, as a run's do. With `kill` at the end the process dies by
SIGKILL right after the last row.
"""

import json
import os
import signal
import sys
from pathlib import Path

from adjudge_lab.rl.sinks import open_sink


def value(step: int, attempt: int) -> float:
    """What attempt number `attempt` measures at `step`."""
    return step + attempt / 8


def main(to: str, folder: Path, first: int, last: int, *, kill: bool) -> None:
    file = folder / "metrics.jsonl"
    kept = file.read_text().splitlines(keepends=True)[: first - 1] if file.exists() else []
    file.write_text("".join(kept))
    attempt = int((folder / "attempts").read_text()) if (folder / "attempts").exists() else 0
    (folder / "attempts").write_text(str(attempt + 1))
    sink = open_sink(to, folder, label="tiny run", config={"model": {"base": "tiny"}, "steps": 9})
    for step in range(first, last + 1):
        row = {"step": step, "judge/score_mean": value(step, attempt), "reward": 0.5}
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        sink.log(step, row)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    sink.close()


if __name__ == "__main__":
    main(
        sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), kill=sys.argv[5:] != []
    )
