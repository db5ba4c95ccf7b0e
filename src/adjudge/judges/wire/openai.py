"""The ``/chat/completions`` format: what is sent, which field takes each wish, the replies.

Replies are read as OpenAI defines them and as the other servers really write them. Streamed ones
are server-sent events, which are cut into their messages here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from adjudge.errors import Fields, Metadata
from adjudge.judges.base import (
    ChatCall,
    HttpRequest,
    HttpResponse,
    Reply,
    TokenLogprobs,
    find_ignored_features,
)
from adjudge.judges.presets import PRESETS, Preset
from adjudge.judges.wire import (
    ReplyBody,
    build_headers,
    cut_failure,
    decode_body,
    encode_body,
    malformed_failure,
    parse_token_count,
    parse_usage,
    part_thinking,
    refused_failure,
    response_failure,
)
from adjudge.text import THINK_OPEN
from adjudge.types import Usage

STREAM_END = b"[DONE]"
"""What chat-completions servers send as the last message of a stream."""

_EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


def is_event_stream(body: bytes, content_type: str) -> bool:
    """Whether ``body`` is a stream of events, by its first field or by its content type."""
    if body.startswith(b"{"):
        return False
    return body.lstrip().startswith(_EVENT_FIELDS) or content_type.startswith("text/event-stream")


def parse_events(body: bytes, *, cut: bool = False) -> Iterator[bytes]:
    r"""The ``data`` of each event, in order; events without data (comments, pings) are left out.

    Lines may end in CRLF, LF or CR. Several data lines of one event are joined by a line feed. What
    follows the last blank line counts as an event unless the stream was ``cut``: then it may be
    half of one. Source: the event stream format of the HTML standard, section 9.2.

    >>> list(parse_events(b': ping\n\ndata: {"a":1}\n\ndata: [DONE]'))
    [b'{"a":1}', b'[DONE]']
    """
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    blocks = body.removeprefix(b"\xef\xbb\xbf").split(b"\n\n")
    if cut:
        blocks.pop()
    for block in blocks:
        if b"\n" not in block:
            if block.startswith(b"data:"):
                yield _field_value(block)
            continue
        data = [_field_value(line) for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


def _field_value(line: bytes) -> bytes:
    """What follows ``data:`` and one optional space."""
    return line[6:] if line[5:6] == b" " else line[5:]


_ABORTED_REASONS = ("error", "abort", "aborted")
"""Finish reasons with which servers and proxies say that they gave up in the middle."""


class _Message(msgspec.Struct):
    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    refusal: object = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: object = None
    index: object = 0
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class _Body(ReplyBody):
    choices: list[_Choice] | None = None


class _Top(msgspec.Struct):
    token: str
    logprob: float | None = None


class _Token(_Top):
    top_logprobs: list[_Top] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


_logprobs = msgspec.json.Decoder(_Logprobs | None)


def parse_completion(call: ChatCall, response: HttpResponse, *, streamed: bool) -> Reply:
    """The reply in a 2xx response, read as what it is: a JSON object or a stream of events.

    ``streamed``: a stream was asked for, so that a body cut short is ``truncated`` and not
    ``connection``. Raises ``GradingFailure`` for what is no complete reply.
    """
    body = response.body
    if is_event_stream(body, response.headers.get("content-type", "")):
        return _build_reply(call, response, _join_stream(response))
    if response.cut:
        raise cut_failure(response, streamed=streamed and bool(body))
    return _build_reply(call, response, _decode(response, body))


def _decode(response: HttpResponse, data: bytes) -> _Body:
    return decode_body(response, data, _Body, "chat completion")


def _join_stream(response: HttpResponse) -> _Body:
    """The events of a stream as one completion; ``truncated`` when it ends before its end."""
    contents: list[_Message] = []
    tokens: list[_Token] = []
    whole = _Body()
    ended, finish, wanted = False, None, None
    for data in parse_events(response.body, cut=response.cut):
        if data == STREAM_END:
            ended = True
            break
        body = _decode(response, data)
        whole.usage = body.usage or whole.usage
        whole.model = whole.model or body.model
        for choice in body.choices or ():
            wanted = choice.index if wanted is None else wanted
            if choice.index != wanted:
                continue
            if (part := choice.delta or choice.message) is not None:
                contents.append(part)
            finish = choice.finish_reason or finish
            tokens += _parse_tokens(choice.logprobs) or ()
    if not ended and finish is None:
        raise cut_failure(response, streamed=bool(contents))
    message = _Message(
        content=_merge_pieces([part.content for part in contents]),
        reasoning_content=_merge_pieces(
            [part.reasoning_content or part.reasoning for part in contents]
        ),
        refusal=_merge_pieces([part.refusal for part in contents]),
    )
    raw = msgspec.Raw(msgspec.json.encode(_Logprobs(tokens))) if tokens else msgspec.Raw(b"null")
    if contents:
        whole.choices = [_Choice(message=message, finish_reason=finish, logprobs=raw)]
    return whole


def _merge_pieces(pieces: list[object]) -> object:
    """The pieces of one field; a plain text when all are, else a list of parts."""
    pieces = [piece for piece in pieces if piece]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    parts: list[object] = []
    for piece in pieces:
        parts += piece if isinstance(piece, list) else [piece]
    return parts


def _build_reply(call: ChatCall, response: HttpResponse, body: _Body) -> Reply:
    if not body.choices:
        raise malformed_failure(response, "there are no choices in it")
    choice = body.choices[0]
    message = choice.message or choice.delta
    if message is None:
        raise malformed_failure(response, "its choice has no message")
    finish = choice.finish_reason if isinstance(choice.finish_reason, str) else None
    text, reasoning, refused = _message_texts(message)
    if refused or finish == "content_filter":
        why = "the model refused" if refused else "the provider's content filter withheld the reply"
        raise refused_failure(response, why)
    if finish in _ABORTED_REASONS:
        raise malformed_failure(response, f"generation broke off (finish reason {finish!r})")
    logprobs = _token_logprobs(choice.logprobs, call) if call.logprobs else None
    usage = _parse_usage(body.usage)
    return Reply(
        text=text,
        reasoning=reasoning,
        finish_reason=finish,
        logprobs=logprobs,
        usage=usage,
        model=body.model if isinstance(body.model, str) else None,
        ignored=find_ignored_features(call, text, finish, logprobs, usage),
    )


def _message_texts(message: _Message) -> tuple[str, str, bool]:
    """``(text, reasoning, refused)``, whatever form the server gives them."""
    content, refusal = message.content, message.refusal
    thought = _part_texts(message.reasoning_content) or _part_texts(message.reasoning)
    refused = isinstance(refusal, str) and bool(refusal)
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
        refused = refused or "refusal" in kinds
        thinking = [p for p, kind in zip(content, kinds, strict=True) if kind == "thinking"]
        content = [p for p, kind in zip(content, kinds, strict=True) if kind != "thinking"]
        thought += "".join(_part_texts(part.get("thinking")) for part in thinking)
    text = _part_texts(content)
    # Where the server parts them itself, a tag in the text is only a mention of one.
    if "think>" in text and (not thought or text.lstrip().startswith(THINK_OPEN)):
        text, thought = part_thinking(text, thought)
    return text, thought, refused


def _part_texts(content: object) -> str:
    """The text of a string, of a content part, or of a list of either; '' for anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        text = content.get("text")
        return text if isinstance(text, str) else ""
    if isinstance(content, list):
        return "".join(_part_texts(part) for part in content if not isinstance(part, list))
    return ""


