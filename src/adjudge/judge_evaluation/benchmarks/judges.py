"""The judges that a benchmark compares, and how each is asked.

A candidate is a reward spec's grader, a trained judge's folder, or a recording: published files of
LLMBar's or JudgeBench's judges, or our own ``judgements.jsonl``. About an item a judge says the
scores of each answer, or verdicts on pairs in both orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.base import BaseGrader, FunctionGrader, GraderAnswer, is_listwise, view_text
from adjudge.graders.binding import BoundGrader
from adjudge.graders.llm.comparison import PairJudge
from adjudge.graders.llm.judge_grader import conversation_query, read_turns
from adjudge.graders.llm.numeric_scores import ScalarGrader
from adjudge.graders.llm.trained_judge_card import CARD_FILE, SPEC_FILE, JudgeCard, read_card
from adjudge.intake.samples import make_sample
from adjudge.judge_evaluation.benchmarks.benchmark_data import hash_file, item_digest
from adjudge.judge_evaluation.benchmarks.items import (
    MAX_ABSOLUTE_SCORE,
    VERDICT_SCORES,
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    PairItem,
    PairVerdict,
    flip_verdict,
    judgements_by_item,
    read_judgements,
)
from adjudge.judge_evaluation.benchmarks.readers import is_judgebench_recording, read_recorded_judge
from adjudge.judge_evaluation.benchmarks.statistics import ScoreScale
from adjudge.judges.base import ChatModel
from adjudge.judges.models.local import LocalScalarModel
from adjudge.rewards.spec import GraderEntry, RewardSpec, is_trained_judge
from adjudge.runner import GraderConfig
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.runner import GradingRequest, GradingRunner
from adjudge.runs.judge_calls import JudgeCallEstimate, build_call_meters
from adjudge.text import replace_surrogates
from adjudge.types import GraderError, GraderResult, GraderScore, Message


class ScoringJudge(Protocol):
    """A judge of single answers."""

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        """A number for the last answer of a conversation; higher is better."""


class ComparingJudge(Protocol):
    """A judge of pairs."""

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> PairVerdict | GraderError:
        """Which of two answers to ``prompt`` is better, ``a`` being shown first."""


BenchmarkJudge = ScoringJudge | ComparingJudge
"""What a benchmark can ask; an object may do both."""

_VERDICT_OF: Mapping[float, PairVerdict] = {1.0: "A", 0.5: "tie", 0.0: "B"}


class GraderScores:
    """A pointwise grader as a judge: its raw score of the last answer.

    The grader's fields are ``messages`` (answer included), ``response``, ``query`` and ``prompt``
    (the last thing a user said); ``mapper`` as in a reward spec.
    """

    def __init__(self, grader: Any, name: str = "", mapper: Any = None) -> None:
        self.name = name or getattr(grader, "name", "") or type(grader).__name__
        self._question = BoundGrader(self.name, GraderConfig(grader, mapper))

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        """See :class:`ScoringJudge`."""
        result = await self._question.ask(_conversation_fields(messages))
        if isinstance(result, GraderScore):
            return result.score
        if isinstance(result, GraderError):
            return result
        return GraderError(self.name, ErrorKind.UNSUPPORTED, "the grader ranks, it does not score")


class GraderComparisons:
    """A pairwise grader as a judge: its verdict in one order, the one it is asked in.

    As the grader itself does, it asks nobody where an answer says nothing: that one loses, and two
    such, or two equal ones, are a tie.
    """

    def __init__(self, grader: PairJudge, name: str = "") -> None:
        self.name = name or grader.name
        self._grader = grader

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> PairVerdict | GraderError:
        """See :class:`ComparingJudge`; raises what asking the grader's judge raises."""
        a, b = (view_text(text, self._grader.view) or "" for text in (a, b))
        if not (a.strip() and b.strip()) or a == b:
            return _VERDICT_OF[0.5 + (bool(a.strip()) - bool(b.strip())) / 2]
        query = conversation_query(read_turns(list(prompt)))
        compared = await self._grader.compare({"query": query}, a, b, orders=("as_given",))
        return _VERDICT_OF[compared.score]


