"""Judges that ask nobody: stated replies, and recorded ones."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec

from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.judges.base import ChatCall, ChatModel, Reply, build_text_reply
from adjudge.judges.cassette import CacheReport, ReplyCache
from adjudge.judges.presets import ALL_FEATURES, PRESETS, check_features
from adjudge.messages import content_text
from adjudge.types import Message

ScriptedReply = str | Reply | ErrorKind | GradingFailure | Fields
"""A stated reply: text (thinking is parted as ever), a whole reply, a failure, or JSON."""

_Messages = Sequence[Message]
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


class RecordedModel(ChatModel):
    """Gives back recorded replies, bit for bit; a call that was not recorded fails.

    ``path``: a cassette that another model recorded (its cache, mode ``record``). ``model`` and
    ``provider``: whose replies, needed only when the cassette holds those of several. ``sampling``:
    the parameters that the recorded model was constructed with (``temperature``, ``max_tokens``,
    …); by default those that all its recorded calls have in common. What a call passes itself goes
    before them. ``features``: what it was said to honour, where that was not the provider's
    default (of an address: all but ``choices``); prompts depend on it.

    :meth:`achat` raises ``GradingFailure(unsupported)`` for a call that is not
    in the cassette and names what changed since; :meth:`report` lists what was never asked. Models
    of one process share one opened cassette. Pickling carries the arguments only. Raises
    :class:`~adjudge.errors.ConfigError` when the file cannot serve or the judge is not in it.

    >>> from tempfile import TemporaryDirectory
    >>> from adjudge import OpenAIChatModel
    >>> from adjudge.judges import ReplyCache
    >>> from adjudge.mock import start_mock
    >>> question = [{"role": "user", "content": "How good is this?"}]
    >>> with TemporaryDirectory() as folder, start_mock() as url:
    ...     cache = ReplyCache(f"{folder}/replies.db", sampled=True)
    ...     judge = OpenAIChatModel(model="m", base_url=url, cache=cache)
    ...     first = judge.chat(question)
    ...     _ = cache.close()
    ...     again = RecordedModel(f"{folder}/replies.db").chat(question)
    >>> again.text == first.text, again.provenance.source
    (True, 'cassette')
    """

    kind = "recorded"

    def __init__(
        self,
        path: Path | str,
        model: str | None = None,
        *,
        provider: str | None = None,
        sampling: Fields | None = None,
        features: Iterable[str] | None = None,
    ) -> None:
        self.path = Path(path)
        self._arguments: Metadata = {
            "model": model, "provider": provider, "sampling": sampling, "features": features
        }  # fmt: skip
        self._cassette = _open_cassette(self.path)
        judges = self._cassette.judges()
        recorded = sorted({judge[:2] for judge in judges}, key=lambda judge: (judge[1], judge[0]))
        self.provider, self.model = _choose_judge(self.path, recorded, model, provider)
        of_this = [judge[2] for judge in judges if judge[:2] == (self.provider, self.model)]
        self.sampling = _common_sampling(of_this) if sampling is None else dict(sampling)
        # An embedded judge's name is followed by the digest of its model.
        name = "embedded" if self.provider.startswith("embedded ") else self.provider
        # One that is known by its address only may have been sent no choices.
        default = PRESETS.get(name, PRESETS["openai"]).features
        self.features = default if features is None else check_features(features, "a judge")

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"control_tokens": self.control_tokens}
        return partial(RecordedModel, **self._arguments), (self.path,), state

    @property
    def fingerprint(self) -> str:
        """The digest of the cassette."""
        return sha256(self.path.read_bytes()).hexdigest()

    @property
    def fence_key(self) -> bytes:
        """The cassette's 32 bytes for tags that fence text."""
        return self._cassette.fence_key

    async def answer(self, call: ChatCall) -> Reply:
        """The recorded reply to this call; see the class for what is raised."""
        key = self._cassette.key(call, self.provider)
        return cast("Reply", self._cassette.get(key))  # a replay answers or raises

    def report(self) -> CacheReport:
        """Hits, misses and calls never asked, of all models that share this cassette here."""
        return self._cassette.report()


_cassettes: weakref.WeakValueDictionary[Path, ReplyCache] = weakref.WeakValueDictionary()


def _open_cassette(path: Path) -> ReplyCache:
    """The process's one replay of ``path``, open as long as a model uses it."""
    path = path.absolute()
    return _cassettes.setdefault(path, _cassettes.get(path) or ReplyCache(path, "replay"))


def _choose_judge(
    path: Path, recorded: list[tuple[str, str]], model: str | None, provider: str | None
) -> tuple[str, str]:
    """The one recorded (provider, model) that is meant."""
    fitting = [
        judge for judge in recorded if provider in {None, judge[0]} and model in {None, judge[1]}
    ]
    if not recorded:
        raise ConfigError(f"path: {path} has no recorded calls")
    if len(fitting) != 1:
        key = "provider" if len({name for _, name in fitting}) == 1 else "model"
        holds = ", ".join(f"{name!r} of provider {by!r}" for by, name in recorded)
        raise ConfigError(
            f"{key}: must name one of the judges in {path} (found model {model!r} of provider "
            f"{provider!r}; allowed: {holds})"
        )
    return fitting[0]


def _common_sampling(samplings: list[Metadata]) -> Metadata:
    """The parameters with one value in all of ``samplings``."""
    first, *others = samplings
    return {
        name: value
        for name, value in first.items()
        if all(name in other and repr(other[name]) == repr(value) for other in others)
    }
