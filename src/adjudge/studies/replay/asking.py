"""Who is asked the dumped prompts again, and the file in which each reply is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import nearest, validate
from adjudge.engine.loop import run_blocking
from adjudge.engine.tasks import run_all
from adjudge.errors import (
    PASSING_KINDS,
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.table import NOT_ABOUT_REPLIES, JudgeTable, build_judge
from adjudge.rewards.spec import RewardSpec
from adjudge.studies.ifeval.files import Problem, tolerant_rows

__all__ = ["Answers", "Asked", "Judge", "ask", "find_judge"]

Asked = tuple[str, int]
"""The SHA-256 of a prompt, and the number of the draw."""

_SILENT = 16
"""So many passing failures and no reply: the server is away."""


class Judge(msgspec.Struct, frozen=True):
    """A judge to ask: ``identity`` is a digest of all that its replies depend on."""

    name: str
    model: ChatModel
    identity: str
    sampling: dict[str, Any]


def find_judge(
    name: str, *, api_key_env: str | None = None, sampling: Mapping[str, Any] | None = None
) -> Judge:
    """``http://HOST/v1#MODEL``, a reward spec with one judge, or ``SPEC.toml#JUDGE``.

    A trained judge's folder stands for the spec in it. ``sampling`` goes over the judge's own.
    Raises :class:`ConfigError`.
    """
    place, _, chosen = name.partition("#")
    sampling = dict(sampling or {})
    if place.startswith(("http://", "https://")):
        if not chosen:
            raise ConfigError(f"--judge {name}: add the model's name: {place}#MODEL")
        kind = "vllm" if api_key_env is None else "openai"
        given: dict[str, Any] = {"type": kind, "model": chosen, "base_url": place}
        if api_key_env is not None:
            given["api_key_env"] = api_key_env
        return _built(name, chosen, given | sampling, None)
    if api_key_env is not None:
        raise ConfigError("--api-key-env: goes with --judge http://HOST/v1#MODEL")
    if not Path(place).exists():
        raise ConfigError(f"--judge {name}: no such spec (or http://HOST/v1#MODEL)")
    judges = RewardSpec.load(place).judges
    if not chosen and len(judges) == 1:
        chosen = next(iter(judges))
    if chosen not in judges:
        hint = nearest(chosen, judges) if chosen else f"; name one: {place}#JUDGE"
        has = ", ".join(judges) or "none"
        raise ConfigError(f"--judge {name}: there is no judge {chosen!r}{hint} (it has: {has})")
    given = judges[chosen].model_dump(exclude_unset=True) | sampling
    folder = Path(place) if Path(place).is_dir() else Path(place).parent
    return _built(place, chosen, given, folder)


def _built(where: str, name: str, given: dict[str, Any], folder: Path | None) -> Judge:
    table = validate(JudgeTable, given, f"--judge {where}")
    if table.task == "score":
        raise ConfigError(f"--judge {where}: {name} is a scalar judge, and reads no prompts")
    model = build_judge(name, table, where=f"--judge {where}", folder=folder)
    about = {key: value for key, value in given.items() if key not in NOT_ABOUT_REPLIES}
    said = msgspec.json.encode([about, model.fingerprint], order="sorted")
    drawn: dict[str, Any] = {
        key: given[key] for key in ("temperature", "max_tokens", "seed") if key in given
    }
    return Judge(name, model, sha256(said).hexdigest()[:16], drawn)


class Answers:
    """``path``, where replies are kept as they come, a line each; only good ones are not asked
    again. Lines that a crash left are passed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._rows: dict[Asked, dict[str, Any]] = {}
        if not path.exists():
            return
        for _, row in tolerant_rows(path, self.problems):
            sha, draw = row.get("prompt_sha256"), row.get("draw")
            if isinstance(sha, str) and type(draw) is int and isinstance(row.get("text"), str):
                self._rows[sha, draw] = row  # failures are asked again
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")  # what follows starts on a line of its own

    def has(self, asked: Asked) -> bool:
        """Whether there is a reply."""
        return isinstance(self.of(asked).get("text"), str)

    def of(self, asked: Asked) -> dict[str, Any]:
        """The row: ``text`` and ``finish_reason``, or ``error``; empty for what was not asked."""
        return self._rows.get(asked, {})

    def keep(self, asked: Asked, said: Reply | GradingFailure) -> None:
        """Append a reply, or what kept it from coming."""
        row: dict[str, Any] = {"prompt_sha256": asked[0], "draw": asked[1]}
        if isinstance(said, GradingFailure):
            row["error"] = {"kind": said.kind.value, "message": str(said)}
        else:
            text = said.text.encode("utf-8", "replace").decode()
            row |= {"text": text, "finish_reason": said.finish_reason, "model": said.model}
        self._rows[asked] = row
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")


def ask(
    judge: Judge,
    prompts: Mapping[str, Sequence[Mapping[str, Any]]],
    todo: Sequence[Asked],
    answers: Answers,
    *,
    concurrency: int,
    on_done: Callable[[], None] = lambda: None,
) -> None:
    """Ask ``todo``, each once; ``prompts`` has the messages by SHA-256.

    Raises :class:`JudgeAuthError` for a refused key and :class:`JudgeUnavailable` for a server that
    answers nothing; every other failure is kept beside the replies.
    """
    if todo:
        run_blocking(_ask(judge, prompts, todo, answers, concurrency, on_done))


async def _ask(
    judge: Judge,
    prompts: Mapping[str, Sequence[Mapping[str, Any]]],
    todo: Sequence[Asked],
    answers: Answers,
    concurrency: int,
    on_done: Callable[[], None],
) -> None:
    waiting, silent = iter(todo), 0

    async def worker() -> None:
        nonlocal silent
        for sha, draw in waiting:
            said: Reply | GradingFailure
            try:
                said = await judge.model.achat(prompts[sha], draw=draw)
            except GradingFailure as failure:
                said = failure
            answers.keep((sha, draw), said)
            on_done()
            if not isinstance(said, GradingFailure):
                silent = -1
            elif said.kind is ErrorKind.AUTH:
                raise JudgeAuthError(str(said))
            elif said.kind in PASSING_KINDS and silent >= 0:
                silent += 1
                if silent >= _SILENT:
                    raise JudgeUnavailable(f"no reply, {silent} failures: {said}")

    await run_all(worker() for _ in range(min(concurrency, len(todo))))