def _parse_usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    details = raw.get("prompt_tokens_details")
    cached = parse_token_count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = parse_token_count(raw.get("prompt_cache_hit_tokens"))  # DeepSeek's name for it
    return parse_usage(raw, "prompt_tokens", "completion_tokens", cached)


def _parse_tokens(raw: msgspec.Raw) -> list[_Token] | None:
    try:
        found = _logprobs.decode(raw)
    except (ValueError, RecursionError):
        return None
    return found.content if found is not None else None


_USUAL_TOP = 20
"""Likely tokens that are asked for and kept, beside those that are a choice's text."""


def _token_logprobs(raw: msgspec.Raw, call: ChatCall) -> list[TokenLogprobs] | None:
    """Log-probabilities with the most likely tokens; ``None`` when there are none to speak of.

    A null stands for −∞ (probability 0), and of two entries with the same text the first counts.
    Of a long list that was asked for to find the choices, the rest is left out: replies are kept.
    """
    found = []
    most, choices = call.sampling.get("top_logprobs"), frozenset(call.choices or ())
    most = most if type(most) is int else _USUAL_TOP
    for token in _parse_tokens(raw) or ():
        top: dict[str, float] = {}
        for place, entry in enumerate(token.top_logprobs or ()):
            if place < most or entry.token.strip() in choices:
                top.setdefault(entry.token, _logprob_or_minus_inf(entry.logprob))
        found.append(TokenLogprobs(token.token, _logprob_or_minus_inf(token.logprob), top))
    return found if any(token.top for token in found) else None


def _logprob_or_minus_inf(logprob: float | None) -> float:
    return float("-inf") if logprob is None else logprob


_MAX_CACHED_SCHEMAS = 64


