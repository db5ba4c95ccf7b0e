"""``ScriptedModel``: a judge whose replies are stated; the test double for graders and specs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ALL_FEATURES, ChatCall, ChatModel, Reply, build_text_reply
from adjudge.messages import content_text

ScriptedReply = str | Reply | ErrorKind | GradingFailure | Mapping[str, Any]
"""A stated reply: text (thinking is parted as ever), a whole reply, a failure, or JSON."""

_Messages = Sequence[Mapping[str, Any]]
ReplyScript = (
    ScriptedReply
    | Sequence[ScriptedReply]
    | Callable[[_Messages], ScriptedReply | Awaitable[ScriptedReply]]
)


class ScriptedModel(ChatModel):
    """Replies by a stated function of the messages; nothing is sent anywhere.

    ``script`` is one of

    - a function of the messages, plain or ``async``, which may raise ``GradingFailure``;
    - a list of replies: draw *k* gets entry *k*, from the start again after the last, and what is
      asked again after a reply without a verdict the entry after. Calls do not use the list up, so
      the answers are the same at any concurrency;
    - a dict with text to look for in the last message as keys: the first key found wins, the empty
      key fits all;
    - one text or ``Reply`` for all calls.

    A reply is text, a ``Reply``, a mapping that is sent as JSON, or an ``ErrorKind`` or
    ``GradingFailure`` to raise. Picklable when the script is. A call that the script has no reply
    for raises ``GradingFailure(unsupported)``.

    >>> judge = ScriptedModel({"Paris": {"score": 1}, "": {"score": 0}})
    >>> judge.chat([{"role": "user", "content": "Is it Paris?"}]).text
    '{"score":1}'
    """

    kind = "scripted"
    features = ALL_FEATURES

    def __init__(self, script: ReplyScript, *, model: str = "scripted") -> None:
        if not callable(script) and not script and script != "":
            raise ConfigError("script: must have at least one reply (found none)")
        self.model = model
        self._script = script

    async def answer(self, call: ChatCall) -> Reply:
        """The stated reply."""
        found = self._find(call.messages, call.draw + call.attempt)
        if isinstance(found, Awaitable):
            found = await found
        return _build_reply(call, found)

    @property
    def fingerprint(self) -> str:
        """The digest of the file that a script function stands in."""
        if not callable(self._script):
            return ""
        code = getattr(self._script, "__code__", None)
        try:
            return sha256(Path(code.co_filename).read_bytes()).hexdigest() if code else ""
        except OSError:  # typed at a prompt
            return ""

    def _find(self, messages: _Messages, entry: int) -> Any:
        script = self._script
        if callable(script):
            return script(messages)
        if isinstance(script, Mapping):
            last = content_text(messages[-1].get("content")) if messages else ""
            for words, reply in script.items():
                if words in last:
                    return reply
            raise GradingFailure(ErrorKind.UNSUPPORTED, "the script has no reply for this call")
        if isinstance(script, list | tuple):
            return script[entry % len(script)]
        return script


def _build_reply(call: ChatCall, found: ScriptedReply) -> Reply:
    if isinstance(found, Reply):
        return found
    if isinstance(found, GradingFailure):
        raise GradingFailure(found.kind, str(found), dict(found.metadata))
    if isinstance(found, ErrorKind):
        raise GradingFailure(found, "scripted")
    whole = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return build_text_reply(call, whole)
