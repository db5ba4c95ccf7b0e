"""Chat models: who answers graders' questions, over HTTP, from a file, or in this process.

The models of this process are those of transformers, on a CPU or a GPU.
"""

from adjudge.judges.models.local import LocalChatModel, LocalScalarModel

__all__ = ["LocalChatModel", "LocalScalarModel"]
