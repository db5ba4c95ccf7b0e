"""Labels over the live page's server: from the page itself only, one at a time, and checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.rows import write_jsonl

from adjudge.runs.labels import LabelLog
from adjudge.runs.view.server import ViewServer

REWARDS = (0.0, 1.0, 1.0, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"spec_hash": "x"}')
    rows = [
        {"index": i, "group": f"g{i // 4}", "key": f"key{i}", "reward": REWARDS[i % 4],
         "env_reward": float(i % 3 == 0), "reward_info": {"quality_score": REWARDS[i % 4]}}
        for i in range(40)
    ]  # fmt: skip
    write_jsonl(run / "rewards.jsonl", rows)
    return run


Use = Callable[[aiohttp.ClientSession, ViewServer], Awaitable[Any]]


def served(folder: Path, use: Use, **settings: Any) -> Any:
    async def go() -> Any:
        server = ViewServer(folder, **settings)
        server.desk.author = "ada"
        async with server, aiohttp.ClientSession(server.url) as session:
            async with session.get("/api/overview") as answer:
                assert answer.status == 200
            return await use(session, server)

    return asyncio.run(go())


def headers_of(server: ViewServer, **more: str | None) -> dict[str, str]:
    """What a browser sends from the page itself."""
    found = {
        "Origin": server.url.rstrip("/"),
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
        "X-Adjudge-Token": server.desk.token,
        **more,
    }
    return {name: value for name, value in found.items() if value is not None}


def body_of(**more: Any) -> bytes:
    return json.dumps({"generation": 2, "row": 1, "author": "ada", **more}).encode()


async def post(
    session: aiohttp.ClientSession, server: ViewServer, body: bytes | None = None, **headers: Any
) -> tuple[int, Any]:
    data = body_of(verdict="right") if body is None else body
    data = data.replace(b'"generation": 2', b'"generation": %d' % server.reading.generation)
    sent = headers_of(server, **headers)
    async with session.post("/api/labels", data=data, headers=sent) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if answer.status == 200 else text


def refused(folder: Path, body: bytes | None = None, **headers: Any) -> tuple[int, Any]:
    """What a server of ``folder`` answers; nothing may be written."""
    found: tuple[int, Any] = served(folder, partial(post, body=body, **headers))
    assert not (folder / "labels.jsonl").exists()
    return found


async def get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def test_a_label_is_written_with_what_the_run_says_of_its_sample(folder: Path) -> None:
    async def use(session: aiohttp.ClientSession, server: ViewServer) -> None:
        labels = f"/api/labels?row=1&generation={server.reading.generation}"
        sent = body_of(grader="quality", score=0.5, note="=1+1", blind=True, queue="random")
        status, found = await post(session, server, sent)
        assert status == 200, found
        label = found["label"]
        assert {"key": "key1", "index": 1, "group": "g0", "grader": "quality", "score": 0.5,
                "note": "=1+1", "judge_score": 1.0, "blind": True, "queue": "random",
                "author": "ada"}.items() <= label.items()  # fmt: skip
        assert "step" not in label
        facts = await get(session, labels)
        assert facts["labels"] == [label]
        assert facts["scales"][1] == {"grader": "quality", "low": 0.0, "high": 1.0,
                                      "levels": [0.0, 1.0]}  # fmt: skip
        others = await get(session, f"{labels}&author=bo")
        assert others["labels"] == []
        _, found = await post(session, server, body_of(over=0))
        assert (found["label"]["preferred_over"], found["label"]["over_index"]) == ("key0", 0)
        back = body_of(withdrawn=label["id"])
        assert (await post(session, server, back))[0] == 200
        assert (await post(session, server, back))[0] == 404
        facts = await get(session, labels)
        assert [one["preferred_over"] for one in facts["labels"]] == ["key0"]

    served(folder, use)
    assert len(LabelLog(folder).read()) == 3


@pytest.mark.parametrize("score", [1.5, -1e6, 1e308, "Infinity"])
def test_a_score_off_the_stated_scale_is_refused(folder: Path, score: Any) -> None:
    graders = [{"name": "quality", "range": [0, 1]}]
    (folder / "run.json").write_text(json.dumps({"spec_hash": "x", "graders": graders}))
    assert refused(folder, body_of(grader="quality", score=score))[0] == 400


def test_a_label_that_cannot_be_written_says_why(folder: Path) -> None:
    (folder / "labels.jsonl").symlink_to(folder / "elsewhere")

    status, said = served(folder, partial(post, body=body_of(score=0.5)))
    assert status == 500
    assert "labels.jsonl: cannot be used" in str(said)
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": None}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=x"}, 415),
        ({"X-Adjudge-Token": None}, 403),
        ({"X-Adjudge-Token": "wrong"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_only_the_page_itself_may_write(folder: Path, headers: dict[str, Any], status: int) -> None:
    assert refused(folder, **headers)[0] == status


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"[]", 400, "not a label"),
        (b"\xff", 400, "not a label"),
        (b"[" * 30_000, 400, "not a label"),
        (b" " * 70_000, 413, "Too Large"),
        (body_of(), 400, "must have one of"),
        (body_of(verdict="right", score=1), 400, "must have one of"),
        (body_of(verdict="maybe"), 400, "not a label"),
        (body_of(verdict="right", more=1), 400, "unknown field"),
        (body_of(verdict="right", row=99), 404, "no such sample"),
        (body_of(verdict="right", row=-1), 404, "no such sample"),
        (body_of(verdict="right", generation=77), 409, "written anew"),
        (body_of(verdict="right", author="a\nb"), 400, "author"),
        (body_of(verdict="right", grader="nobody"), 400, "no such grader"),
        (body_of(verdict="right", note="x" * 4_001), 400, "4,001 characters"),
        (body_of(over=5), 400, "same group"),
        (body_of(over=1), 400, "same group"),
        (body_of(withdrawn="x"), 404, "no such label"),
        (b'{"generation":2,"row":1,"author":"ada","score":1e999}', 400, ""),
        (b'{"generation":2,"row":1,"author":"ada","score":NaN}', 400, "not a label"),
    ],
)
def test_what_is_no_label_is_not_written(
    folder: Path, body: bytes, status: int, words: str
) -> None:
    found = refused(folder, body)
    assert found[0] == status
    assert words in found[1]


def test_read_only_takes_nothing_and_has_no_token(folder: Path) -> None:
    async def use(session: aiohttp.ClientSession, server: ViewServer) -> None:
        facts = await get(session, "/api/labels")
        assert (facts["read_only"], facts["token"]) == (True, "")
        assert (await post(session, server))[0] == 403

    served(folder, use, read_only=True)


def test_two_servers_of_one_folder_see_each_others_labels(folder: Path) -> None:
    async def use(session: aiohttp.ClientSession, server: ViewServer) -> None:
        second = ViewServer(folder)
        async with second, aiohttp.ClientSession(second.url) as other:
            await get(other, "/api/overview")
            body = body_of(verdict="wrong")
            for row in (0, 1, 2):
                sent = body.replace(b'"row": 1', b'"row": %d' % row)
                assert (await post(session, server, sent))[0] == 200
                assert (await post(other, second, sent.replace(b"ada", b"bo")))[0] == 200
            assert (await get(session, "/api/labels?author=bo"))["labelled"] == 3
            assert (await get(other, "/api/labels?author=ada"))["labelled"] == 3

    served(folder, use)
    assert len(LabelLog(folder).read()) == 6


def test_the_queue_leaves_out_what_the_author_has_labelled(folder: Path) -> None:
    async def use(session: aiohttp.ClientSession, server: ViewServer) -> None:
        queue = await get(session, "/api/labels/queue")
        assert queue["labelled"] == 0
        assert queue["of"] == len(queue["entries"]) == queue["left"] <= 30
        first = queue["entries"][0]
        body = body_of(verdict="right", row=first["row"], queue=first["queue"])
        assert (await post(session, server, body))[0] == 200
        after = await get(session, "/api/labels/queue")
        assert (after["labelled"], after["of"]) == (1, queue["of"])
        assert after["entries"] == queue["entries"][1:]
        other = await get(session, "/api/labels/queue?author=bo")
        assert other["entries"] == queue["entries"]

    served(folder, use)
