"""Who answers graders' questions, and how a call survives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.judges.base import ChatCall, ChatModel, HttpRequest, HttpResponse, Reply
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.settings import EndpointSettings
    from adjudge.judges.models.classifier import ClassifierModel
    from adjudge.judges.models.http import AnthropicChatModel, OpenAIChatModel
    from adjudge.judges.models.offline import RecordedModel, ScriptedModel
    from adjudge.judges.wire import response_failure

__all__ = [
    "AnthropicChatModel",
    "ChatCall",
    "ChatModel",
    "ClassifierModel",
    "EndpointSettings",
    "HttpRequest",
    "HttpResponse",
    "OpenAIChatModel",
    "RecordedModel",
    "Reply",
    "ReplyCache",
    "ScriptedModel",
    "response_failure",
]

_HOME = {
    "cassette": ("ReplyCache",),
    "endpoint.settings": ("EndpointSettings",),
    "models.classifier": ("ClassifierModel",),
    "models.http": ("AnthropicChatModel", "OpenAIChatModel"),
    "models.offline": ("RecordedModel", "ScriptedModel"),
    "wire": ("response_failure",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge.judges' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge.judges.{_MODULE_OF.get(name, 'base')}"), name)
    globals()[name] = value
    return value
