"""The live page's server: who may ask, what may be asked, and nothing but the run's own files."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.rows import write_jsonl

from adjudge.errors import ConfigError
from adjudge.runs.view.server import ViewServer

RUN = "import typer; from adjudge.cli.view import view; typer.run(view)"
MARK = "only in the secret file"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret.txt").write_text(MARK)
    (run / "run.json").write_text('{"kind": "train", "label": "<b>half</b>"}')
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    rows = [
        {"step": 1, "index": i, "group": "1/0", "reward": r, "messages": [{"content": "<i>"}]}
        for i, r in enumerate((0.4, 0.6, None))
    ]
    write_jsonl(run / "rollouts.jsonl", rows)
    return run


def served(folder: Path, use: Callable[[aiohttp.ClientSession, ViewServer], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with ViewServer(folder) as server, aiohttp.ClientSession() as session:
            return await use(session, server)

    return asyncio.run(go())


def asked(folder: Path, *paths: str, **headers: str) -> list[tuple[int, Any, str]]:
    """Status, headers and text of the answers to ``paths``, one after another."""

    async def use(session: aiohttp.ClientSession, server: ViewServer) -> Any:
        found = []
        for path in paths:
            address = server.url.rstrip("/") + path
            async with session.get(address, headers=headers) as answer:
                found.append((answer.status, answer.headers, await answer.text()))
        return found

    answers: list[tuple[int, Any, str]] = served(folder, use)
    return answers


def test_every_answer_has_the_policy_and_nothing_is_inline(folder: Path) -> None:
    paths = ("/", "/page.css", "/page.js", "/charts.js", "/story.js", "/api/overview", "/nothing")
    for status, headers, text in asked(folder, *paths):
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert status in {200, 404}
        assert "<style" not in text
        assert "onclick" not in text


def test_the_answers_follow_the_run(folder: Path) -> None:
    first, again = asked(folder, "/api/overview", "/api/overview?version=other")
    found = json.loads(first[2])
    assert found == json.loads(again[2])
    assert (found["label"], found["samples"]) == ("<b>half</b>", 3)
    where = f"generation={found['generation']}"
    unchanged, sample, groups = asked(
        folder,
        f"/api/overview?version={found['version']}",
        f"/api/sample?{where}&row=2",
        f"/api/groups?{where}&first=1&last=1&page=0&show=missing",
    )
    assert unchanged[0] == 204
    assert json.loads(sample[2])["story"]["messages"] == [{"content": "<i>"}]
    found = json.loads(groups[2])
    assert (found["found"], found["groups"][0]["turned"]) == (1, 1)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("sample?generation=2", 400),
        ("sample?generation=2&row=x", 400),
        ("sample?generation=2&row=1e3", 404),
        ("sample?generation=2&row=%D9%A1", 400),
        ("sample?generation=2&row=99999999999999999999", 404),
        ("groups?generation=2&first=0&last=1&page=0&show=__class__", 400),
        ("groups?generation=2&first=0&last=1", 400),
        ("sample?generation=2&row=3", 404),
        ("sample?generation=2&row=-1", 404),
        ("sample?generation=1&row=0", 409),
    ],
)
def test_wrong_questions_are_refused(folder: Path, query: str, status: int) -> None:
    overview, answer = asked(folder, "/api/overview", f"/api/{query}")
    assert json.loads(overview[2])["generation"] == 2
    assert answer[0] == status


PATHS = (
    "/../secret.txt",
    "/..%2fsecret.txt",
    "/%2e%2e/secret.txt",
    "/page.css/../../secret.txt",
    "/run.json",
    "/rollouts.jsonl",
    "/api/sample/../../secret.txt",
    "//etc/passwd",
    "/page.css%00",
    "/adjudge.runs.view/page.html",
)


def test_no_path_leads_to_a_file(folder: Path) -> None:
    for path, (status, body) in raw_of(folder, PATHS).items():
        assert status in {400, 404}, path
        assert MARK.encode() not in body


def raw(port: int, path: str, host: str | None, method: str = "GET") -> tuple[int, bytes]:
    """A request as it is written, unlike a client that tidies paths and hosts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def raw_of(
    folder: Path, paths: Sequence[str], host: str | None = "127.0.0.1", method: str = "GET"
) -> dict[str, tuple[int, bytes]]:
    async def use(_: aiohttp.ClientSession, server: ViewServer) -> dict[str, tuple[int, bytes]]:
        return {
            path: await asyncio.to_thread(raw, server.port, path, host, method) for path in paths
        }

    found: dict[str, tuple[int, bytes]] = served(folder, use)
    return found


