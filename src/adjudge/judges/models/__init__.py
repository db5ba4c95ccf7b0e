"""Chat models: who answers graders' questions, over HTTP, from a file, or in this process.

The models of this process are those of transformers, on a CPU or a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.judges.models.local import LocalChatModel, LocalScalarModel

__all__ = ["LocalChatModel", "LocalScalarModel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge.judges.models' has no attribute {name!r}")
    from adjudge.judges.models import local  # noqa: PLC0415  (few runs have a local judge)

    return getattr(local, name)