def grader_judge(grader: Any, name: str = "", mapper: Any = None) -> BenchmarkJudge:
    """A grader object as a judge: pairwise ones compare, pointwise ones score.

    Raises :class:`~adjudge.errors.ConfigError` for a grader that ranks groups, for a panel of
    pairwise graders (it does not say what each order gave), and for a pairwise one with a mapper.
    """
    label = name or getattr(grader, "name", "") or type(grader).__name__
    members = getattr(grader, "members", ())
    if any(isinstance(member, PairJudge) for member in members):
        raise ConfigError(f"grader {label!r}: is a panel of pairwise graders. Name one of them.")
    if isinstance(grader, PairJudge):
        if mapper is not None:
            raise ConfigError(
                f"grader {label!r}: mapper: cannot be used with the pairs of a benchmark. Leave it "
                "out."
            )
        return GraderComparisons(grader, label)
    if is_listwise(grader):
        raise ConfigError(f"grader {label!r}: ranks groups, but a benchmark needs scores or pairs")
    return GraderScores(grader, label, mapper)


def spec_judge(
    spec: RewardSpec, grader: str | None = None, judges: Mapping[str, ChatModel] | None = None
) -> BenchmarkJudge:
    """The judge that a reward spec describes: its one grader with a weight, or the one named.

    Raises as :func:`spec_grader` and :func:`grader_judge` do.
    """
    entry, built = spec_grader(spec, grader, judges)
    return grader_judge(built, entry.name, entry.mapper)


def spec_grader(
    spec: RewardSpec, grader: str | None = None, judges: Mapping[str, ChatModel] | None = None
) -> tuple[GraderEntry, Any]:
    """The one grader of a reward spec with a weight, or the one named: its entry and its object.

    Raises :class:`~adjudge.errors.ConfigError` where that is not one, and as building it does.
    """
    counting = [entry for entry in spec.graders if entry.counts]
    chosen = [one for one in spec.graders if one.name == grader] if grader else counting
    if len(chosen) != 1:
        names = ", ".join(entry.name for entry in spec.graders)
        found = (
            f"there is no grader {grader!r}"
            if grader
            else f"there are {len(chosen)} graders with a weight"
        )
        raise ConfigError(
            f"{spec.where}: {found}, and a benchmark asks one grader. Name one of: {names}"
        )
    [entry] = chosen
    built = spec.build_grader(entry, spec.build_judges() if judges is None else judges)
    spec.check_machine({entry.name: built})
    return entry, built


def _conversation_fields(messages: Sequence[Message]) -> dict[str, Any]:
    turns = list(messages)
    before, last = turns[:-1], turns[-1:]
    sample = make_sample(0, 0, before, last, {"query": conversation_query(read_turns(before))})
    return sample.fields()


EvaluationMode = Literal["pointwise", "pairwise"]

_SCORE, _COMPARE = "score", "compare"


async def ask_judge(
    judge: BenchmarkJudge,
    benchmark: Benchmark,
    *,
    mode: EvaluationMode | None = None,
    max_concurrency: int = 32,
    journal: Journal | None = None,
    tally: Tally | None = None,
) -> list[Judgement]:
    """One judgement per item, in the items' order; what failed is missing with its kind.

    ``pointwise``: every answer is scored by itself. ``pairwise``: every pair is compared in both
    orders. By default pairs are compared where the judge can. A pair whose sides are more than one
    answer cannot be compared: ``invalid_input``. Whatever a judge raises concerns that question
    alone, but for :class:`~adjudge.errors.ConfigError` and
    :class:`~adjudge.errors.JudgeAuthError`, which go through, and are raised for a judge that
    cannot do what is asked.
    """
    chosen = evaluation_mode(judge, benchmark, mode)
    asks = [ask for item in benchmark.items for ask in _item_asks(item, chosen)]
    asked: Any = judge
    scores = chosen == "pointwise"
    grader = FunctionGrader(asked.score, _SCORE) if scores else _ComparingGrader(judge)
    runner = GradingRunner(
        {grader.name: grader},
        max_concurrency=max_concurrency,
        show_progress=False,
        journal=journal,
        tally=tally,
    )
    results = await runner.aask([ask for ask in asks if ask is not None])
    found = iter(results)
    each = iter([None if ask is None else next(found) for ask in asks])
    return [_item_judgement(item, chosen, each) for item in benchmark.items]


