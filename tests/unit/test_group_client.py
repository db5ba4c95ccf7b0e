"""The trainer's side of a rendezvous."""

import asyncio
import pickle
from typing import Any

import msgspec
import pytest
from tests.unit.helpers.meeting import function, in_service, sample, settings

from adjudge.client.exchange import GroupClient
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.service.rendezvous import Rendezvous
from adjudge.wire import ErrorInfo, GroupRequest, JudgeResponse

Trouble = tuple[int, ErrorKind] | ErrorKind | None


class Line:
    """Carries requests to a rendezvous as the service does; ``troubles`` come first."""

    def __init__(self, place: Rendezvous, *troubles: Trouble) -> None:
        self.place = place
        self.troubles = list(troubles)
        self.sent: list[GroupRequest] = []
        self.headers: list[Any] = []

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        assert (base_url, request.path) == ("http://judge:8888", "/group_judge")
        asked = msgspec.json.decode(request.body, type=GroupRequest)
        self.sent.append(asked)
        self.headers.append(request.headers)
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, tuple):
            refused = JudgeResponse(error=ErrorInfo(trouble[1], "trouble"))
            return answered(trouble[0], msgspec.json.encode(refused))
        answer = await self.place.join(asked)
        if trouble is not None:  # the answer was lost on its way
            raise GradingFailure(trouble, "lost")
        good = answer.error is None or asked.aborted
        status = 200 if good else 422 if kind(answer) is ErrorKind.INVALID_INPUT else 503
        return answered(status, msgspec.json.encode(answer))

    async def aclose(self) -> None:
        pass


def answered(status: int, body: bytes) -> HttpResponse:
    return HttpResponse(status=status, headers={"retry-after": "1"}, body=body)


def kind(response: JudgeResponse) -> ErrorKind | None:
    return None if response.error is None else response.error.kind


def client(*troubles: Trouble, **given: Any) -> tuple[GroupClient, Line]:
    line = Line(Rendezvous(function(group="centre"), settings()), *troubles)
    return GroupClient("http://judge:8888/", transport=line, **given), line


@in_service
async def test_samples_meet() -> None:
    ours, line = client(run_id="today")
    first = asyncio.create_task(ours.judge(sample("a", 0.0, size=3)))
    await ours.abort(group_id="g", group_size=3, request_id="b")
    last = await ours.judge(sample("c", 1.0, size=3))
    assert ((await first).score, last.score) == (-0.5, 0.5)
    assert {(one.metadata or {}).get("run_id") for one in line.sent} == {"today"}


@pytest.mark.parametrize(
    "trouble",
    [
        ErrorKind.CONNECTION,
        (429, ErrorKind.RATE_LIMITED),
        (503, ErrorKind.SERVER_ERROR),
        (502, ErrorKind.SERVER_ERROR),
    ],
)
@in_service
async def test_what_passes_is_sent_again_and_judged_once_and_seen_at_once(
    trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    ours, line = client(trouble, trouble)
    answer = await ours.judge(sample("a", 0.3, size=1))
    assert (answer.score, len(line.sent)) == (0.0, 3)
    assert caplog.text.count("http://judge:8888: a sample of a group is sent again (") == 1


@in_service
async def test_a_service_that_stops_is_asked_again() -> None:
    ours, line = client()
    waiting = asyncio.create_task(ours.judge(sample("a", 0.3, size=1, wait=50.0)))
    await asyncio.sleep(1)
    stopped, line.place = line.place, Rendezvous(function(), settings())
    await stopped.aclose()
    assert (await waiting).score == 0.3


@pytest.mark.parametrize("value", ["unparsable", "timeout", "cancelled"])
@in_service
async def test_a_failed_judge_is_an_answer(value: str) -> None:
    ours, line = client()
    assert kind(await ours.judge(sample("a", value, size=1))) == value
    assert len(line.sent) == 1


@pytest.mark.parametrize(
    ("status", "expected", "again"),
    [
        (401, ErrorKind.AUTH, False),
        (404, ErrorKind.UNSUPPORTED, False),
        (429, ErrorKind.RATE_LIMITED, True),
        (500, ErrorKind.SERVER_ERROR, True),
    ],
)
@in_service
async def test_no_answer_is_raised(status: int, expected: ErrorKind, again: bool) -> None:
    ours, line = client(*[(status, ErrorKind.AUTH)] * 99, timeout_s=60.0)
    with pytest.raises(GradingFailure) as raised:
        await ours.judge(sample("a", size=1))
    assert (raised.value.kind, len(line.sent) > 3) == (expected, again)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"metadata": {"group": "g"}}),
        (200, {"score": None, "metadata": {"group": "g"}}),
        (200, {"score": 0.5, "request_id": "another", "metadata": {"group": "g"}}),
        (500, {"score": 0.5, "request_id": "a", "metadata": {"group": "g"}}),
        (200, {"score": 0.5, "request_id": "a"}),
        (200, {"detail": "gateway"}),
    ],
)
@in_service
async def test_an_answer_without_a_group_members_own_score_is_a_failure(
    status: int, body: Any
) -> None:
    async def answer(base_url: str, request: HttpRequest) -> HttpResponse:
        return answered(status, msgspec.json.encode(body))

    ours, line = client()
    line.post = answer  # type: ignore[method-assign]
    with pytest.raises(GradingFailure) as caught:
        await ours.judge(sample("a", 0.5, size=1))
    assert caught.value.kind is ErrorKind.SERVER_ERROR


@in_service
async def test_all_time_together_is_bounded() -> None:
    ours, line = client(timeout_s=20.0)
    with pytest.raises(GradingFailure, match="timeout_s"):
        await ours.judge(sample("a", size=2))
    assert asyncio.get_running_loop().time() == 20
    await line.place.aclose()


@in_service
async def test_the_key_is_sent_and_stays_out_of_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "k3y")
    ours, line = client(api_key_env="SOME_KEY")
    await ours.judge(sample("a", size=1))
    assert line.headers[0]["authorization"] == "Bearer k3y"
    assert b"k3y" not in pickle.dumps(ours)
    assert pickle.loads(pickle.dumps(ours)).url == "http://judge:8888"
