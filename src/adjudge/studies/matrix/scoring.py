"""What each judge of a study says of answers that lie in files: each text is asked about once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.config import load_toml
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ErrorKind, RunFolderError
from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.rollouts.samples import sample_from_row
from adjudge.runner.journal import Journal, sample_key
from adjudge.studies.matrix.results import Scored
from adjudge.studies.matrix.workers import progress
from adjudge.trainers.scoring import Scorer
from adjudge.training.libraries import load_libraries
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import NOWHERE
from adjudge.training.served import listening_judge
from adjudge.training.state import read_rows
from adjudge.types import GraderResult

__all__ = ["Answer", "Member", "Source", "read_answers", "read_scores", "score_sources"]

_BATCH = 256
_NOT_CONTENT = frozenset({"rollout", "prompt", "response", "messages", "finish_reason"})


class Source(NamedTuple):
    """Answers in a file: ``name`` is what scores call them by."""

    name: str
    path: Path


class Member(NamedTuple):
    """A judge of a panel, which was asked alone before: its run file, and where its scores are."""

    file: str
    target: str


class Answer(NamedTuple):
    """One answer: the step it is of, the seed of its prompt, its row, why it is none."""

    step: int
    seed: int
    sample: RewardSample
    error: str | None
    row: Mapping[str, Any]


class _Line(msgspec.Struct):
    source: str
    step: int
    values: list[float | None]
    missing: dict[str, int]
    answers: str = ""  # what was scored, by its content


class _Head(msgspec.Struct):
    spec: str


def read_answers(source: Source) -> dict[int, list[Answer]]:
    """The answers of a file by step, in the order of its rows."""
    found: dict[int, list[Answer]] = {}
    for row in read_rows(source.path):
        answer = _answer(row)
        found.setdefault(answer.step, []).append(answer)
    return found


def score_sources(
    name: str,
    file: str,
    beside: str,
    sources: Sequence[Source],
    target: str,
    members: Sequence[Member] = (),
) -> int:
    """Score what ``target`` lacks of ``sources`` by the reward of the run file ``file``; how much.

    One line a source and step: ``{source, step, values, missing, answers}``; of several the last
    counts. ``answers`` is a hash of what was scored: other answers of that name are scored anew,
    and so are those of which a score is missing for a reason that may pass. Equal texts are one
    question, unless the judge compares: it is shown a checkpoint's answers to a prompt together.
    ``beside``: the folder that the file's relative paths start from. ``members``: the judges of a
    panel, with paths from there, too; what they have said is not asked again.

    What was answered is kept in a journal beside ``target`` as it comes, so that an interrupted
    study asks on. Raises :class:`~adjudge.errors.RunFolderError` where ``target`` has scores of
    another reward, and what scoring raises.
    """
    path = Path(target)
    run, reward = _rewarded(file, beside)
    if run.judge.folder is not None:
        load_libraries()
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {(line.source, line.step): line for line in _lines(path, reward)}
    wanted = [
        (source.name, step, answers)
        for source in sources
        for step, answers in read_answers(source).items()
        if not _is_over(known.get((source.name, step)), answers)
    ]
    if not wanted:
        return 0
    said_alone = [
        Journal(_journal(Path(one.target)), _rewarded(one.file, beside)[1])
        for one in members
        if _journal(Path(one.target)).exists()
    ]
    journal = _PanelJournal(_journal(path), reward, said_alone)
    with listening_judge(run, path.parent) as (spec, _):
        said = _Asking(name, Scorer(spec, journal=journal), journal).about([a for *_, a in wanted])
    with path.open("ab") as log:
        if log.tell() == 0:
            log.write(msgspec.json.encode(_Head(reward)) + b"\n")
        for source, step, answers in wanted:
            line = _line(source, step, answers, [said(answer) for answer in answers])
            if line != known.get((source, step)):
                log.write(msgspec.json.encode(line) + b"\n")
    return len(wanted)


def read_scores(path: Path) -> dict[tuple[str, int], Scored]:
    """What a judge said, by source and step."""
    return {
        (line.source, line.step): Scored(line.values, line.missing) for line in _lines(path, None)
    }


class _Asking:
    """Asks about answers, in batches, and keeps what was said of each."""

    def __init__(self, name: str, scorer: Scorer, journal: Journal) -> None:
        self._scorer, self._journal, self._tell = scorer, journal, progress(name)
        self._said: dict[str, float | str] = {}

    def about(self, wanted: Sequence[Sequence[Answer]]) -> Callable[[Answer], float | str]:
        """Ask; gives what was said of an answer: a number, or a kind of failure."""
        whole = [[one for one in answers if one.error is None] for answers in wanted]
        if self._scorer.compares_groups is not None:
            return self._compared(whole)
        unique = {_key(answer): answer.sample for answers in whole for answer in answers}
        keys = list(unique)
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            self._ask(part, [unique[key] for key in part], part)
            self._tell("scoring", start + len(part), len(keys))
        return lambda answer: answer.error or self._said[_key(answer)]

    def _compared(self, wanted: Sequence[Sequence[Answer]]) -> Callable[[Answer], float | str]:
        for done, answers in enumerate(wanted, start=1):
            keys = [str(id(answer.sample)) for answer in answers]
            groups = [answer.sample.prompt or "" for answer in answers]
            self._ask(keys, [answer.sample for answer in answers], groups)
            self._tell("scoring", done, len(wanted))
        return lambda answer: answer.error or self._said[str(id(answer.sample))]

    def _ask(
        self, keys: Sequence[str], samples: Sequence[RewardSample], groups: Sequence[str]
    ) -> None:
        placed = [
            RewardSample(place, place, one.prompt, one.response, one.messages, one.extra)
            for place, one in enumerate(samples)
        ]
        scored = run_blocking(self._scorer.ascore(placed, groups, step=0))
        for result in scored.results:
            self._said[keys[result.original_index]] = _outcome(result)
        self._journal.flush()


class _PanelJournal(Journal):
    """A journal that also gives out what the judges of a panel said when each was asked alone."""

    def __init__(self, path: Path, spec_hash: str, members: Sequence[Journal]) -> None:
        super().__init__(path, spec_hash)
        self._members = members

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """As :meth:`Journal.take`; what the panel's own journal lacks is in its members'."""
        found = super().take(sample, grader, draw)
        for member in self._members:
            if found is not None:
                break
            found = member.take(sample, grader, draw)
        return found


def _rewarded(file: str, beside: str) -> tuple[RunFile, str]:
    """A scorer's run file, and the hash of its reward."""
    run = RunFile.from_dict(load_toml(Path(file)), where=file, folder=Path(beside))
    # Where the run starts its own judge its address is another one each time.
    return run, run.reward_spec(NOWHERE if run.starts_mock else None).hash


