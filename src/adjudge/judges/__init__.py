"""Who answers graders' questions, and how a call survives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.judges.anthropic import AnthropicChatModel
    from adjudge.judges.base import ChatModel, Reply
    from adjudge.judges.cache import ReplyCache
    from adjudge.judges.endpoint_settings import EndpointSettings
    from adjudge.judges.openai import OpenAIChatModel
    from adjudge.judges.recorded import RecordedModel
    from adjudge.judges.scripted import ScriptedModel

__all__ = [
    "AnthropicChatModel",
    "ChatModel",
    "EndpointSettings",
    "OpenAIChatModel",
    "RecordedModel",
    "Reply",
    "ReplyCache",
    "ScriptedModel",
]

_MODULE_OF = {
    "AnthropicChatModel": "anthropic",
    "ChatModel": "base",
    "EndpointSettings": "endpoint_settings",
    "OpenAIChatModel": "openai",
    "RecordedModel": "recorded",
    "Reply": "base",
    "ReplyCache": "cache",
    "ScriptedModel": "scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'adjudge.judges' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge.judges.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
