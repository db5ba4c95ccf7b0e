"""The child process of an embedded judge: llama.cpp's own server, on a loopback port.

Run as a program, by its path, with one JSON object on its standard input. It prints one line, its
address; all else goes to standard error. It ends when its standard input closes, so it never
outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading


def main() -> None:
    """Serve the model that the first line of standard input describes until that is closed."""
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    answer = os.dup(1)
    os.dup2(2, 1)  # llama.cpp and its libraries may print whatever they like
    # Threads that wait for one another must not spin: on a busy machine they hold up who works.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # noqa: PLC0415  (what this process is for)

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [settings["key"]]
    params.verbosity = 2
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    os.write(answer, f"{server.listening_address}\n".encode())
    threading.Event().wait()


def _end_with_input() -> None:
    """End with the parent, also while llama.cpp reads a large file."""
    sys.stdin.read()
    os._exit(0)  # its threads may hold a reply that nobody reads


if __name__ == "__main__":
    main()
