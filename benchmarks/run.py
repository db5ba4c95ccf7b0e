"""All benchmarks, one after the other, in one run: `make bench`.

    python benchmarks/run.py [--peer-python PATH] [--quick]

Without a peer's interpreter the peer's columns are left out; ``--quick`` uses smaller sizes.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def section(title: str, script: str, *options: str) -> None:
    print(f"\n== {title}", flush=True)
    subprocess.run([sys.executable, str(HERE / script), *options], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer-python")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    peer = ["--peer-python", arguments.peer_python] if arguments.peer_python else []
    quick = ["--quick"] if arguments.quick else []
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    section("trajectory graders", "trajectory.py", *peer, *quick)
    section("runner overhead, no I/O", "runner.py", *peer, *quick)
    section("judge calls: slow and failing providers", "tail.py", "--seeds", "1" if quick else "5")
    section("the judge service beside FastAPI and bare ASGI", "service.py", *quick)
    section("its client beside bare HTTP", "service_client.py", *quick)
    section("a policy that may break its judge", "break_the_judge.py", *quick)
    samples = "10000" if arguments.quick else "100000"
    section("adjudge grade, end to end", "grade.py", "--samples", samples)


if __name__ == "__main__":
    main()