def _journal(target: Path) -> Path:
    return target.with_suffix(".journal.jsonl")


def _answer(row: Mapping[str, Any]) -> Answer:
    missing, columns = row.get("error"), row.get("columns") or {}
    if not row["messages"]:  # an episode that failed; an evaluation says why under "missing"
        missing = missing or (row.get("missing") or {}).get("kind") or str(ErrorKind.BUG)
    shown = sample_from_row({"messages": row["messages"]}, 0, {})
    extra = {name: own for name, own in columns.items() if name not in _NOT_CONTENT}
    sample = RewardSample(0, 0, shown.prompt, shown.response or "", row["messages"], extra)
    return Answer(int(row["step"]), int(row["seed"]), sample, missing, row)


def _key(answer: Answer) -> str:
    return sample_key(answer.sample.fields()) or str(id(answer.sample))


def _outcome(result: RewardResult) -> float | str:
    if result.score is not None:
        return result.score
    return str(result.missing.kind if result.missing is not None else ErrorKind.BUG)


def _line(source: str, step: int, of: Sequence[Answer], said: Sequence[float | str]) -> _Line:
    values = [None if isinstance(one, str) else float(one) for one in said]
    missing = Counter(one for one in said if isinstance(one, str))
    return _Line(source, step, values, dict(missing), _digest(of))


def _is_over(line: _Line | None, answers: Sequence[Answer]) -> bool:
    """Whether ``line`` is about ``answers``, and asking again would change nothing."""
    if line is None or line.answers != _digest(answers):
        return False
    return not PASSING_KINDS.intersection(line.missing)


def _digest(answers: Sequence[Answer]) -> str:
    said = [(one.seed, one.error, one.row["messages"], one.sample.extra) for one in answers]
    return sample_key({"answers": said}) or ""


def _lines(path: Path, spec: str | None) -> Iterator[_Line]:
    """The whole lines of a scores file; one that was torn is written again."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    lines = data[:whole].splitlines()
    if lines and spec is not None and msgspec.json.decode(lines[0], type=_Head).spec != spec:
        raise RunFolderError(
            f"{path}: holds scores of another reward than the study's now; delete it to have "
            "all scored again"
        )
    for line in lines[1:]:
        yield msgspec.json.decode(line, type=_Line)
