"""Chat messages: their text, the question and the answer of a conversation, a trajectory's events.

Messages are read as people really write them: content as text, null or a list of parts; a prompt as
text or as messages; a conversation as a list or as its JSON. A trajectory is cut into events: one
turn of the assistant, and what came back from it. A judge reads messages as a transcript
(:func:`render_value`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from adjudge.errors import ErrorKind, Fields, GradingFailure, Metadata
from adjudge.text import replace_surrogates


def content_text(content: object) -> str:
    """The text of a message's ``content``: a string, null, or a list of content parts.

    Parts that are not text (images, audio) and those of thinking contribute nothing. Raises
    ``GradingFailure(invalid_input)`` for content that is neither, and for a part of another form.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_part_text, content))
    raise _invalid_messages(
        f"a message's content must be text or a list of parts, not a {type(content).__name__}"
    )


TEXT_PARTS = ("text", "input_text", "output_text", "summary_text")
THINKING_PARTS = ("thinking", "reasoning", "redacted_thinking", "reasoning_text")
MEDIA_PARTS = frozenset(
    {
        *("image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video"),
        *("video_url", "file", "input_file", "document", "blob", "uri"),
    }
)
"""Types of a message's parts; :mod:`adjudge.intake.parts` makes others these."""


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        kind, text = part.get("type"), part.get("text")
        if isinstance(kind, str) and (kind in THINKING_PARTS or kind in MEDIA_PARTS):
            return ""
        if isinstance(text, str):
            return text
        found = f"keys {', '.join(map(str, part))[:100]}"
    else:
        found = type(part).__name__
    raise _invalid_messages(f"a part of a message has no text (found {found})")


def parse_conversation(value: object) -> list[Metadata] | None:
    """``value`` as chat messages, if it is such a list or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return None
    if not isinstance(value, list | tuple) or not value:
        return None
    return list(value) if all(isinstance(m, dict) and "role" in m for m in value) else None


def prompt_messages(prompt: str | Iterable[Metadata]) -> list[Metadata]:
    """A prompt as messages: a text is one of the user's."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def read_prompt(value: object) -> list[Metadata] | None:
    """A prompt as messages: a conversation, the JSON text of one, or a text, which is the user's.

    ``None`` for a blank text and anything else.

    >>> read_prompt("Why?")
    [{'role': 'user', 'content': 'Why?'}]
    >>> read_prompt('[{"role": "user", "content": "Why?"}]') == read_prompt("Why?")
    True
    """
    if chat := parse_conversation(value):
        return chat
    return prompt_messages(value) if isinstance(value, str) and value.strip() else None


_RESULT = ("<tool_response>", "</tool_response>")
"""The results of tools, as templates of Hermes and Qwen write them in the user's turn."""


def last_question(messages: Sequence[Fields]) -> str | None:
    """The text of a conversation's last user message; ``None`` without one."""
    for message in reversed(messages):
        if message.get("role") == "user":
            text = content_text(message.get("content"))
            if not (text.startswith(_RESULT[0]) and text.rstrip().endswith(_RESULT[1])):
                return text
    return None


_LONGEST = 20_000
"""Messages; more are no trajectory that a judge could be shown."""

_UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError)
_encoder = msgspec.json.Encoder()


def _json(value: object) -> str:
    return _encoder.encode(value).decode()


