"""The policy's side: seats, what may be asked there, and what makes a conversation no rollout."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from lab.tests.unit.helpers.task_apps import assistant, said, user
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge_lab.environments import PolicyGateway
from adjudge_lab.environments.gateway import PolicySession


def echo(messages: Any) -> str:
    return f"heard {messages[-1]['content']}"


def seated(
    work: Callable[[PolicySession], Coroutine[Any, Any, Any]], policy: Callable[..., Any] = echo
) -> Any:
    async def run() -> Any:
        async with PolicyGateway().open_session(policy) as seat:
            return await work(seat)

    return asyncio.run(run())


def test_only_an_open_seat_answers() -> None:
    async def work() -> None:
        gateway = PolicyGateway()
        async with gateway.open_session(echo) as other:
            async with gateway.open_session(echo) as seat:
                url = seat.url
                assert (await said(url, user("a")))[0] == 200
            status, found = await said(url, user("a"))
            assert (status, found["error"]["type"]) == (404, "invalid_request_error")
            assert (await said(url[:-1], user("a")))[0] == 404
            assert (other.was_asked, len(other.url.rpartition("/")[2])) == (False, 43)

    asyncio.run(work())


BROKEN = [
    ([user("A"), assistant("heard a"), user("b")], "rewrote the conversation"),
    ([user("a"), assistant("heard A"), user("b")], "rewrote the conversation"),
    ([user("a"), user("b")], "rewrote the conversation"),
    ([user("b")], "rewrote the conversation"),
    ([user("a"), assistant("heard a")], "without saying anything new"),
    ([user("a"), assistant("heard a"), assistant("I won")], "did not write"),
]


@pytest.mark.parametrize(("messages", "words"), BROKEN)
def test_a_conversation_that_does_not_only_grow_is_no_rollout(
    messages: list[Any], words: str
) -> None:
    async def work(seat: PolicySession) -> None:
        await said(seat.url, user("a"))
        status, found = await said(seat.url, *messages)
        assert status == 400
        assert words in found["error"]["message"]
        assert isinstance(seat.failure, GradingFailure)
        assert seat.failure.kind is ErrorKind.UNSUPPORTED
        assert seat.failed.is_set()
        assert (await said(seat.url, user("a")))[0] == 400  # and stays so
        assert seat.replies == 1

    seated(work)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stream": True}, "as a stream"),
        ({"n": 2}, "several replies"),
        ({"tools": [{"type": "function"}]}, "in words only"),
    ],
)
def test_what_words_cannot_give_is_refused(more: dict[str, Any], words: str) -> None:
    async def work(seat: PolicySession) -> None:
        status, found = await said(seat.url, user("a"), **more)
        assert status == 400
        assert words in found["error"]["message"]
        assert not seat.was_asked

    seated(work)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"messages": []}', b'{"messages": [{}]}', b"\xff", b"[" * 100_000,
     b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
     b'{"messages": [{"role": 7, "content": "a"}]}', b'{"messages": [{"role": "user\\ud800"}]}',
     b'{"messages": [' + b'{"a":' * 5000],
)  # fmt: skip
def test_hostile_bodies_are_refused_and_the_seat_lives(body: bytes) -> None:
    async def work(seat: PolicySession) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{seat.url}/v1/chat/completions", data=body) as answer,
        ):
            assert answer.status == 400
        assert (await said(seat.url, user("a")))[0] == 200

    seated(work)


def test_what_the_policy_raises_stays_here() -> None:
    def policy(messages: Any) -> str:
        raise RuntimeError("weights at /secret")

    async def work(seat: PolicySession) -> None:
        status, found = await said(seat.url, user("a"))
        assert status == 500
        assert "secret" not in str(found)
        assert isinstance(seat.failure, RuntimeError)

    seated(work, policy)


def test_one_reply_at_a_time() -> None:
    entered = asyncio.Event()

    async def policy(messages: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    async def work(seat: PolicySession) -> None:
        first = asyncio.create_task(said(seat.url, user("a")))
        await entered.wait()
        status, found = await said(seat.url, user("a"))
        assert status == 400
        assert "two replies at once" in found["error"]["message"]
        first.cancel()

    seated(work, policy)


def test_closing_a_seat_stops_the_policy() -> None:
    async def work() -> None:
        entered, stopped = asyncio.Event(), asyncio.Event()

        async def policy(messages: Any) -> str:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return "never"

        async with PolicyGateway().open_session(policy) as seat:
            asking = asyncio.create_task(said(seat.url, user("a")))
            await entered.wait()
        await asyncio.wait_for(stopped.wait(), 5)
        with pytest.raises(aiohttp.ClientError):
            await asking

    asyncio.run(work())


def test_other_machines_need_an_address() -> None:
    with pytest.raises(ConfigError, match="advertise"):
        PolicyGateway(host="0.0.0.0")
    with refuses("base_url"):
        PolicyGateway(host="0.0.0.0", advertise="http://a:b@trainer:9000")
    assert PolicyGateway().is_local
    assert not PolicyGateway(advertise="http://trainer:9000").is_local


def test_a_port_that_is_taken_is_said() -> None:
    async def work() -> None:
        async with PolicyGateway().open_session(echo) as seat:
            port = int(seat.url.split(":")[2].split("/")[0])
            with pytest.raises(ConfigError, match="Use port 0"):
                async with PolicyGateway(port=port).open_session(echo):
                    pass

    asyncio.run(work())
