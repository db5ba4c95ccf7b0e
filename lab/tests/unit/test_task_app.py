"""A task app as a server: who may ask, what it answers, what it refuses and in which words."""

import asyncio
import io
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from lab.tests.unit.helpers.task_apps import Counting, counting, counting_app, running, strange

from adjudge.errors import ConfigError
from adjudge_lab.environments import PolicyGateway, serve_task_app

KEY = "k-3f9c0a"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)


def request(inference_url: str = "http://127.0.0.1:9", **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "run_id": "r1",
        "env": {"env_name": "counting", "config": {}, "seed": 3},
        "policy": {"policy_name": "p", "config": {"inference_url": inference_url}},
        "ops": ["agent", "env"] * 5,
        "record": {"return_trace": False, "trace_format": "compact"},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = whole
        for parent in parents:
            place = place[parent]
        place[last] = value
    return whole


async def ask(
    url: str, method: str = "GET", headers: dict[str, str] | None = None, **more: Any
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers, **more) as answer,
    ):
        return answer.status, await answer.json()


def answers(path: str, method: str = "GET", **more: Any) -> tuple[int, Any]:
    """One request to the counting app."""
    settings = more.pop("settings", {})

    async def work() -> tuple[int, Any]:
        async with counting(**settings) as url:
            return await ask(url + path, method, **more)

    return asyncio.run(work())


def rollout(body: dict[str, Any], policy: Callable[..., Any], **settings: Any) -> tuple[int, Any]:
    """``POST /rollout`` to the counting app, ``policy`` answering."""

    async def work() -> tuple[int, Any]:
        async with counting(**settings) as url, PolicyGateway().open_session(policy) as seat:
            body["policy"]["config"]["inference_url"] = seat.url
            return await ask(url + "/rollout", "POST", json=body)

    return asyncio.run(work())


def test_a_rollout_is_answered_step_by_step() -> None:
    status, found = rollout(request(), lambda messages: f"word {len(messages)}")
    assert status == 200
    (one,) = found["trajectories"]
    assert [step["obs"]["text"] for step in one["steps"]] == ["3 to go", "1 to go"]
    assert [step["reward"] for step in one["steps"]] == [2.0, 2.0]
    assert [step["done"] for step in one["steps"]] == [False, True]
    assert one["steps"][1]["info"] == {"left": -1, "achievements": ["half"]}
    assert one["final"] == {"observation": {"text": "-1 to go"}, "done": True}
    assert one["length"] == 2
    assert found["metrics"] == {
        "episode_returns": [4.0],
        "mean_return": 4.0,
        "num_steps": 2,
        "outcome_score": None,
        "events_score": None,
    }
    assert (found["run_id"], found["trace"]) == ("r1", None)


def test_scores_and_trace_where_wanted() -> None:
    body = request(record__return_trace=True, record__trace_format="full")
    _, found = rollout(
        body, lambda _: "three words here", outcome_score=lambda episode: 1.0 * episode.done
    )
    assert found["metrics"]["outcome_score"] == 1.0
    trace = found["trace"]
    roles = [message["role"] for message in trace["markov_blanket_message_history"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert trace["metadata"]["seed"] == 3
    assert [event["observation"]["text"] for event in trace["event_history"]] == [
        "3 to go",
        "0 to go",
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"env__seeds": 3}, r"env\.seeds: unknown key; did you mean 'seed'"),
        ({"opps": []}, r"opps: unknown key; did you mean 'ops'"),
        ({"env__seed": -1}, r"env\.seed"),
        ({"env__seed": "3"}, r"env\.seed"),
        ({"env__env_name": "countng"}, "env_name: is unknown; did you mean 'counting'"),
        ({"env__config": {"buy": 2}}, r"env\.config\.buy: unknown; did you mean 'by'"),
        ({"ops": ["env", "agent"]}, "ops: must be"),
        ({"ops": ["agent", "env", "agent"]}, "ops: must be"),
        ({"record__trace_format": "long"}, r"record\.trace_format"),
        ({"policy__config__inference_url": "file:///etc/passwd"}, "inference_url"),
        ({"policy__config__inference_url": "http://a:b@127.0.0.1/"}, "user or password"),
        ({"policy__config__inference_url": "http://169.254.169.254/"}, "link-local"),
        ({"policy__config__max_turns": 0}, r"policy\.config\.max_turns"),
        ({"policy__config__api_key": "x"}, r"policy\.config\.api_key: unknown key"),
    ],
)
def test_a_wrong_request_is_told_which_key(body: dict[str, Any], words: str) -> None:
    status, found = answers("/rollout", "POST", json=request(**body))
    assert status == 400
    assert found["error"]["kind"] == "invalid_input"
    assert re.search(words, found["error"]["message"])


@pytest.mark.parametrize(
    ("body", "code"),
    [*((one, 400) for one in (b"", b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000)),
     (b"x" * (2 << 20), 413)],
)  # fmt: skip
def test_what_is_no_json_object_or_too_large_is_refused(body: bytes, code: int) -> None:
    status, found = answers("/rollout", "POST", data=io.BytesIO(body))
    assert (status, found["error"]["kind"]) == (code, "invalid_input")