def split_events(messages: object, opening_turns: int = 0) -> list[Metadata]:
    r"""The events of a trajectory, in order; none where the assistant never spoke.

    ``messages`` are in OpenAI chat format, each perhaps wrapped as ``{"message": …}``. An event is
    one assistant message with all messages up to the next one: results of tools, and what the
    environment says in the user's role. What comes before the first belongs to no event; no more do
    the first ``opening_turns`` messages, examples in the prompt among them. Fields:

    * ``index``: the event's place, from 0;
    * ``response``: the turn as text: its content, then a line ``name(arguments)`` per call;
    * ``event``: ``text``, ``tool_calls`` (as written) and ``observations`` (messages);
    * ``history``: the messages before the turn, earlier events included.

    Raises ``GradingFailure(invalid_input)`` for what is no list of messages.

    >>> events = split_events([
    ...     {"role": "user", "content": "Chop a tree."},
    ...     {"role": "assistant", "content": "I go to it.", "tool_calls": [
    ...         {"id": "a", "function": {"name": "move", "arguments": '{"to": "tree"}'}}]},
    ...     {"role": "tool", "tool_call_id": "a", "content": "There is a tree."},
    ...     {"role": "assistant", "content": "Done."},
    ... ])
    >>> [event["response"] for event in events]
    ['I go to it.\nmove({"to": "tree"})', 'Done.']
    >>> [len(event["history"]) for event in events]
    [1, 3]
    """
    turns = _parse_messages(messages)
    starts = [
        place
        for place, message in enumerate(turns)
        if place >= opening_turns and message.get("role") == "assistant"
    ]
    ends = [*starts, len(turns)][1:]
    return [
        _build_event(index, turns, start, end)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _build_event(index: int, turns: list[Fields], start: int, end: int) -> Metadata:
    turn = turns[start]
    calls = _tool_calls(turn)
    try:
        text = content_text(turn.get("content"))
        lines = [*([text] if text else []), *map(format_tool_call, calls)]
    except _UNREADABLE:
        raise _invalid_messages(
            f"messages.{start}: is nested too deeply, or no JSON data"
        ) from None
    return {
        "index": index,
        "response": "\n".join(lines),
        "event": {"text": text, "tool_calls": calls, "observations": turns[start + 1 : end]},
        "history": turns[:start],
    }


def _parse_messages(given: object) -> list[Fields]:
    if not isinstance(given, list):
        raise _invalid_messages(
            f"a trajectory is a list of chat messages, not a {type(given).__name__}"
        )
    if len(given) > _LONGEST:
        raise _invalid_messages(f"a trajectory of {len(given):,} messages; at most {_LONGEST:,} go")
    turns = []
    for place, message in enumerate(given):
        inner = message.get("message", message) if isinstance(message, Mapping) else message
        if not isinstance(inner, Mapping):
            raise _invalid_messages(
                f"messages.{place}: must be an object, not a {type(inner).__name__}"
            )
        turns.append(inner)
    return turns


def _tool_calls(turn: Fields) -> list[object]:
    """The turn's calls as written, the former ``function_call`` form included."""
    calls = turn.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    former = turn.get("function_call")
    return [former] if isinstance(former, Mapping) else []


def format_tool_call(call: object, encode: Callable[[object], str] = _json) -> str:
    """``name(arguments)`` of a tool call as it was written; ``encode`` writes what is no text."""
    inner = call.get("tool_call", call) if isinstance(call, Mapping) else call
    function = inner.get("function", inner) if isinstance(inner, Mapping) else None
    if not isinstance(function, Mapping):
        return encode(call)
    arguments = function.get("arguments", "")
    return (
        f"{function.get('name')}({arguments if isinstance(arguments, str) else encode(arguments)})"
    )


def _invalid_messages(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)


# --- what a judge is shown: a transcript of messages, or another value ----------------------------

ContentPiece = str | Fields
"""Text, or a content part that is none (an image)."""

_IMAGES = ("image_url", "input_image", "image")
_ODD = re.compile(r"[^\w.-]+")
_LONGEST_NAME = 40


class TranscriptMark(str):
    """Words of ours among a value's own: where a turn or a call begins.

    A tag is put into it that the value's author cannot know, so that no text within a turn can
    pass for another turn.
    """

    __slots__ = ()

    def with_tag(self, tag: str) -> str:
        """The words with ``tag`` in them, or without any."""
        return self.replace("\0", f"-{tag}" if tag else "")


def render_value(value: object) -> list[ContentPiece]:
    """``value`` in pieces, in order.

    Text is itself and ``None`` nothing; a list of chat messages is a transcript with its tool
    calls, a list of content parts their texts and images; everything else is JSON. Raises
    ``GradingFailure(invalid_input)`` for what JSON cannot hold. Texts that touch are one piece.
    """
    if isinstance(value, str):
        return [value]
    if value is None:
        return [""]
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        if all("role" in one for one in value):
            return join_texts(_transcript(value))
        if all("type" in one and "function" not in one for one in value):
            return join_texts(_parts(value))
    return [_shown_json(value)]


def join_texts(pieces: Sequence[ContentPiece]) -> list[ContentPiece]:
    """Neighbouring texts as one, so that nothing can hide in the seam."""
    joined: list[ContentPiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if type(piece) is str and type(last) is str:
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined


def _transcript(messages: list[Fields]) -> list[ContentPiece]:
    """Messages as numbered turns; a judge can name a step by its number."""
    pieces: list[ContentPiece] = []
    for number, message in enumerate(messages):
        name = f" {_word(message['name'])}" if isinstance(message.get("name"), str) else ""
        before = "\n\n" if number else ""
        pieces.append(TranscriptMark(f"{before}[{number}\0] {_word(message.get('role'))}{name}:\n"))
        pieces += _parts(message.get("content"))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            pieces += (TranscriptMark("\n→\0 "), format_tool_call(call, _shown_json))
    return pieces


def _word(name: object) -> str:
    """A role or a name as one word; it stands in a line of ours."""
    return _ODD.sub("_", str(name))[:_LONGEST_NAME]


def _parts(content: object) -> list[ContentPiece]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return [_shown_json(content)]
    pieces: list[ContentPiece] = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        elif isinstance(part, Mapping) and part.get("type") in _IMAGES:
            pieces.append(part)
        else:
            pieces.append(_shown_json(part))
    return pieces


def _shown_json(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except RecursionError:  # a policy may have nested it
        return f"[a {type(value).__name__} that is nested too deeply to be shown]"
    except UnicodeEncodeError:  # half a character, which a policy may have written
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return replace_surrogates(text)
    except (TypeError, ValueError, OverflowError):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"a {type(value).__name__} cannot be shown to a judge: it is no text, no messages and "
            "no JSON",
        ) from None
