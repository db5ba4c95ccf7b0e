"""One writer at a time: the lock of a run folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adjudge.errors import RunFolderError

__all__ = ["locked", "locking"]


def locked(folder: Path) -> int:
    """The lock of ``folder``, made if need be: a file handle that :func:`os.close` lets go of.

    It ends with the process if nobody closes it. Raises
    :class:`~adjudge.errors.RunFolderError` for a folder that another process is writing to, and for
    one that cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RunFolderError(f"{folder}: another process is writing to it") from None
    return lock


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """``folder`` for this process alone; raises as :func:`locked` does."""
    lock = locked(folder)
    try:
        yield
    finally:
        os.close(lock)