def evaluation_mode(
    judge: BenchmarkJudge, benchmark: Benchmark, mode: EvaluationMode | None = None
) -> EvaluationMode:
    """How ``judge`` is asked; raises :class:`~adjudge.errors.ConfigError` where it cannot be."""
    can = {_SCORE: hasattr(judge, _SCORE), _COMPARE: hasattr(judge, _COMPARE)}
    best_of = benchmark.kind == "rewardbench2"
    if mode is None:
        mode = "pairwise" if can[_COMPARE] and not best_of else "pointwise"
    if best_of and (mode == "pairwise" or not can[_SCORE]):
        raise ConfigError(
            "RewardBench-2 scores every answer by itself, but this judge compares pairs. Use "
            "as_pairs to ask about its items as pairs (not the benchmark's own protocol)."
        )
    if not can[_COMPARE if mode == "pairwise" else _SCORE]:
        raise ConfigError(f"mode: the judge does not support this mode (found {mode!r})")
    return mode


class _ComparingGrader(BaseGrader):
    """The runner's view of a judge that compares: 1 for what was shown first, 0 for the second."""

    score_range = (0.0, 1.0)

    def __init__(self, judge: Any) -> None:
        super().__init__(_COMPARE)
        self._judge = judge

    async def aevaluate(self, turns: Sequence[Message], first: str, second: str) -> GraderAnswer:
        said = await self._judge.compare(turns, first, second)
        if isinstance(said, GraderError):
            return said
        if not isinstance(said, str) or said not in VERDICT_SCORES:
            return GraderError(self.name, ErrorKind.BUG, "compare() must give 'A', 'B' or 'tie'")
        return VERDICT_SCORES[said]


def _item_asks(item: BenchmarkItem, mode: EvaluationMode) -> list[GradingRequest | None]:
    """The questions about one item; ``None``: one that cannot be asked."""
    if not isinstance(item, PairItem):
        shown = [item.conversation(place) for place in range(len(item.answers))]
        return [GradingRequest(_SCORE, {"messages": messages}) for messages in shown]
    if mode == "pointwise":
        return [
            GradingRequest(_SCORE, {"messages": item.conversation(side)}) for side in ("A", "B")
        ]
    if item.texts is None:
        return [None, None]
    a, b = item.texts
    return [
        GradingRequest(_COMPARE, {"turns": item.prompt, "first": first, "second": second})
        for first, second in ((a, b), (b, a))
    ]


def _item_judgement(
    item: BenchmarkItem, mode: EvaluationMode, results: Iterator[GraderResult | None]
) -> Judgement:
    if mode == "pointwise":
        count = 2 if isinstance(item, PairItem) else len(item.answers)
        scores = [_score_or_missing(next(results)) for _ in range(count)]
        return Judgement(subset=item.subset, id=item.id, scores=scores)
    given, swapped = (_verdict_or_missing(next(results)) for _ in range(2))
    turned = swapped if isinstance(swapped, MissingJudgement) else flip_verdict(swapped)
    return Judgement(subset=item.subset, id=item.id, verdicts=[given, turned])


def _score_or_missing(result: GraderResult | None) -> float | MissingJudgement:
    if not isinstance(result, GraderScore):
        return _missing_judgement(result)
    if abs(result.score) > MAX_ABSOLUTE_SCORE:
        return MissingJudgement(ErrorKind.OUT_OF_RANGE, f"the score is beyond {MAX_ABSOLUTE_SCORE}")
    return result.score


def _verdict_or_missing(result: GraderResult | None) -> PairVerdict | MissingJudgement:
    return (
        _VERDICT_OF[result.score] if isinstance(result, GraderScore) else _missing_judgement(result)
    )


def _missing_judgement(result: GraderResult | None) -> MissingJudgement:
    if isinstance(result, GraderError):
        said = replace_surrogates(result.error[:500])
        return MissingJudgement(result.kind, said)
    return MissingJudgement(
        ErrorKind.INVALID_INPUT, "a side is more than one answer: score it instead"
    )


JUDGEMENTS_FILE = "judgements.jsonl"


