"""The application without a server: phases, refusals, formats, groups."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.helpers.meeting import function, run_here, settings

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.service import ServiceSettings
from adjudge.service.app import Service, ServicePhase
from adjudge.service.backend import Backend, GroupRendezvous
from adjudge.service.formats import Format
from adjudge.service.nemo_gym import NemoGym
from adjudge.service.rendezvous import Rendezvous
from adjudge.service.requests import RequestRefused
from adjudge.wire import ErrorInfo, GroupRequest, JudgeRequest, JudgeResponse

ONE = {"prompt": "p", "completion": "c"}
GROUP = {**ONE, "group_id": "g", "group_size": 2, "request_id": "r"}


class Half(Backend):
    name, version, one_by_one = "half", "1", True

    def __init__(self, compares_groups: str | None = None) -> None:
        self.compares_groups = compares_groups

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        return [JudgeResponse(0.5) for _ in requests]


class Words(Format):
    """Judges the words of a body; some break it."""

    path = "/words"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        words = json.loads(body)
        if "oops" in words:
            raise KeyError("the text of a request")
        if "panic" in words:
            raise BaseException("the text of a request")  # noqa: TRY002
        if "deep" in words:
            raise RecursionError
        return [JudgeRequest("", word) for word in words]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        return [one.score for one in responses]


class Groups(GroupRendezvous):
    """Says what it was told to."""

    def __init__(self, says: JudgeResponse | Exception) -> None:
        self.says = says

    async def join(self, request: GroupRequest) -> JudgeResponse:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


Answer = tuple[int, Any, dict[str, str]]


async def call(
    service: Service, path: str, value: Any, method: str = "POST", key: str = ""
) -> Answer:
    shown = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"path": path, "method": method, "headers": shown}
    sent = value if isinstance(value, bytes) else json.dumps(value).encode()
    status, head, body = await service.answer(scope, silent, sent)
    lines = [line.partition(": ")[::2] for line in head.decode().splitlines()]
    return status, json.loads(body), dict(lines)


async def silent() -> dict[str, Any]:
    raise AssertionError("the body is here")


def asked(
    path: str,
    value: Any,
    *,
    phase: ServicePhase | None = None,
    backend: Half | None = None,
    **more: Any,
) -> Answer:
    async def run() -> Answer:
        service = Service(backend or Half(), ServiceSettings(), **{"formats": [Words()], **more})
        await service.start()
        service.phase = phase or service.phase
        return await call(service, path, value, "GET" if value is None else "POST")

    return asyncio.run(run())


@pytest.mark.parametrize("phase", [ServicePhase.LOADING, ServicePhase.DRAINING])
def test_nothing_is_taken_before_or_after(phase: ServicePhase) -> None:
    for path, value in (("/judge", ONE), ("/words", ["a"]), ("/ready", None)):
        status, body, headers = asked(path, value, phase=phase)
        assert status == 503
        assert phase in body["error"]["message"]
        assert "retry-after" in headers
    assert asked("/health", None, phase=phase)[0] == 200


def test_a_backend_that_compares_groups_says_where_to_go() -> None:
    backend = Half("grader 'best'")
    for path, value in (("/judge", ONE), ("/batch_judge", {"requests": [ONE]}), ("/words", ["a"])):
        status, body, _ = asked(path, value, backend=backend)
        assert (status, body["error"]["kind"]) == (422, "unsupported")
        assert "/group_judge" in body["error"]["message"]
        assert "grader 'best'" in body["error"]["message"]


def test_a_format_answers_in_its_own_words() -> None:
    assert asked("/words", ["a", "b"])[:2] == (200, [0.5, 0.5])
    for word in ("oops", "panic"):
        status, body, _ = asked("/words", [word])
        assert (status, body["error"]["kind"]) == (503, "bug")
        assert "text" not in body["error"]["message"]
    assert asked("/words", ["deep"])[0] == 400


def test_messages_that_cannot_be_read_are_refused_with_their_keys() -> None:
    odd = [{"role": "user", "content": "2 + 2?"}, {"role": "wizard", "spell": "4"}]
    row = {"responses_create_params": {"input": "2 + 2?"}, "response": {"output": odd}}
    batch = {"requests": [ONE, {**ONE, "messages": odd}]}
    given = {"/judge": batch["requests"][1], "/batch_judge": batch, "/verify": row}
    for path, value in {**given, "/group_judge": {**GROUP, "messages": odd}}.items():
        status, body, _ = asked(path, value, formats=[NemoGym()])
        assert (status, body["error"]["kind"]) == (422, "invalid_input")
        assert ".1.role: must be a known one (found keys role, spell" in body["error"]["message"]


@pytest.mark.parametrize("path", ["/judge", "/health", "/words", "own"])
def test_two_routes_do_not_share_a_path(path: str) -> None:
    async def make() -> None:
        taken = Words()
        taken.path = path
        Service(Half(), ServiceSettings(), formats=[Words(), taken])

    with pytest.raises(ConfigError, match=f"found '{path}'"):
        asyncio.run(make())


@pytest.mark.parametrize(
    ("failure", "status", "retry_after"),
    [
        (RequestRefused(429, ErrorKind.RATE_LIMITED, "full", 0.5), 429, "1"),
        (GradingFailure(ErrorKind.INVALID_INPUT, "size"), 422, None),
        (GradingFailure(ErrorKind.TIMEOUT, "late"), 503, "1"),
        (GradingFailure(ErrorKind.UNPARSABLE, "what"), 503, None),
    ],
)
def test_what_a_rendezvous_raises_has_its_status(
    failure: GradingFailure, status: int, retry_after: str | None
) -> None:
    found, body, headers = asked("/group_judge", GROUP, rendezvous=Groups(failure))
    assert (found, body["error"]["kind"]) == (status, failure.kind)
    assert headers.get("retry-after") == retry_after


def test_a_sample_of_a_group_is_answered_like_any_other() -> None:
    status, body, _ = asked("/group_judge", GROUP, rendezvous=Groups(JudgeResponse(0.25)))
    assert (status, body["score"], body["request_id"]) == (200, 0.25, "r")
    assert body["metadata"]["model_version"] == "1"
    incomplete = JudgeResponse(error=ErrorInfo(ErrorKind.INCOMPLETE, "came too late"))
    assert asked("/group_judge", GROUP, rendezvous=Groups(incomplete))[0] == 503
    aborted = JudgeResponse(error=ErrorInfo(ErrorKind.CANCELLED, "announced"))
    announced = {**GROUP, "aborted": True}
    assert asked("/group_judge", announced, rendezvous=Groups(aborted))[0] == 200


def test_a_drain_does_not_wait_for_samples_that_nobody_can_send_any_more() -> None:
    async def run() -> tuple[Answer, Answer, float]:
        given = settings()
        service = Service(Half(), given, rendezvous=Rendezvous(function(), given))
        await service.start()
        waits = asyncio.create_task(call(service, "/group_judge", {**GROUP, "group_size": 3}))
        complete = {**GROUP, "group_id": "h", "group_size": 1, "metadata": {"value": 1, "wait": 5}}
        judged = asyncio.create_task(call(service, "/group_judge", complete))
        await asyncio.sleep(1)
        await service.drain(30.0)
        return await waits, await judged, asyncio.get_running_loop().time()

    (status, body, _), judged, ended = run_here(run())
    assert (status, body["error"]["kind"]) == (503, "cancelled")
    assert "group" not in body["metadata"]  # it was not settled, and may meet again elsewhere
    assert (judged[0], judged[1]["score"]) == (200, 1.0)
    assert ended == pytest.approx(5.0, abs=0.1)


def test_half_a_surrogate_in_an_answer_is_a_question_mark() -> None:
    class Odd(Half):
        async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
            return [JudgeResponse(0.5, metadata={"said": "\ud800"}) for _ in requests]

    status, body, _ = asked("/judge", ONE, backend=Odd())
    assert (status, body["score"], body["metadata"]["said"]) == (200, 0.5, "?")


def test_a_wrong_method_names_the_right_one() -> None:
    status, body, headers = asked("/judge", None)
    assert (status, body["error"]["kind"], headers["allow"]) == (405, "unsupported", "POST")


def test_numbers_count_what_was_answered() -> None:
    async def run() -> str:
        service = Service(Half(), ServiceSettings())
        await service.start()
        for value in (ONE, ONE, {"prompt": "p"}):
            await call(service, "/judge", value)
        assert service.routes == ["/judge", "/batch_judge"]  # it judges no groups
        return service.metrics.text().decode()

    text = asyncio.run(run())
    assert 'judge_requests_total{outcome="answered",route="/judge"} 2.0' in text
    assert 'judge_requests_total{outcome="refused",route="/judge"} 1.0' in text
    assert 'judge_request_duration_seconds_count{route="/judge"} 3.0' in text
    assert "judge_batch_size_count 2.0" in text
    assert "judge_cost_usd_total 0.0" in text


def test_a_key_that_nothing_reads_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        groups = Groups(JudgeResponse(0.5))
        service = Service(Half(), ServiceSettings(), rendezvous=groups)
        await service.start()
        status, found, _ = await call(service, "/judge", {**ONE, "anwser": "4", "zzz": [1]})
        assert (status, found["score"]) == (200, 0.5)
        assert found["warnings"] == [
            "unknown key 'anwser' was ignored; did you mean 'answer'?",
            "unknown key 'zzz' was ignored",
        ]
        _, found, _ = await call(service, "/judge", {**ONE, "answer": "4"})
        assert "warnings" not in found
        body = {"requests": [ONE, {**ONE, "anwser": "4"}], "more": 1}
        _, found, _ = await call(service, "/batch_judge", body)
        assert found["warnings"] == ["unknown key 'more' was ignored"]
        assert [len(one.get("warnings", ())) for one in found["responses"]] == [0, 1]
        many = {**ONE, **{f"x{i}": i for i in range(500)}, "y" * 10_000: 1}
        _, found, _ = await call(service, "/judge", many)
        assert len(found["warnings"]) == 11
        assert found["warnings"][-1] == "491 more unknown keys were ignored"
        _, found, _ = await call(service, "/group_judge", {**GROUP, "groupid": "g"})
        assert found["warnings"] == ["unknown key 'groupid' was ignored; did you mean 'group_id'?"]
        _, found, _ = await call(service, "/group_judge", GROUP)
        assert "warnings" not in found
        huge = json.dumps({**ONE, "zzz": 0}).replace(": 0}", ": 1e999}").encode()
        status, found, _ = await call(service, "/judge", huge)
        assert (status, found["warnings"]) == (200, ["unknown key 'zzz' was ignored"])
        status, found, _ = await call(service, "/judge", {"prompt": "p", "anwser": "4"})
        assert (status, found["error"]["kind"]) == (422, "invalid_input")
        assert "completion" in found["error"]["message"]
        await service.drain(0)

    asyncio.run(ask())
    said = [one.message for one in caplog.records if "anwser" in one.message]
    assert said == [
        "a request: unknown key 'anwser' was ignored; did you mean 'answer'? (logged once)"
    ]


def test_a_key_of_its_own_tells_a_client_and_the_shared_key_its_runs() -> None:
    async def run() -> list[str]:
        keys = {"SHARED": "s", "TEAM": "t"}
        service = Service(Half(), ServiceSettings(client=("TEAM=2",)), keys=keys)
        await service.start()
        for key, run_id in (("s", "one"), ("s", "two"), ("t", "three")):
            request = {**ONE, "metadata": {"run_id": run_id}}
            assert (await call(service, "/judge", request, key=key))[0] == 200
        return service.metrics.text().decode().split('judge_client_waiting{client="')[1:]

    assert {one.partition('"')[0] for one in asyncio.run(run())} == {"one", "two", "TEAM"}
