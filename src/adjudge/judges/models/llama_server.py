"""The child process of an embedded judge: llama.cpp's own server, on a loopback port.

Run as a program with one JSON object on its standard input; it prints the address, and ends when
its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Serve the model that the first line of standard input describes until that is closed."""
    settings = json.loads(sys.stdin.readline())
    # Threads that wait for one another must not spin: on a busy machine they hold up who works.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # noqa: PLC0415  (what this process is for)

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.api_keys = [settings["key"]]
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    sys.stdout.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # its threads may hold a reply that nobody reads


if __name__ == "__main__":
    main()
