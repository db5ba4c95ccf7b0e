"""One arm of the study of failures: a judge that fails on purpose inside the real GRPOTrainer.

All is as in ``examples/rl_tiny.toml``; the judge is a rule, so that what it would say is known.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.trl import make_reward
from adjudge_lab.rl.local_player import draw_replies
from adjudge_lab.rl.policy import build_demonstrations
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer, capital_reward
from adjudge_lab.rl.trl_backend import disable_trainer_logging, grpo_settings, warm_start
from adjudge_lab.synthetic import COUNTRY_CAPITALS

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "rl_tiny.toml"
RUBRIC = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["judge"]["mock"]["keywords"]
NOTHING = 1e-3  # an advantage below this is none

Group = Sequence[float | None]
Floats = Sequence[float]


class Arm(NamedTuple):
    """``share`` of the calls fail at the start; ``kind`` random or length; ``policy`` mask or zero.

    ``judge`` is example or truth, see :func:`judged`.
    """

    judge: str
    kind: str
    share: float
    policy: str
    seed: int
    steps: int

    def fails(self, step: int, place: int, length: float) -> bool:
        """Whether it fails; ``length`` in units of the mean at the start. A larger share adds."""
        odds = self.share * (length if self.kind == "length" else 1.0)
        return random.Random(f"{self.seed} {step} {place}").random() < odds


class Seen(NamedTuple):
    """A step: rewards there were, rewards without failures, gold, the trainer's advantages."""

    present: list[float | None]
    clean: list[float]
    gold: list[float]
    used: list[float]


class StatedJudge(BaseGrader):
    """The judge as a rule, 0 to 1; raises a time-out where the column ``timed_out`` says so."""

    score_range = (0.0, 1.0)

    def __init__(self, judge_name: str) -> None:
        super().__init__()
        self._judge = judge_name

    async def aevaluate(self, response: str, reference: str, timed_out: bool) -> float:
        if timed_out:
            raise GradingFailure(ErrorKind.TIMEOUT, "made to fail")
        return judged(self._judge, response, reference)


def judged(judge: str, response: str, reference: str) -> float:
    """What the judge says when it answers: the example's rubric, or whether the answer is right."""
    if judge == "truth":
        return capital_reward(response, reference)
    shown = f">\n{response}\n</response-".casefold()
    return sum(keyword.casefold() in shown for keyword in RUBRIC) / 2


def advantages(group: Group) -> list[float]:
    """GRPO's: (reward - mean) / (deviation + 1e-4) of those that are there; 0 for a missing one."""
    there = [value for value in group if value is not None]
    if len(there) < 2:
        return [0.0] * len(group)
    mean, scale = fmean(there), stdev(there) + 1e-4
    return [0.0 if value is None else (value - mean) / scale for value in group]  # adjudge: meant


def measures(steps: Sequence[Seen], size: int) -> dict[str, float]:
    """How far the advantages of a run are from others, over all groups of ``size``.

    ``error_answered``, ``error_all``: root mean square of their difference from those without any
    failure, in units of the latter's; over the rows that the judge answered, and over all.
    ``error_group``: the answered rows against their own group alone. ``astray``: share of groups
    that :func:`is_astray`. ``invented``: of those with a signal where none is due.
    """
    groups = [group for step in steps for group in _groups(step, size)]
    rows = [row for group in groups for row in zip(*group, strict=True)]
    answered = [row for row in rows if row[0] is not None]
    return {
        "missing": 1 - len(answered) / len(rows),
        "error_answered": _relative([(used, full) for _, used, full, _ in answered]),
        "error_all": _relative([(used, full) for _, used, full, _ in rows]),
        "error_group": _relative([(used, alone) for _, used, _, alone in answered]),
        "astray": fmean(is_astray(full, used) for _, used, full, _ in groups),
        "invented": fmean(_flat(full) and not _flat(used) for _, used, full, _ in groups),
    }


def _groups(step: Seen, size: int) -> Iterator[tuple[Group, Floats, Floats, Floats]]:
    # rewards; advantages: in use, without failures, of those that are there
    for start in range(0, len(step.clean), size):
        part = slice(start, start + size)
        present = step.present[part]
        yield present, step.used[part], advantages(step.clean[part]), advantages(present)


def _relative(pairs: Sequence[tuple[float, float]]) -> float:
    found = math.fsum((used - right) ** 2 for used, right in pairs)
    return math.sqrt(found / math.fsum(right**2 for _, right in pairs))


def is_astray(full: Floats, used: Floats) -> bool:
    """Whether ``used`` turns a sign, or puts first (alone or not) what ``full`` does not."""
    both = zip(full, used, strict=True)
    turned = any(a * b < 0 and min(abs(a), abs(b)) > NOTHING for a, b in both)
    first, now = ({i for i, a in enumerate(one) if a > max(one) - NOTHING} for one in (full, used))
    return turned or not now <= first


def _flat(group: Floats) -> bool:
    return max(map(abs, group)) < NOTHING


