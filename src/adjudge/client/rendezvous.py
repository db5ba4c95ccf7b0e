"""The trainer's side of ``/group_judge``: each sample of a group sent as soon as it is complete."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import msgspec

from adjudge.client.exchange import decode_object, make_post, read_response, with_unicode_text
from adjudge.engine.loop import run_on_engine
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpResponse, Transport
from adjudge.judges.endpoint.calls import RETRYABLE_KINDS
from adjudge.judges.endpoint.limits import full_jitter
from adjudge.judges.wire import parse_retry_after
from adjudge.judges.wire.transport import AiohttpTransport, normalize_url
from adjudge.wire import JUDGE_KEY_VARIABLE, GroupRequest, JudgeResponse

_MAX_PAUSE_S = 30.0
_rng = random.Random()  # noqa: S311  (spreads retries)


class GroupClient:
    """Sends samples of groups to the judge service at ``url`` and waits for their groups.

    The answer comes when the whole group is there, or the service's ``group_timeout_s`` after its
    first sample; so give back what generation needs (a slot, a KV cache) before :meth:`judge`, and
    announce what will never come by :meth:`abort`. A request is sent again while the service cannot
    be reached, is full or stops: the same ``request_id`` is the same sample there, so nothing is
    judged twice. ``timeout_s`` is for everything together; keep it above the service's
    ``group_timeout_s`` (300) and ``deadline_s``. ``run_id`` keeps runs apart that use the same
    group ids. The key is read from the variable ``api_key_env`` for every request. One object
    serves any thread and loop.
    """

    def __init__(
        self,
        url: str,
        *,
        run_id: str | None = None,
        api_key_env: str = JUDGE_KEY_VARIABLE,
        timeout_s: float = 600.0,
        transport: Transport | None = None,
    ) -> None:
        self.url = normalize_url(url)
        self.run_id = run_id
        self.api_key_env = api_key_env
        self.timeout_s = timeout_s
        self._transport = transport

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transport": None}

    async def judge(self, request: GroupRequest) -> JudgeResponse:
        """The sample's answer: a score, or the error because of which it has none.

        Raises ``GradingFailure`` when there is no answer: ``timeout``, ``connection``,
        ``rate_limited``, ``server_error``, ``auth``.
        """
        if self.run_id is not None:
            fields = {**(request.metadata or {}), "run_id": self.run_id}
            request = msgspec.structs.replace(request, metadata=fields)
        return await run_on_engine(self._ask_within_timeout(request))

    async def abort(self, *, group_id: str, group_size: int, request_id: str) -> None:
        """Announce that a sample of the group will never be complete; raises as :meth:`judge`."""
        await self.judge(
            GroupRequest(
                prompt="",
                completion="",
                request_id=request_id,
                group_id=group_id,
                group_size=group_size,
                aborted=True,
            )
        )

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._transport is not None:
            await run_on_engine(self._transport.aclose())

    async def _ask_within_timeout(self, request: GroupRequest) -> JudgeResponse:
        try:
            body = msgspec.json.encode(request)
        except UnicodeEncodeError:
            body = msgspec.json.encode(with_unicode_text(request))
        failure = late = GradingFailure(
            ErrorKind.TIMEOUT,
            f"no answer from the judge service within {self.timeout_s:g} s: raise timeout_s, "
            "or lower the service's group_timeout_s",
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                for sends in itertools.count(1):
                    try:
                        return _read_answer(await self._post(body), request)
                    except GradingFailure as error:
                        if error.kind not in RETRYABLE_KINDS:
                            raise
                        failure = error
                    wait = min(failure.metadata.get("wait") or 0.0, _MAX_PAUSE_S)
                    await asyncio.sleep(max(wait, full_jitter(sends, _rng)))
                    failure = late
        except TimeoutError:
            pass
        raise failure

    async def _post(self, body: bytes) -> HttpResponse:
        if self._transport is None:
            self._transport = AiohttpTransport()
        request = make_post("/group_judge", body, self.api_key_env)
        return await self._transport.post(self.url, request)


def _read_answer(response: HttpResponse, request: GroupRequest) -> JudgeResponse:
    """What the service said about the sample.

    Raises ``GradingFailure``: of a kind that may pass where it said nothing yet.
    """
    if response.status in (401, 403):
        raise GradingFailure(ErrorKind.AUTH, "the judge service refused the key (api_key_env)")
    if response.status == 404:
        raise GradingFailure(ErrorKind.UNSUPPORTED, "this judge service has no /group_judge")
    item = decode_object(response.body)
    if item and item.get("request_id") in (None, request.request_id):
        if request.aborted and response.status == 200:
            return JudgeResponse(request_id=request.request_id)
        answer, failed = read_response(item), "error" in item
        settled = "group" in (answer.metadata or {})
        if failed and (settled or response.status in (400, 413, 422)):
            return answer
        if settled and answer.error is None and response.status == 200:
            return answer
    kind = ErrorKind.RATE_LIMITED if response.status == 429 else ErrorKind.SERVER_ERROR
    wait = {"wait": parse_retry_after(response.headers)}
    raise GradingFailure(kind, f"the judge service answered {response.status}", wait)