class RecordedJudgement(Judgement, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``judgements.jsonl``: a judgement, its judge, and the digest of its item."""

    judge: str = ""
    item: str = ""


class Recording:
    """Judgements by what was judged, so that they are found again whatever their items' ids.

    Equal items are separate: each record is given out once.
    """

    def __init__(
        self,
        where: str,
        records: Iterable[tuple[str, Judgement]],
        benchmark: Benchmark | None = None,
    ) -> None:
        self.where = where
        self.benchmark = benchmark
        self._records = [(digest, judgement) for digest, judgement in records]
        self.scores = any(judgement.scores for _, judgement in self._records)

    def judgements_for(self, benchmark: Benchmark) -> list[Judgement]:
        """The judgements of ``benchmark``'s items that were recorded.

        Raises :class:`~adjudge.errors.ConfigError` where none was.
        """
        known: dict[str, deque[Judgement]] = {}
        for digest, judgement in self._records:
            known.setdefault(digest, deque()).append(judgement)
        found = []
        for item in benchmark.items:
            records = known.get(item_digest(item)) or known.get(_item_key(item.subset, item.id))
            if records:
                said = records.popleft()
                scores, verdicts = said.scores, said.verdicts
                found.append(
                    Judgement(subset=item.subset, id=item.id, scores=scores, verdicts=verdicts)
                )
        if not found:
            raise ConfigError(
                f"{self.where}: none of its {len(self._records):,} judgements is about an item of "
                f"{benchmark.title or benchmark.kind}"
            )
        judgements_by_item(benchmark, found)  # of the right shape
        return found


def read_published_recording(paths: Sequence[Path]) -> tuple[str, Recording]:
    """The name and the recording of one published judge; raises as ``read_recorded_judge`` does."""
    name, benchmark, judgements = read_recorded_judge(paths)
    digests = map(item_digest, benchmark.items)
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return name, Recording(where, zip(digests, judgements, strict=True), benchmark)


def read_own_recording(path: Path, judge: str | None) -> tuple[str, Recording]:
    """The judgements of ``judge`` (default: the only one) in a ``judgements.jsonl``, and its name.

    Raises :class:`~adjudge.errors.ConfigError` for a line that is no judgement, and for several
    judges of which none is named.
    """
    lines = read_judgements(path, RecordedJudgement)
    names = list(dict.fromkeys(one.judge for one in lines))
    if judge is None and len(names) == 1:
        judge = names[0]
    if judge is None or judge not in names:
        listed = ", ".join(f"{path}#{name}" for name in names[:8])
        found = "no judge is named" if judge is None else f"there is no judge {judge!r}"
        raise ConfigError(f"{path}: {found} (it holds: {listed or 'no judgement'})")
    own = [one for one in lines if one.judge == judge]
    records = [(one.item or _item_key(one.subset, one.id), one) for one in own]
    return judge or path.stem, Recording(str(path), records)


def _item_key(subset: str, identity: str) -> str:
    """How a judgement without a digest is found: by subset and id; no digest looks like it."""
    return f"{subset}\0{identity}"


_ALLOWED = (
    "a reward spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, a judgements.jsonl"
    " (or FILE#JUDGE), or the recorded verdicts of LLMBar ('FOLDER/*/judges/NAME.json') or "
    "JudgeBench (.jsonl)"
)


@dataclass
class Candidate:
    """A judge to validate.

    One of ``judge`` (asked) and ``recording`` (read) is there. ``identity`` changes with whatever
    answers. ``scale`` says what its scores are, ``None``: only their order counts. ``folder`` is
    that of a trained judge, which has a card. ``concurrency`` is the spec's.
    """

    name: str
    kind: str
    identity: str
    judge: BenchmarkJudge | None = None
    recording: Recording | None = None
    scale: ScoreScale | None = None
    folder: Path | None = None
    card: JudgeCard | None = None
    concurrency: int = 32
    local_models: list[Any] = field(default_factory=list)


def find_candidate(target: str, meter: JudgeCallEstimate | None = None) -> Candidate:
    """The judge that ``target`` names; raises :class:`~adjudge.errors.ConfigError` for none.

    With a ``meter`` a spec's judge is asked nothing: its calls are counted there.
    """
    name, part = _split_target(target)
    path = Path(name)
    if "*" in name and not path.exists():
        return _published_judge(name, _matching_paths(path))
    if path.is_dir():
        return _trained_judge(path, meter)
    if not path.is_file():
        raise ConfigError(f"judge {target}: there is no such file or folder. Give {_ALLOWED}.")
    if path.suffix == ".toml":
        return _spec_judge(path, part, meter)
    if path.suffix == ".jsonl" and not is_judgebench_recording(path):
        judge, recording = read_own_recording(path, part)
        digest = hash_file(path)["sha256"]
        return Candidate(judge, "recorded", f"{digest}#{part or judge}", recording=recording)
    if path.suffix in (".json", ".jsonl"):
        return _published_judge(name, [path])
    raise ConfigError(f"judge {target}: is not a judge. Give {_ALLOWED}.")


def _split_target(target: str) -> tuple[str, str | None]:
    """A file and what is chosen in it, ``FILE#PART``; names of files and parts may have a #."""
    if not Path(target).exists():
        for place, sign in enumerate(target):
            if sign == "#" and Path(target[:place]).is_file():
                return target[:place], target[place + 1 :]
    return target, None


def _matching_paths(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)
    return sorted(root.glob(str(pattern.relative_to(root))))


def _published_judge(pattern: str, paths: list[Path]) -> Candidate:
    if not paths:
        raise ConfigError(f"judge {pattern}: no file matches this name")
    digests = "".join(hash_file(path)["sha256"] for path in paths)
    identity = sha256(digests.encode()).hexdigest()
    name, recording = read_published_recording(paths)
    return Candidate(name, "recorded", identity, recording=recording)


def _trained_judge(folder: Path, meter: JudgeCallEstimate | None) -> Candidate:
    if not (folder / CARD_FILE).is_file():
        held = f"its reward spec, {folder / SPEC_FILE}" if (folder / SPEC_FILE).is_file() else ""
        raise ConfigError(
            f"judge {folder}: holds no {CARD_FILE}, so it is not a trained judge. Give "
            f"{held or _ALLOWED}."
        )
    card = read_card(folder)
    name = card.label or folder.name
    if card.kind == "scalar":
        model = LocalScalarModel(folder)
        judge = grader_judge(ScalarGrader(model, "scalar"), name)
        found = Candidate(name, "scalar", model.fingerprint, judge, scale="logits")
        found.local_models = [model]
    else:
        if not (folder / SPEC_FILE).is_file():
            raise ConfigError(
                f"judge {folder}: its card says {card.kind!r} by {card.method}, but there is no "
                f"{SPEC_FILE}, so it was not trained to judge"
            )
        found = _spec_judge(folder / SPEC_FILE, None, meter)
        found.name, found.kind = name, "generative"
    found.folder, found.card = folder, card
    return found


def _spec_judge(path: Path, grader: str | None, meter: JudgeCallEstimate | None) -> Candidate:
    spec = RewardSpec.load(path)
    judges = spec.build_judges()
    entry, built = spec_grader(
        spec, grader, judges if meter is None else build_call_meters(judges, meter)
    )
    judge = grader_judge(built, entry.name, entry.mapper)
    model = getattr(built, "model", None)
    local = getattr(model, "kind", "") == "local"
    fingerprint = getattr(model, "fingerprint", "") if local else ""
    name = path.stem if path.stem != "reward" else path.resolve().parent.name
    found = Candidate(
        name if grader is None else f"{name}#{grader}",
        "spec",
        f"{spec.hash}#{entry.name}#{fingerprint}",
        judge,
        scale=_score_scale(built),
        concurrency=spec.max_concurrency,
    )
    if local:
        found.local_models = [model]
    stated = (entry.model_extra or {}).get("card")  # that of a trained judge behind a server
    place = path.parent / stated if isinstance(stated, str) else getattr(model, "model", "")
    if place and is_trained_judge(place):
        found.folder, found.card = Path(place), read_card(place)
    return found


def _score_scale(built: Any) -> ScoreScale | None:
    """What a scalar grader's scores are; of others only the order is known."""
    if type(built) is not ScalarGrader:
        return None
    return "probabilities" if built.activation == "sigmoid" else "logits"
