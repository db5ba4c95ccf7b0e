"""The judges that a benchmark compares, and how each is asked.

A candidate is a reward spec's grader, a trained judge's folder, or a recording: published files of
LLMBar's or JudgeBench's judges, or our own ``judgements.jsonl``. About an item a judge says the
scores of each answer, or verdicts on pairs in both orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.datasets.files import hash_content
from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.base import BaseGrader, GraderAnswer, GraderTraits, is_listwise, view_text
from adjudge.graders.binding import GraderConfig
from adjudge.graders.llm.comparison import PairJudge
from adjudge.graders.llm.numeric_scores import ScalarGrader
from adjudge.graders.llm.question import conversation_query, read_turns
from adjudge.graders.llm.trained_judge_card import CARD_FILE, SPEC_FILE, read_card
from adjudge.intake.rollouts import make_sample
from adjudge.judge_evaluation.benchmarks.items import (
    MAX_ABSOLUTE_SCORE,
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    PairVerdict,
    check_judgement,
    flip_verdict,
    item_digest,
    read_judgements,
)
from adjudge.judge_evaluation.benchmarks.measures import ScoreScale
from adjudge.judge_evaluation.benchmarks.readers import is_judgebench_recording, read_recorded_judge
from adjudge.judges.base import ChatModel
from adjudge.judges.models.local import LocalScalarModel
from adjudge.rewards.spec import GraderEntry, RewardSpec, is_trained_judge
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.runner import GradingRequest, GradingRunner
from adjudge.runs.judge_calls import JudgeCallEstimate, build_call_meters
from adjudge.stats import collect
from adjudge.text import replace_surrogates
from adjudge.types import GraderError, GraderResult, GraderScore, Message

EvaluationMode = Literal["pointwise", "pairwise"]
_VERDICT_OF: Mapping[float, PairVerdict] = {1.0: "A", 0.5: "tie", 0.0: "B"}


class BenchmarkJudge(NamedTuple):
    """A grader that a benchmark asks, and its ``mapper`` as in a reward spec.

    A pairwise grader compares two answers. Any other scores an answer by itself; its fields are
    ``messages`` (answer included), ``response``, ``query`` and ``prompt`` (the last thing a user
    said).
    """

    name: str
    grader: Any
    mapper: Any = None

    @property
    def mode(self) -> EvaluationMode:
        """``pairwise``: pairs are compared in both orders. ``pointwise``: answers are scored."""
        return "pairwise" if isinstance(self.grader, PairJudge) else "pointwise"


class _OneOrder(BaseGrader):
    """A pairwise grader, asked in one order: 1 for what is shown first, 0 for the second.

    As the grader itself does, it asks nobody where an answer says nothing: that one loses, and two
    such, or two equal ones, are a tie.
    """

    score_range = (0.0, 1.0)

    def __init__(self, grader: PairJudge, name: str) -> None:
        super().__init__(name)
        self._grader = grader

    async def aevaluate(self, turns: Sequence[Message], first: str, second: str) -> GraderAnswer:
        a, b = (view_text(text, self._grader.view) or "" for text in (first, second))
        if not (a.strip() and b.strip()) or a == b:
            return 0.5 + (bool(a.strip()) - bool(b.strip())) / 2
        query = {"query": conversation_query(read_turns(list(turns)))}
        return (await self._grader.compare(query, a, b, orders=("as_given",))).score


def choose_grader(spec: RewardSpec, name: str | None = None) -> GraderEntry:
    """The grader ``name`` of a spec, else its one with a weight; of several the one with a judge.

    Raises :class:`~adjudge.errors.ConfigError` where that is not one.
    """
    found = [one for one in spec.graders if (one.counts if name is None else one.name == name)]
    found = found or ([] if name else spec.graders)
    if len(found) > 1:
        found = [one for one in found if spec.asks_judge(one)]
    if len(found) != 1:
        names = ", ".join(one.name for one in spec.graders)
        what = f"no grader {name!r}" if name else "not exactly one grader with a weight and a judge"
        raise ConfigError(f"{spec.where}: grader: there is {what}. Name one of: {names}")
    return found[0]


def spec_judge(
    spec: RewardSpec, grader: str | None = None, judges: Mapping[str, ChatModel] | None = None
) -> BenchmarkJudge:
    """The judge that a reward spec describes: its one grader with a weight, or the one named.

    Raises :class:`~adjudge.errors.ConfigError` where that is not one, as building it does, and for
    a grader that gives neither scores nor pairs.
    """
    entry = choose_grader(spec, grader)
    built = spec.build_grader(entry, spec.build_judges() if judges is None else judges)
    spec.check_machine({entry.name: built})
    members = GraderTraits.of(built).members or [built]
    pairwise = [isinstance(one, PairJudge) for one in members]
    if is_listwise(built) and not any(pairwise):
        why = "ranks groups, but a benchmark needs scores or pairs"
    elif any(pairwise) and not isinstance(built, PairJudge):
        why = "is a panel of pairwise graders. Name one of them."
    elif any(pairwise) and entry.mapper is not None:
        why = "mapper: cannot be used with the pairs of a benchmark. Leave it out."
    else:
        return BenchmarkJudge(entry.name, built, entry.mapper)
    raise ConfigError(f"grader {entry.name!r}: {why}")


async def ask_judge(
    judge: BenchmarkJudge,
    benchmark: Benchmark,
    max_concurrency: int = 32,
    *,
    journal: Journal | None = None,
    tally: Tally | None = None,
) -> list[Judgement]:
    """One judgement per item, in the items' order; what failed is missing with its kind.

    A pair whose sides are more than one answer cannot be compared: ``invalid_input``. Whatever a
    grader raises concerns that question alone, but for :class:`~adjudge.errors.ConfigError` and
    :class:`~adjudge.errors.JudgeAuthError`, which go through.
    """
    name, grader, mapper = judge
    asks = [_item_asks(item, judge) for item in benchmark.items]
    pairwise = judge.mode == "pairwise"
    runner = GradingRunner(
        {name: _OneOrder(grader, name) if pairwise else GraderConfig(grader, mapper)},
        max_concurrency=max_concurrency,
        show_progress=False,
        journal=journal,
        tally=tally,
    )
    results = iter(await runner.aask([one for asked in asks for one in asked if one is not None]))
    found = []
    for item, asked in zip(benchmark.items, asks, strict=True):
        said = [_score_or_missing(None if one is None else next(results)) for one in asked]
        judgement = Judgement(subset=item.subset, id=item.id, scores=said)
        if pairwise:
            given, swapped = (
                one if isinstance(one, MissingJudgement) else _VERDICT_OF[one] for one in said
            )
            verdicts = [given, flip_verdict(swapped)]
            judgement = msgspec.structs.replace(judgement, scores=[], verdicts=verdicts)
        found.append(judgement)
    return found


def _item_asks(item: BenchmarkItem, judge: BenchmarkJudge) -> list[GradingRequest | None]:
    """The questions about one item; ``None``: one that cannot be asked."""
    if judge.mode == "pairwise":
        if item.texts is None:
            return [None, None]
        orders = (item.texts, item.texts[::-1])
        shown = [{"turns": item.prompt, "first": a, "second": b} for a, b in orders]
    else:
        shown = []
        for turns in item.conversations:
            before, last = turns[:-1], turns[-1:]
            query = conversation_query(read_turns(before))
            shown.append(make_sample(0, 0, before, last, {"query": query}).fields())
    return [GradingRequest(judge.name, fields) for fields in shown]


def _score_or_missing(result: GraderResult | None) -> float | MissingJudgement:
    match result:
        case GraderScore(score=score) if abs(score) <= MAX_ABSOLUTE_SCORE:
            return score
        case GraderScore():
            why = f"the score is beyond {MAX_ABSOLUTE_SCORE}"
            return MissingJudgement(ErrorKind.OUT_OF_RANGE, why)
        case GraderError():
            return MissingJudgement(result.kind, replace_surrogates(result.error[:500]))
    return MissingJudgement(
        ErrorKind.INVALID_INPUT, "a side is more than one answer: score it instead"
    )


JUDGEMENTS_FILE = "judgements.jsonl"


def _own_recording(path: Path, judge: str | None) -> tuple[str, list[Judgement]]:
    """The judgements of ``judge`` (default: the only one) in a ``judgements.jsonl``, and its name.

    Raises :class:`~adjudge.errors.ConfigError` for a line that is no judgement, and for several
    judges of which none is named.
    """
    by_judge = collect((one.judge, one) for one in read_judgements(path))
    chosen = next(iter(by_judge)) if judge is None and len(by_judge) == 1 else judge
    if chosen is None or chosen not in by_judge:
        listed = ", ".join(f"{path}#{name}" for name in list(by_judge)[:8])
        found = "no judge is named" if chosen is None else f"there is no judge {chosen!r}"
        raise ConfigError(f"{path}: {found} (it holds: {listed or 'no judgement'})")
    return chosen or path.stem, by_judge[chosen]


_ALLOWED = (
    "a reward spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, a judgements.jsonl"
    " (or FILE#JUDGE), or the recorded verdicts of LLMBar ('FOLDER/*/judges/NAME.json') or "
    "JudgeBench (.jsonl)"
)


@dataclass
class Candidate:
    """A judge to validate.

    One of ``judge`` (asked) and ``recorded`` (read) is there; ``benchmark``: the items of what was
    recorded, where the files have them. ``identity`` changes with whatever answers. ``scale`` says
    what its scores are, ``None``: only their order counts. ``folder`` is that of a trained judge,
    which has a card. ``concurrency`` is the spec's.
    """

    name: str
    kind: str
    identity: str
    judge: BenchmarkJudge | None = None
    recorded: Sequence[Judgement] | None = None
    benchmark: Benchmark | None = None
    scale: ScoreScale | None = None
    folder: Path | None = None
    concurrency: int = 32
    local_models: list[Any] = field(default_factory=list)

    @property
    def mode(self) -> EvaluationMode:
        """How the judge is asked, or was."""
        if self.judge is not None:
            return self.judge.mode
        return "pointwise" if any(said.scores for said in self.recorded or ()) else "pairwise"

    def find_recorded(self, benchmark: Benchmark) -> list[Judgement]:
        """The judgements of ``benchmark``'s items, ``not_sampled`` where none was recorded.

        They are found by the digest of what was judged, whatever an item's id; those without a
        digest by subset and id. Equal items are separate: each judgement is given out once. Raises
        :class:`~adjudge.errors.ConfigError` where none was recorded, and for one that does not fit.
        """
        recorded = self.recorded or ()
        known: dict[object, deque[Judgement]] = {}
        for one in recorded:
            known.setdefault(one.item or (one.subset, one.id), deque()).append(one)
        found, is_any = [], False
        for item in benchmark.items:
            absent = MissingJudgement(ErrorKind.NOT_SAMPLED, "no judgement")
            said = Judgement(subset="", id="", scores=[absent] * len(item.answers))
            if same := known.get(item_digest(item)) or known.get((item.subset, item.id)):
                is_any, said = True, same.popleft()
                check_judgement(said, item, benchmark.kind)
            found.append(msgspec.structs.replace(said, subset=item.subset, id=item.id))
        if not is_any:
            raise ConfigError(
                f"judge {self.name}: none of its {len(recorded):,} judgements is about an item of "
                f"{benchmark.title or benchmark.kind}"
            )
        return found


def find_candidate(target: str, meter: JudgeCallEstimate | None = None) -> Candidate:
    """The judge that ``target`` names; raises :class:`~adjudge.errors.ConfigError` for none.

    With a ``meter`` a spec's judge is asked nothing: its calls are counted there.
    """
    name, part = split_target(target)
    path = Path(name)
    if path.is_dir():
        return _trained_judge(path, meter)
    if path.is_file() and path.suffix == ".toml":
        return _spec_judge(path, part, meter)
    root = Path(path.anchor)
    files = [path] if path.is_file() else sorted(root.glob(str(path.relative_to(root))))
    if not files or files[0].suffix not in (".json", ".jsonl"):
        raise ConfigError(f"judge {target}: no such file, folder or pattern. Give {_ALLOWED}.")
    identity = sha256("".join(hash_content(one)["sha256"] for one in files).encode()).hexdigest()
    if files[0].suffix == ".jsonl" and not is_judgebench_recording(files[0]):
        judge, recorded = _own_recording(files[0], part)
        return Candidate(judge, "recorded", f"{identity}#{part or judge}", recorded=recorded)
    judge, benchmark, recorded = read_recorded_judge(files)
    return Candidate(judge, "recorded", identity, recorded=recorded, benchmark=benchmark)


def split_target(target: str) -> tuple[str, str | None]:
    """A file and what is chosen in it, ``FILE#PART``; names of files and parts may have a #."""
    if not Path(target).exists():
        for place, sign in enumerate(target):
            if sign == "#" and Path(target[:place]).is_file():
                return target[:place], target[place + 1 :]
    return target, None


