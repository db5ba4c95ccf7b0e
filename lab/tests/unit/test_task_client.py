"""The trainer's side: episodes over HTTP, keys, rubrics, addresses."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from lab.tests.unit.helpers.task_apps import (
    Counting,
    against,
    counting,
    failure,
    rollout,
    seat_of,
    speaking,
    strange,
    task,
    user,
    words,
)
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.rubrics import GlobalRubric, Rubric, RubricBundle
from adjudge_lab.environments import Episode, OutOfContext, PolicyGateway, fetch_rubrics, play

KEY = "k-3f9c0a"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)


def played(
    policy: Callable[..., Any] = words, seed: int = 5, app: Any = None, **settings: Any
) -> Episode:
    async def work() -> Episode:
        async with counting(**(app or {})) as url:
            return await task(url, **settings).play(seed, policy)

    return asyncio.run(work())


def test_an_episode_over_http_is_the_one_played_here() -> None:
    here = asyncio.run(play(Counting(), words, seed=5))
    there = played()
    assert there.messages == here.messages
    assert (there.rewards, there.done, there.info) == (here.rewards, here.done, here.info)
    assert (there.env_name, there.seed) == ("counting", 5)
    assert there.achievements == here.achievements == [0, 1, 0]
    assert there.columns == {}


def test_a_conversation_too_long_ends_the_episode() -> None:
    def policy(messages: Any) -> str:
        if len(messages) > 5:
            raise OutOfContext
        return "one"

    episode = played(policy, seed=50)
    assert episode.rewards == [1.0, 1.0]
    assert episode.messages[-1] == user("48 to go")
    with pytest.raises(GradingFailure, match="longer than the policy can read") as at_once:
        played(lambda _: (_ for _ in ()).throw(OutOfContext()))
    assert at_once.value.kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("loops", [1, 2])
def test_many_at_once_keep_to_their_own_conversations(loops: int) -> None:
    """Each policy says its own seed; no message of another episode's may be in there."""
    seeds = range(3, 35)

    def policy(seed: int) -> Callable[[Any], Any]:
        async def speak(messages: Any) -> str:
            assert messages[1]["content"] == f"{seed} to go"
            await asyncio.sleep((seed * 7 % 5) / 1000)
            return f"seed-{seed}"

        return speak

    async def work() -> list[Episode]:
        async with counting() as url:
            one = task(url, max_turns=6)
            found: list[Episode] = []
            for _ in range(loops):
                jobs = [asyncio.create_task(one.play(seed, policy(seed))) for seed in seeds]
                await asyncio.wait(jobs)
                found += [job.result() for job in jobs]
            return found

    for seed, episode in zip([*seeds] * loops, asyncio.run(work()), strict=True):
        turns = min(seed, 6)
        spoken = [one["content"] for one in episode.messages if one["role"] == "assistant"]
        seen = [one["content"] for one in episode.messages if one["role"] == "user"]
        assert spoken == [f"seed-{seed}"] * turns
        assert seen == [f"{left} to go" for left in range(seed, seed - turns - 1, -1)]
        assert episode.rewards == [1.0] * turns


def test_a_busy_app_is_waited_for() -> None:
    calls, wait = 0, "0"

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls < 6:
            return web.json_response({}, status=429, headers={"Retry-After": wait})
        return await speaking(rollout(1.0))(request)

    assert against(handler).rewards == [1.0]
    calls, wait = 0, "30"
    assert failure(handler, timeout_s=20.0).kind is ErrorKind.RATE_LIMITED
    assert calls == 1  # its time would not suffice


@pytest.mark.parametrize("given", [None, "wrong"])
def test_a_refused_key_stops_the_run(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
        async with counting() as url:
            assert (await task(url).play(2, words)).rewards == [2.0]
            monkeypatch.delenv("ENVIRONMENT_API_KEY")
            if given:
                monkeypatch.setenv("ENVIRONMENT_API_KEY", given)
            with pytest.raises(JudgeAuthError, match="task app") as caught:
                await task(url).play(2, words)
            assert given is None or given not in str(caught.value)
            with pytest.raises(JudgeAuthError):
                await fetch_rubrics(url)

    asyncio.run(work())


def test_a_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", KEY)

    async def handler(request: web.Request) -> web.StreamResponse:
        message = f"{request.headers['X-API-Key']} at {await seat_of(request)}"
        return web.json_response({"error": message}, status=400)

    found = failure(handler, key_env="OTHER")
    assert "***" in str(found)
    assert KEY not in str(found)


def test_rubrics_come_back_as_they_went(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = RubricBundle(
        global_rubric=GlobalRubric("a@v1", "A", ("x", "y"), {"0-4": "poor", "5-9": "good"}),
        events=Rubric(("Moves on",), id="e@v1"),  # type: ignore[arg-type]  # sentences go
    )

    async def fetch(rubrics: RubricBundle | None) -> RubricBundle:
        async with counting(rubrics=rubrics) as url:
            return await fetch_rubrics(url + "/")

    assert asyncio.run(fetch(bundle)) == bundle
    with pytest.raises(ConfigError, match="/info: the task app has no rubrics"):
        asyncio.run(fetch(None))


def test_a_list_of_criteria_is_a_rubric_for_outcomes() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"rubrics": ["Is short", "Is right"]}')

    async def work() -> RubricBundle:
        async with strange(handler) as url:
            return await fetch_rubrics(url)

    found = asyncio.run(work()).outcome
    assert isinstance(found, Rubric)
    assert [one.text for one in found.criteria] == ["Is short", "Is right"]


def test_an_app_elsewhere_needs_a_gateway_that_it_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1\. Give a PolicyGateway"):
        task("https://tasks.example.org")
    public = PolicyGateway(host="0.0.0.0", advertise="http://trainer.example.org:9000")
    with pytest.raises(ConfigError, match="needs a key, .* Set"):
        task("https://tasks.example.org", gateway=public)
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    task("https://tasks.example.org", gateway=public)
    with refuses("task_url"):
        task("http://a:b@127.0.0.1")