class Start:
    """The policy after its warm start, which all arms of a seed share; ``said`` describes it."""

    def __init__(self, seed: int, steps: int | None = None) -> None:
        self.run = load_run_file(EXAMPLE).with_seed(seed)
        rows: list[Any] = build_demonstrations(self.run)
        texts = (turn["content"] for row in rows for turn in row["messages"])
        self.tokenizer = build_tiny_tokenizer(texts)
        model = build_tiny_model(self.tokenizer, seed=seed)
        steps = self.run.training.warm_start_iterations if steps is None else steps
        with TemporaryDirectory() as folder:
            warm_start(
                model, self.tokenizer, rows,
                steps=steps, seed=seed, folder=folder, on_step=lambda _: None,
            )  # fmt: skip
        self._weights = model.state_dict()
        self.said = evaluated(model, self.tokenizer, self.run)

    def policy(self) -> Any:
        """The policy, anew: a model that a trainer had, and copies of it, are bound to that one."""
        model = build_tiny_model(self.tokenizer, seed=0)
        model.load_state_dict(self._weights)
        return model


def questions(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Endless rows ``{prompt, reference}``."""
    countries = sorted(COUNTRY_CAPITALS)
    while True:
        country = rng.choice(countries)
        asked = {"role": "user", "content": f"What is the capital of {country}?"}
        yield {"prompt": [asked], "reference": COUNTRY_CAPITALS[country]}


def answers_to(model: Any, tokenizer: Any, prompts: Sequence[Any], most: int) -> list[str]:
    """One answer to each prompt, drawn at temperature 1."""
    said: dict[int, str] = {}
    ids = [
        tokenizer.encode(
            tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True),
            add_special_tokens=False,
        )
        for turns in prompts
    ]

    def ended(row: int, tokens: list[int], _: list[float]) -> None:
        said[row] = tokenizer.decode(tokens, skip_special_tokens=True)

    draw_replies(model, tokenizer, ids, max_tokens=most, temperature=1.0, seed=1, on_end=ended)
    return [said[row] for row in range(len(prompts))]


def evaluated(model: Any, tokenizer: Any, run: RunFile, count: int = 512) -> dict[str, float]:
    """What ``count`` answers are like: gold, example's judge, length, shares of the styles."""
    rows: list[Any] = list(islice(questions(random.Random("evaluation")), count))
    prompts, references = ([row[name] for row in rows] for name in ("prompt", "reference"))
    said = answers_to(model, tokenizer, prompts, run.rollout.max_tokens)
    both = list(zip(said, references, strict=True))
    return {
        "gold": fmean(judged("truth", *one) for one in both),
        "example": fmean(judged("example", *one) for one in both),
        "characters": fmean(map(len, said)),
        "terse": fmean(len(text) < 12 for text in said),
        "polite": fmean(text.startswith("Sure") for text in said),
        "long": fmean(text.startswith("Let me think") for text in said),
    }


def reward_of(arm: Arm, characters: float, log: list[Seen]) -> Callable[..., Any]:
    """The reward function of ``arm``; ``characters`` is the mean of an answer at the start."""
    grader = {"name": "quality", "type": f"{__name__}:StatedJudge", "judge_name": arm.judge}
    # What fails here is stated, so no share of it is an outage.
    missing = {"policy": "mask", "max_missing": 1.0}
    inner = make_reward(RewardSpec.from_dict({"graders": [grader], "missing": missing}))

    async def judge(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        said = [turns[-1]["content"] for turns in completions]
        both = list(zip(said, columns["reference"], strict=True))
        lengths = [len(text) / characters for text in said]
        fails = [arm.fails(len(log), place, length) for place, length in enumerate(lengths)]
        present: list[float | None] = await inner(prompts, completions, timed_out=fails, **columns)
        clean, gold = ([judged(by, *one) for one in both] for by in (arm.judge, "truth"))
        log.append(Seen(present, clean, gold, []))
        if arm.policy == "zero":
            return [0.0 if value is None else value for value in present]  # adjudge: meant
        return present

    return judge


def train(arm: Arm, start: Start) -> tuple[list[Seen], Any]:
    """The steps of an arm, and the trained model; ``start`` stays as it is."""
    import datasets
    import trl

    log: list[Seen] = []

    class Recorded(trl.GRPOTrainer):  # type: ignore[misc]  # the base is untyped
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            log[-1].used.extend(made["advantages"].tolist())
            return made

    training = start.run.training
    settings = grpo_settings(start.run) | {"max_steps": arm.steps, "save_strategy": "no"}
    rows = questions(random.Random(f"prompts {arm.seed}"))
    prompts = list(islice(rows, arm.steps * training.batch_size // training.group_size))
    with TemporaryDirectory() as folder:
        trainer = Recorded(
            model=start.policy(),
            processing_class=start.tokenizer,
            reward_funcs=[reward_of(arm, start.said["characters"], log)],
            train_dataset=datasets.Dataset.from_list(prompts),
            args=trl.GRPOConfig(
                output_dir=folder, logging_steps=1, report_to=[],
                use_cpu=True, bf16=False, disable_tqdm=True,
                dataloader_pin_memory=False, **settings,
            ),
        )  # fmt: skip
        disable_trainer_logging(trainer)
        trainer.train()
    return log, trainer.model


def arm_row(arm: Arm, start: Start) -> dict[str, Any]:
    """Train and measure: the arm, its advantages' errors, the last tenth, the policy after it."""
    steps, model = train(arm, start)
    last = steps[-max(1, len(steps) // 10) :]
    return {
        **arm._asdict(),
        **measures(steps, start.run.training.group_size),
        "gold_last": fmean(value for step in last for value in step.gold),
        "judge_last": fmean(value for step in last for value in step.clean),
        "missing_last": fmean(value is None for step in last for value in step.present),
        "after": evaluated(model, start.tokenizer, start.run),
        "start": start.said,
    }
