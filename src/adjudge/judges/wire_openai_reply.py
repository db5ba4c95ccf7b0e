"""Reading chat completions, as OpenAI defines them and the other servers really write them."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse, Reply, TokenLogprobs
from adjudge.judges.sse import DONE, events, looks_like_events
from adjudge.judges.wire_errors import error_in_success, malformed
from adjudge.judges.wire_text import count, not_honoured, split_thinking
from adjudge.types import Usage

__all__ = ["read_reply"]

_BROKEN_OFF = ("error", "abort", "aborted")
"""Finish reasons with which servers and proxies say that they gave up in the middle."""


class _Message(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: Any = None
    index: Any = 0
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    model: Any = None
    error: Any = None


class _Top(msgspec.Struct):
    token: str
    logprob: float | None = None


class _Token(_Top):
    top_logprobs: list[_Top] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


_body = msgspec.json.Decoder(_Body)
_logprobs = msgspec.json.Decoder(_Logprobs | None)


def read_reply(call: ChatCall, response: HttpResponse, *, streamed: bool) -> Reply:
    """The reply in a 2xx response, read as what it is: a JSON object or a stream of events.

    ``streamed``: a stream was asked for, so that a body cut short is ``truncated`` and not
    ``connection``. Raises ``GradingFailure`` for what is no complete reply.
    """
    body = response.body
    if looks_like_events(body, response.headers.get("content-type", "")):
        return _reply(call, response, _joined(response))
    if response.cut:
        raise _cut_off(response, streamed=streamed and bool(body))
    return _reply(call, response, _decode(response, body))


def _decode(response: HttpResponse, data: bytes) -> _Body:
    try:
        body = _body.decode(data)
    except msgspec.ValidationError:
        raise _no_completion(response, data) from None
    except (ValueError, RecursionError):
        raise malformed(response, "its body is not complete JSON") from None
    if body.error:
        raise error_in_success(response, {"error": body.error})
    return body


def _no_completion(response: HttpResponse, data: bytes) -> GradingFailure:
    """JSON, but not in the format: an error in a shape of its own, or something else."""
    try:
        decoded = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return malformed(response, "its body is not readable JSON")
    if isinstance(decoded, dict) and decoded.get("error"):
        return error_in_success(response, decoded)
    return malformed(response, "its body is no chat completion")


def _joined(response: HttpResponse) -> _Body:
    """The events of a stream as one completion; ``truncated`` when it ends before its end."""
    contents: list[_Message] = []
    tokens: list[_Token] = []
    whole = _Body()
    ended, finish, wanted = False, None, None
    for data in events(response.body, cut=response.cut):
        if data == DONE:
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
            tokens += _tokens(choice.logprobs) or ()
    if not ended and finish is None:
        raise _cut_off(response, streamed=bool(contents))
    message = _Message(
        content=_merged([part.content for part in contents]),
        reasoning_content=_merged([part.reasoning_content or part.reasoning for part in contents]),
        refusal=_merged([part.refusal for part in contents]),
    )
    raw = msgspec.Raw(msgspec.json.encode(_Logprobs(tokens))) if tokens else msgspec.Raw(b"null")
    if contents:
        whole.choices = [_Choice(message=message, finish_reason=finish, logprobs=raw)]
    return whole


def _merged(pieces: list[Any]) -> Any:
    """The pieces of one field; a plain text when all are, else a list of parts."""
    pieces = [piece for piece in pieces if piece]
    if all(type(piece) is str for piece in pieces):
        return "".join(pieces)
    parts: list[Any] = []
    for piece in pieces:
        parts += piece if isinstance(piece, list) else [piece]
    return parts


def _cut_off(response: HttpResponse, *, streamed: bool) -> GradingFailure:
    metadata = {"status": response.status, "headers": {}}
    if streamed:
        what = "the stream ended before its end; half an answer is no answer"
        return GradingFailure(ErrorKind.TRUNCATED, what, metadata)
    what = "the connection ended in the middle of the response"
    return GradingFailure(ErrorKind.CONNECTION, what, metadata)


def _reply(call: ChatCall, response: HttpResponse, body: _Body) -> Reply:
    if not body.choices:
        raise malformed(response, "there are no choices in it")
    choice = body.choices[0]
    message = choice.message or choice.delta
    if message is None:
        raise malformed(response, "its choice has no message")
    finish = choice.finish_reason if isinstance(choice.finish_reason, str) else None
    text, reasoning, refused = _texts(message)
    if refused or finish == "content_filter":
        why = "the model refused" if refused else "the provider's content filter withheld the reply"
        raise GradingFailure(ErrorKind.REFUSED, why, {"status": response.status, "headers": {}})
    if finish in _BROKEN_OFF:
        raise malformed(response, f"generation broke off (finish reason {finish!r})")
    logprobs = _token_logprobs(choice.logprobs) if call.logprobs else None
    usage = _usage(body.usage)
    return Reply(
        text=text,
        reasoning=reasoning,
        finish_reason=finish,
        logprobs=logprobs,
        usage=usage,
        model=body.model if isinstance(body.model, str) else None,
        ignored=not_honoured(call, text, finish, logprobs, usage),
    )


def _texts(message: _Message) -> tuple[str, str, bool]:
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
    if "think>" in text and (not thought or text.lstrip().startswith("<think>")):
        text, inline = split_thinking(text)
        thought = f"{thought}\n{inline}" if thought and inline else thought or inline
    return text, thought, refused


def _part_texts(content: Any) -> str:
    """The text of a string, of a content part, or of a list of either; '' for anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        text = content.get("text")
        return text if isinstance(text, str) else ""
    if isinstance(content, list):
        return "".join(_part_texts(part) for part in content if not isinstance(part, list))
    return ""


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    sent, received = count(raw.get("prompt_tokens")), count(raw.get("completion_tokens"))
    if sent is None and received is None:
        return None
    details = raw.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = count(raw.get("prompt_cache_hit_tokens"))  # DeepSeek's name for it
    return Usage(
        input_tokens=sent or 0,
        output_tokens=received or 0,
        cached_tokens=min(cached or 0, sent or 0),
    )


def _tokens(raw: msgspec.Raw) -> list[_Token] | None:
    try:
        found = _logprobs.decode(raw)
    except (ValueError, RecursionError):
        return None
    return found.content if found is not None else None


def _token_logprobs(raw: msgspec.Raw) -> list[TokenLogprobs] | None:
    """Log-probabilities with the most likely tokens; ``None`` when there are none to speak of.

    A null stands for −∞ (probability 0), and of two entries with the same text the first counts.
    """
    found = []
    for token in _tokens(raw) or ():
        top: dict[str, float] = {}
        for entry in token.top_logprobs or ():
            top.setdefault(entry.token, _number(entry.logprob))
        found.append(TokenLogprobs(token.token, _number(token.logprob), top))
    return found if any(token.top for token in found) else None


def _number(logprob: float | None) -> float:
    return float("-inf") if logprob is None else logprob