class OpenAIWire:
    """Stateless: what to send is fixed at construction, the rest is in the call.

    ``key`` goes into the ``Authorization`` header; ``None`` sends none. ``stream`` asks for a
    stream, which some models insist on; either way a reply is read as what it is, a JSON object or
    events. ``features`` as in :mod:`adjudge.judges.base`.

    With ``seed`` in the sampling, draw *k* is sent ``seed + k``: with one seed, k votes would be
    one vote. So has every attempt after a reply without a verdict another seed.
    """

    def __init__(
        self,
        preset: Preset = PRESETS["openai"],
        key: str | None = None,
        *,
        features: frozenset[str] | None = None,
        stream: bool = False,
    ) -> None:
        self._features = preset.features if features is None else features
        self._choices_field = preset.choices_field if "choices" in self._features else None
        self._top = preset.max_top_logprobs
        self._max_reason = preset.max_reason
        self._stream = stream
        self._formats: dict[bytes, msgspec.Raw] = {}
        self._headers = build_headers(key)

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST for ``call``; ``GradingFailure(invalid_input)`` for what cannot be sent."""
        body: Metadata = {**call.sampling, "model": call.model, "messages": call.messages}
        if call.seed_step and type(seed := body.get("seed")) is int:
            body["seed"] = seed + call.seed_step
        if call.schema is not None and "schema" in self._features:
            body["response_format"] = self._response_format(call.schema)
        if call.choices is not None and self._choices_field is not None:
            body[self._choices_field] = _choice_list(self._choices_field, call.choices)
        if call.logprobs and "logprobs" in self._features:
            body["logprobs"] = True
            # A choice may be far from likely before a grammar rules out the rest.
            most = self._top if self._choices_field and call.choices else _USUAL_TOP
            body.setdefault("top_logprobs", min(most, self._top))
        if self._stream:
            body["stream"] = True
            if "stream_usage" in self._features:
                body["stream_options"] = {"include_usage": True}
        return HttpRequest(
            path="/chat/completions",
            headers=self._headers,
            body=encode_body(body),
        )

    def _response_format(self, schema: Fields) -> msgspec.Raw:
        """The encoded form of a schema, kept for the next call: judges ask with few schemas."""
        encoded = encode_body(schema)
        form = self._formats.get(encoded)
        if form is None:
            form = msgspec.Raw(encode_body(_response_format(schema, self._max_reason)))
            if len(self._formats) < _MAX_CACHED_SCHEMAS:
                self._formats[encoded] = form
        return form

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The reply in ``response``, or the ``GradingFailure`` that it stands for."""
        if not 200 <= response.status < 300:
            raise response_failure(response)
        return parse_completion(call, response, streamed=self._stream)


def _response_format(schema: Fields, max_reason: int | None) -> Metadata:
    name = schema.get("title")
    if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 64):
        name = "verdict"
    # Strict mode is answered with 400 unless every object in the schema is closed.
    bound = schema if max_reason is None else _bound_reasons(schema, max_reason)
    form = {"name": name, "schema": bound, "strict": _is_closed_schema(schema)}
    return {"type": "json_schema", "json_schema": form}


def _bound_reasons(schema: object, most: int) -> object:
    """``schema`` with at most ``most`` characters for each ``reason`` that has no bound."""
    if isinstance(schema, list | tuple):
        return [_bound_reasons(part, most) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    bound = {key: _bound_reasons(part, most) for key, part in schema.items()}
    if bound.get("reason") == {"type": "string"}:
        bound["reason"] = {"type": "string", "maxLength": most}
    return bound


def _is_closed_schema(schema: object) -> bool:
    """Whether every object in ``schema`` forbids further keys and requires all of its own."""
    if isinstance(schema, list | tuple):
        return all(_is_closed_schema(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        if schema.get("additionalProperties") is not False:
            return False
        if set(properties or ()) - set(schema.get("required") or ()):
            return False
    return all(_is_closed_schema(part) for part in schema.values())


# Not re.escape: it escapes spaces and dashes too, which other regular expressions refuse.
_REGEX_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in r"\.^$*+?{}[]|()"})
_GRAMMAR_ESCAPES = str.maketrans(
    {sign: f"\\{sign}" for sign in '"\\'}
    | {chr(code): f"\\x{code:02X}" for code in (*range(32), 127)}
)
"""GBNF literals know fewer escapes than JSON."""


def _choice_list(field: str, choices: Sequence[str]) -> object:
    if field == "structured_outputs":
        return {"choice": list(choices)}
    if field == "grammar":
        literals = (choice.translate(_GRAMMAR_ESCAPES) for choice in choices)
        return "root ::= " + " | ".join(f'"{literal}"' for literal in literals)
    return "(" + "|".join(choice.translate(_REGEX_ESCAPES) for choice in choices) + ")"