@pytest.mark.parametrize("path", ["/info", "/task_info?seed=1", "/rollout"])
def test_the_key_is_asked_for_and_never_shown(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    method = "POST" if path == "/rollout" else "GET"
    for shown in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY[:-1]}, {"Authorization": KEY}):
        status, found = answers(path, method, headers=shown)
        assert (status, found["error"]["kind"]) == (401, "auth")
        assert KEY[:2] not in str(found)
    assert answers(path, method, headers={"X-API-Key": KEY})[0] == (
        400 if path == "/rollout" else 200
    )


def test_health_is_for_everybody_and_says_nothing_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    for path in ("/", "/health"):
        status, found = answers(path)
        assert status == 200
        assert found == {"status": "ok", "app_id": "count", "needs_key": True}


def test_a_web_page_needs_a_key_even_here() -> None:
    status, found = answers("/info", headers={"Origin": "https://example.org"})
    assert (status, found["error"]["kind"]) == (401, "auth")


def test_task_info_shows_how_episodes_begin() -> None:
    _, found = answers("/task_info?seed=7")
    assert found == {
        "seed": 7,
        "env_name": "counting",
        "instructions": "Say words.",
        "observation": "7 to go",
    }
    _, both = answers("/task_info?seed=7&seed=8&env_name=counting")
    assert [one["observation"] for one in both] == ["7 to go", "8 to go"]


@pytest.mark.parametrize(
    "query", ["", "?seed=x", "?seed=-1", "?seeds=1", "?seed=1&env_name=no", "?" + "&seed=1" * 40]
)
def test_task_info_refuses(query: str) -> None:
    status, found = answers("/task_info" + query)
    assert (status, found["error"]["kind"]) == (400, "invalid_input")


class Raising(Counting):
    def step(self, reply: str) -> Any:
        raise RuntimeError(f"secret {reply}")


class Infinite(Counting):
    def step(self, reply: str) -> Any:
        step = super().step(reply)
        return type(step)(step.observation, float("inf"), False)


class Odd(Counting):
    def step(self, reply: str) -> Any:
        step = super().step(reply)
        return type(step)(step.observation, 0.0, False, {"what": object()})


@pytest.mark.parametrize(
    ("make", "words"),
    [(Raising, "RuntimeError"), (Infinite, "no finite number"), (Odd, "no plain data")],
)
def test_an_environment_that_fails_is_no_episode(
    make: type[Counting], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, found = rollout(request(), lambda _: "\x1b[31mone", make=make)
    assert "\x1b" not in caplog.text  # an exception may quote what the policy said
    assert "secret" not in caplog.text.replace('f"secret {reply}"', "")
    assert (make is Raising) == ("in step" in caplog.text)
    assert (status, found["error"]["kind"]) == (500, "bug")
    assert words in found["error"]["message"]
    assert "secret" not in found["error"]["message"]


def test_a_policy_that_fails_is_no_episode() -> None:
    async def web_page(_: Any) -> Any:
        return aiohttp.web.Response(text="<html>")

    async def work() -> None:
        async with counting() as url:
            nobody = await ask(url + "/rollout", "POST", json=request())
            assert (nobody[0], nobody[1]["error"]["kind"]) == (502, "connection")
            async with strange(web_page) as page:
                body = request(f"{page}/rollout/chat/completions")
                status, found = await ask(url + "/rollout", "POST", json=body)
                assert (status, found["error"]["kind"]) == (502, "server_error")

    asyncio.run(work())


@pytest.mark.parametrize("choices", [{"a": 1}, 5, "x", [], [None], [{"message": {"content": 1}}]])
def test_a_policy_that_says_nothing_readable_is_no_episode(choices: Any) -> None:
    async def answer(_: Any) -> Any:
        return aiohttp.web.json_response({"choices": choices})

    async def work() -> None:
        app = aiohttp.web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with counting() as url, running(app) as policy:
            status, found = await ask(url + "/rollout", "POST", json=request(policy))
            assert (status, found["error"]["kind"]) == (502, "unparsable")

    asyncio.run(work())


def test_more_episodes_than_it_can_bear_are_asked_to_come_again() -> None:
    async def work() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def policy(_: Any) -> str:
            entered.set()
            await leave.wait()
            return "three words here"

        async with counting(max_concurrent=1) as url, PolicyGateway().open_session(policy) as seat:
            body = request(seat.url)
            first = asyncio.create_task(ask(url + "/rollout", "POST", json=body))
            await entered.wait()
            status, found = await ask(url + "/rollout", "POST", json=body)
            assert (status, found["error"]["kind"]) == (429, "rate_limited")
            leave.set()
            assert (await first)[0] == 200

    asyncio.run(work())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="ENVIRONMENT_API_KEY"):
        serve_task_app(counting_app(), host, 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"app_id": " "}, "app_id"),
        ({"make": None}, "make, environments: one of them must"),
        ({"environments": {"a": Counting}}, "make, environments: one of them must"),
        ({"max_turns": 0}, "max_turns: must be above 0"),
        ({"max_concurrent": -1}, "max_concurrent"),
    ],
)
def test_a_wrong_app_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        counting_app(**settings)


def test_of_several_environments_one_must_be_named() -> None:
    settings = {"make": None, "environments": {"one": Counting, "two": Counting}}
    body = request(env__env_name=None)
    status, found = answers("/rollout", "POST", json=body, settings=settings)
    assert status == 400
    assert "(found nothing; allowed: one, two)" in found["error"]["message"]
