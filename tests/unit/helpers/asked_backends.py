"""A backend as the service asks it."""

import asyncio

from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend
from adjudge.service.queue import BackendQueue
from adjudge.wire import JudgeRequest, JudgeResponse


def answers(backend: Backend, *requests: JudgeRequest) -> list[JudgeResponse]:
    """The answers to requests that came together; the backend is started before, and closed."""

    async def used() -> list[JudgeResponse]:
        await backend.start()
        try:
            queue = BackendQueue(backend, ServiceSettings(batch_timeout=0), lambda _: None)
            return await queue.score(requests)
        finally:
            await backend.aclose()

    return asyncio.run(used())
