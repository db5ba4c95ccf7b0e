"""`adjudge serve --ray` as a process, and requests to it."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster_of_two import TwoNodes

from adjudge.service.server import start_service_process


def post(url: str, body: dict[str, Any], key: str = "s3cret") -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status), json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def serving(target: str | Path, nodes: TwoNodes) -> Any:
    here = ["--port=0", "--json", "--until-eof", "--client=JUDGE_KEY", "--group-timeout-s=20"]
    there = ["--ray", "--replicas=2", f"--ray-address={nodes.address}"]
    command = [sys.executable, "-m", "adjudge", "serve", str(target), *here, *there]
    return start_service_process(command)