STRANGERS = (
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost@evil.example",
    "192.168.0.7",
    "0.0.0.0",
    "[::ffff:8.8.8.8]",
    "2130706433",
    "",
    None,
)


@pytest.mark.parametrize("host", STRANGERS)
def test_a_name_that_is_not_this_machine_is_refused(folder: Path, host: str | None) -> None:
    for status, body in raw_of(folder, ["/", "/api/overview", "/nothing"], host).values():
        assert status in {400, 403}
        assert b"half" not in body


@pytest.mark.parametrize(
    "head", ["Host: localhost\r\nHost: evil.example", "Host: localhost\r\nhost: localhost", "X: y",
             "Host: localhost\r\n\r\n\0garbage"],
)  # fmt: skip
def test_a_request_that_is_malformed_is_refused_without_a_trace(
    folder: Path, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(_: aiohttp.ClientSession, server: ViewServer) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /api/overview HTTP/1.1\r\n{head}\r\n\r\n".encode())
        answer = await reader.read(12)
        writer.close()
        return answer

    assert served(folder, use)[8:] == b" 400"
    assert not caplog.records


@pytest.mark.parametrize("host", ["localhost:8123", "127.0.0.1", "[::1]:5", "LOCALHOST"])
def test_a_tunnel_with_a_port_of_its_own_is_answered(folder: Path, host: str) -> None:
    assert asked(folder, "/api/overview", Host=host)[0][0] == 200


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403),
                                              ("same-origin", 200), ("none", 200)])  # fmt: skip
def test_pages_of_other_sites_get_no_data(folder: Path, site: str, status: int) -> None:
    assert asked(folder, "/api/overview", **{"Sec-Fetch-Site": site})[0][0] == status


def test_the_report_has_an_origin_of_its_own(folder: Path) -> None:
    """Its script is the folder's: it must not reach what the server says or writes."""
    assert asked(folder, "/report.html")[0][0] == 404
    (folder / "report.html").write_text("<script>fetch('/api/overview')</script>")
    status, headers, body = asked(folder, "/report.html")[0]
    assert (status, body[:8]) == (200, "<script>")
    assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'no")
    assert "same-origin" not in headers["Content-Security-Policy"]
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to("/etc/hostname")
    assert asked(folder, "/report.html")[0][0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_written(folder: Path, method: str) -> None:
    assert raw_of(folder, ["/api/overview"], method=method)["/api/overview"][0] == 405


def test_a_file_and_a_taken_port_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    with pytest.raises(ConfigError, match="is a file. Give the run's folder."):
        ViewServer(tmp_path / "report.html")

    async def start(port: int) -> None:
        async with ViewServer(tmp_path, port=port):
            pass

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="Use --port 0 for a free port"),
    ):
        asyncio.run(start(taken.getsockname()[1]))


def test_the_command_prints_its_address_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "later"), "--no-open"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        port = int(url.removeprefix("http://127.0.0.1:").removesuffix("/"))
        assert raw(port, "/", "127.0.0.1")[0] == 200
        assert b"waiting" in raw(port, "/api/overview", "127.0.0.1")[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "does not exist yet" in process.stderr.read()
