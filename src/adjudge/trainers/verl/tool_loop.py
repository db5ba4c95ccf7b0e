"""verl 0.9.1's tool loop with its conversation for graders.

verl's ``ToolAgentLoop`` keeps its messages to itself. This one is the same loop and puts them, and
the tools' definitions, into ``extra_fields["extras"]`` of its output: the one key that verl keeps
in every batch, whichever loops made its rollouts. Reward actors get it in ``tool_extra_fields``.

:class:`~adjudge.trainers.verl.JudgeAgentLoopManager` takes it in place of verl's ``tool_agent``.
Elsewhere a file does, ``actor_rollout_ref.rollout.agent.agent_loop_config_path``::

    - name: tool_agent
      _target_: adjudge.trainers.verl.JudgeToolAgentLoop
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from adjudge.intake.rendered import THINK_TAGS

_Loop: Any = object
if find_spec("verl") is not None:  # tools that read documentation import every module
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    _Loop = ToolAgentLoop


class JudgeToolAgentLoop(_Loop):
    """verl's tool loop, whose outputs carry ``messages`` and ``tools``.

    Messages are those that verl kept: the policy's turns with their calls, results as the policy
    saw them. A turn that verl does not write down, because the rollout ended with it at a limit of
    length or turns, is added, as far as it is trained on. Special tokens and images are left out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agent_data: Any = None
        self._last_turn: list[dict[str, Any]] = []

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> Any:
        """One rollout; see verl's ``ToolAgentLoop.run``."""
        output = await super().run(sampling_params, **columns)
        if self._agent_data is not None:
            opening = len(columns["raw_prompt"])
            kept = [*self._agent_data.messages, *self._last_turn]
            given = output.extra_fields.get("extras")
            output.extra_fields["extras"] = {
                **(given if isinstance(given, dict) else {}),
                "messages": plain_messages(kept, opening, self.tokenizer.all_special_tokens),
                "tools": getattr(self._agent_data, "_active_tool_schemas", self.tool_schemas),
            }
        return output

    async def _handle_generating_state(self, agent_data: Any, *args: Any, **kwargs: Any) -> Any:
        written = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, *args, **kwargs)
        self._agent_data = agent_data
        self._last_turn = (
            [] if len(agent_data.messages) > written else [await self._unwritten_turn(agent_data)]
        )
        return state

    async def _unwritten_turn(self, agent_data: Any) -> dict[str, Any]:
        """The message of a rollout's last tokens, read as verl reads those of other turns."""
        beyond = max(0, len(agent_data.response_mask) - self.response_length)
        ids = agent_data.response_ids[: max(0, len(agent_data.response_ids) - beyond)]
        active: Any = getattr(agent_data, "_active_tools", self.tools)
        schemas = [tool.tool_schema for tool in active.values()]
        turn = copy.copy(agent_data)  # verl goes on with its own
        content, turn.tool_calls = await self.tool_parser.extract_tool_calls(ids, schemas)
        message: dict[str, Any] = self._build_assistant_message(content, turn)
        return message


def plain_messages(
    messages: Sequence[dict[str, Any]], opening: int, special_tokens: Sequence[str]
) -> list[dict[str, Any]]:
    """The messages as graders take them: text, and calls as in OpenAI's format.

    The first ``opening`` are the prompt's. Of the policy's, ``special_tokens`` are cut out, which
    verl leaves in; calls without an id get ``call_0``, …, and their results, which stand in the
    same order, likewise.
    """
    found, waiting, count = [], [], 0
    for place, message in enumerate(messages):
        plain = {**message, "content": _without_media(message.get("content"))}
        if place >= opening and plain["role"] == "assistant":
            plain["content"] = _without_tokens(plain["content"], special_tokens)
            if calls := message.get("tool_calls"):
                plain["tool_calls"] = [
                    _plain_call(call, count + offset) for offset, call in enumerate(calls)
                ]
                count += len(calls)
            waiting = [call["id"] for call in plain.get("tool_calls", ())]
        elif place >= opening and plain["role"] == "tool" and waiting:
            plain.setdefault("tool_call_id", waiting.pop(0))
        found.append(plain)
    return found


def _plain_call(call: dict[str, Any], number: int) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = msgspec.json.encode(function.get("arguments")).decode()
    return {"id": f"call_{number}", **call, "function": function}


def _without_tokens(content: Any, tokens: Sequence[str]) -> Any:
    if not isinstance(content, str):
        return content
    for token in tokens:
        if token not in THINK_TAGS:  # they say where the answer begins
            content = content.replace(token, "")
    return content.strip()


def _without_media(content: Any) -> Any:
    """A content's parts without images and videos, which verl carries beside the messages."""
    if not isinstance(content, list):
        return content
    return [
        {key: value for key, value in part.items() if key in ("type", "text")}
        if isinstance(part, dict)
        else part
        for part in content
    ]
