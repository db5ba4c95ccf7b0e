"""Several coroutines at once, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

__all__ = ["run_all"]


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all; the first exception cancels the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