def _trained_judge(folder: Path, meter: JudgeCallEstimate | None) -> Candidate:
    spec = folder / SPEC_FILE
    if not (folder / CARD_FILE).is_file():
        held = f"its reward spec, {spec}" if spec.is_file() else _ALLOWED
        raise ConfigError(f"judge {folder}: holds no {CARD_FILE}. Give {held}.")
    card = read_card(folder)
    name = card.label or folder.name
    if card.kind == "scalar":
        model = LocalScalarModel(folder)
        judge = BenchmarkJudge(name, ScalarGrader(model, name))
        found = Candidate(name, "scalar", model.fingerprint, judge, scale="logits")
        found.local_models = [model]
    elif not spec.is_file():
        raise ConfigError(
            f"judge {folder}: its card says {card.kind!r} by {card.method}, but there is no "
            f"{SPEC_FILE}, so it was not trained to judge"
        )
    else:
        found = _spec_judge(spec, None, meter)
        found.name, found.kind = name, "generative"
    found.folder = folder
    return found


def _spec_judge(path: Path, grader: str | None, meter: JudgeCallEstimate | None) -> Candidate:
    spec = RewardSpec.load(path)
    judges = spec.build_judges()
    judge = spec_judge(spec, grader, judges if meter is None else build_call_meters(judges, meter))
    built = judge.grader
    model = GraderTraits.of(built).model
    model = model if isinstance(model, ChatModel) else None
    local = [model] if model is not None and model.kind == "local" else []
    name = path.stem if path.stem != "reward" else path.resolve().parent.name
    scale: ScoreScale | None = None  # of any other grader the order of scores is known alone
    if type(built) is ScalarGrader:
        scale = "probabilities" if built.activation == "sigmoid" else "logits"
    found = Candidate(
        name if grader is None else f"{name}#{grader}",
        "spec",
        f"{spec.hash}#{judge.name}#{''.join(one.fingerprint for one in local)}",
        judge,
        scale=scale,
        concurrency=spec.max_concurrency,
        local_models=local,
    )
    stated = (choose_grader(spec, grader).model_extra or {}).get("card")  # behind a server
    place = path.parent / stated if isinstance(stated, str) else model and model.model
    if place and is_trained_judge(place):
        found.folder = Path(place)
    return found
