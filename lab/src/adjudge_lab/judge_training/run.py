"""A judge's whole training: data, base model, training, and the folder that is the judge.

The folder is claimed, written as it goes, and gone on with after a kill.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.datasets.sources import is_on_hub
from adjudge.errors import ConfigError, RunFolderError
from adjudge.files import JsonlLog, iter_rows
from adjudge.graders.llm.trained_judge_card import CARD_FILE, SPEC_FILE, JudgeCard
from adjudge.judges.models.local_loading import compute_model_digest
from adjudge.runs.folder import RunFolder
from adjudge_lab.judge_training.base_model import (
    add_lora,
    merge_lora,
    parameter_changes,
    weight_snapshot,
)
from adjudge_lab.judge_training.dataset import (
    ConversationEncoder,
    JudgeDataset,
    load_demonstrations,
    load_preferences,
)
from adjudge_lab.judge_training.distributed import (
    barrier,
    distributed_rank,
    is_main_process,
    leave_process_group,
    process_count,
    run_distributed,
)
from adjudge_lab.judge_training.grpo import count_grpo_steps
from adjudge_lab.judge_training.judge_file import (
    JUDGE_VARIABLES,
    JudgeFile,
    JudgeJob,
    MetricRow,
    validation_metrics,
)
from adjudge_lab.judge_training.judge_questions import (
    load_labelled,
    make_questions,
)
from adjudge_lab.judge_training.methods import (
    BradleyTerryMethod,
    ConversationMethod,
    GrpoMethod,
    JudgementMethod,
    TrainingMethod,
)
from adjudge_lab.judge_training.report import write_judge_report
from adjudge_lab.judge_training.trl_trainers import (
    TrainerContext,
    check_judge_settings,
    training_steps,
    unsupported_settings,
)
from adjudge_lab.rl.run_folder import (
    check_base_model,
    find_newest_checkpoint,
    truncate_after_step,
)
from adjudge_lab.rl.trl_backend import load_libraries

_METRICS_FILE = "metrics.jsonl"


def open_judge_folder(path: Path, judge: JudgeFile, source: Path) -> JudgeFolder:
    """The folder of a run; of several processes the first one claims it.

    Raises as :class:`JudgeFolder`, in the first process.
    """
    if is_main_process():
        folder = JudgeFolder(path, judge, source)
        barrier()
        return folder
    barrier()
    return ReadOnlyJudgeFolder(path)


class JudgeFolder(RunFolder):
    """``path``, claimed for a run (its file is ``source``), or taken up again where it stopped.

    The trained judge lies in the folder itself, so that the folder is what others are given.
    ``step`` is where it was last saved; rows of later steps are cut off (all of them where it was
    not saved). Raises :class:`~adjudge.errors.RunFolderError` as
    :class:`~adjudge.runs.folder.RunFolder`, and where the base model has changed.
    """

    def __init__(self, path: Path, judge: JudgeFile, source: Path) -> None:
        self._base = judge.base
        super().__init__(
            path,
            _run_facts(judge),
            {"asked": "another seed, or other environment variables"},
            config=source.read_bytes(),
            outputs=("config.json",),
            once=True,
        )

    def _prepare(self) -> None:
        check_base_model(self, self._base)
        self.step, self.checkpoint = find_newest_checkpoint(self.path)
        self._metrics = JsonlLog(self.path / _METRICS_FILE)
        if self.resumed:
            # Without a checkpoint all begins anew, the validation before any step, too.
            truncate_after_step(self._metrics, self.step if self.checkpoint else -1)

    def release(self) -> None:
        """Take the claim back, unless the folder has a result; what verl logged is one."""
        if not any(log.stat().st_size for log in self.path.glob("verl-*.jsonl")):
            super().release()

    @property
    def checkpoints(self) -> Path:
        """Where the trainer saves."""
        return self.path / "checkpoints"

    def record_data_digests(self, digests: Mapping[str, str]) -> None:
        """Note what the run learns from, by hashes of its rows.

        Raises :class:`~adjudge.errors.RunFolderError` where it has learned from something else.
        """
        if self.checkpoint is not None and self.facts.get("rows", digests) != digests:
            raise RunFolderError(
                f"{self.path}: its run began with other rows, so the data has changed. Give "
                "another output folder with -o."
            )
        self.update_facts(rows=digests)

    def rows(self) -> list[dict[str, float]]:
        """The metrics that are written."""
        return list(iter_rows(self.path / _METRICS_FILE, dict[str, Any]))

    def append(self, row: Mapping[str, float]) -> None:
        """One step's metrics."""
        self._metrics.append(row)

    def save_judge(self, model: Any, tokenizer: Any) -> None:
        """Model and tokenizer into the folder, each file whole or not at all."""
        part = self.path / ".judge.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(str(part))
        tokenizer.save_pretrained(str(part))
        for file in part.iterdir():
            os.replace(file, self.path / file.name)  # noqa: PTH105  (atomic)
        part.rmdir()


class ReadOnlyJudgeFolder(JudgeFolder):
    """The folder for a process that trains along: read, never written to."""

    def __init__(self, path: Path) -> None:
        self.path, self.resumed = path, False
        self.step, self.checkpoint = find_newest_checkpoint(path)

    def rows(self) -> list[dict[str, float]]:
        """None: the first process has them."""
        return []

    def record_data_digests(self, digests: Mapping[str, str]) -> None:
        """Nothing: as :meth:`rows`."""

    def append(self, row: Mapping[str, float]) -> None:
        """Nothing: as :meth:`rows`."""

    def release(self) -> None:
        """Nothing: as :meth:`rows`."""

    def close(self) -> None:
        """Nothing is open."""


def _run_facts(judge: JudgeFile) -> dict[str, Any]:
    return {
        "kind": "judge",
        "method": judge.method,
        "label": judge.model.label,
        "seed": judge.trainer.seed,
        "overrides": judge.overrides,
        "asked": msgspec.json.decode(judge.model_dump_json()),  # all that the run depends on
    }


_log = logging.getLogger("adjudge")


def run_judge(job: JudgeJob) -> dict[str, Any]:
    """Train the judge into ``job.folder``, or go on with an interrupted training; the summary.

    The folder then holds the model and its tokenizer, ``judge.json`` (its card), ``metrics.jsonl``,
    ``summary.json``, ``report.html`` and, unless the judge was taught only to answer,
    ``reward.toml``, which asks it. Of several processes that train together the first writes; in
    the others the summary is empty. Raises :class:`~adjudge.errors.ConfigError` for what cannot be
    trained and :class:`~adjudge.errors.RunFolderError` for a folder of another run.
    """
    judge = job.judge
    if judge.backend == "verl":
        raise ConfigError(
            f"{judge.where}: backend = 'verl' does not train on this machine. Set backend = 'trl'."
        )
    started = time.perf_counter()
    check_judge_settings(judge)
    warn_overrides(judge)
    for note in unsupported_settings(judge):
        _log.warning("%s", note)
    if process_count(judge) > 1 and distributed_rank() is None:
        job.summary = run_distributed(job)
        return job.summary
    load_libraries(one_device=distributed_rank() is None, hub=judge.needs_hub)
    with (
        closing(open_judge_folder(job.folder, judge, job.source)) as folder,
        folder.releases_failed_start(),
    ):
        if folder.resumed:
            job.on_resume(folder.step)
        _JudgeRun(job, folder, started).go()
    return job.summary


def warn_overrides(judge: JudgeFile) -> None:
    """Log the keys that the environment sets."""
    for name, value in judge.overrides.items():
        table, key, _ = JUDGE_VARIABLES[name]
        _log.warning("%s.%s is %s, set by the environment variable %s", table, key, value, name)


def make_judge_card(
    judge: JudgeFile, source: Path, data: dict[str, Any], validation: dict[str, Any], **fields: Any
) -> JudgeCard:
    """The card of a judge that learned from ``data``; ``fields`` are its method's own."""
    return JudgeCard(
        adjudge=adjudge.__version__,
        kind="scalar" if judge.is_scalar else "generative",
        method=judge.method,
        mode=judge.mode,
        label=judge.model.label or source.stem,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base={"path": judge.model.path, "digest": compute_model_digest(judge.base)},
        data=data,
        config={**judge.model_dump(mode="json"), "overrides": judge.overrides},
        validation=validation,
        max_length=judge.data.max_length,
        **fields,
    )


def write_judge(
    folder: JudgeFolder,
    judge: JudgeFile,
    card: JudgeCard,
    rows: Sequence[Mapping[str, float]],
    seconds: Mapping[str, float],
    **found: Any,
) -> dict[str, Any]:
    """Write what makes a folder with a model a judge, and what people read; the summary.

    ``rows`` are the metrics of all steps, ``found`` what else the summary says.
    """
    if (spec := reward_spec_of_card(card)) is not None:
        folder.write(SPEC_FILE, spec.encode())
    folder.write_json(CARD_FILE, card)
    summary = {
        "adjudge": card.adjudge,
        "created": card.created,
        "label": card.label,
        "method": judge.method,
        "mode": judge.mode,
        "base": judge.model.path,
        "seed": judge.trainer.seed,
        "overrides": judge.overrides,
        "batch_size": judge.data.train_batch_size,
        "data": card.data,
        "first": validation_metrics(rows, 0),
        "validation": card.validation,
        **found,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }
    write_judge_report(folder.path / "report.html", summary, rows, card)
    folder.write_json("summary.json", summary)
    return summary


def reward_spec_of_card(card: JudgeCard) -> str | None:
    """A reward spec (TOML) for the judge's own folder; ``None`` for one that does not judge.

    A scalar judge gives its output's rank among the validation answers, a pointwise one its rating
    0 to 4; a pairwise one compares all answers of a group; their ranks are the rewards.
    """
    name = _NOT_IN_NAME.sub("_", card.label)[:60] or "judge"
    if not (name[0].isalpha() or name[0] == "_") or name in _RESERVED_NAMES:
        name = f"judge_{name}"
    if card.kind == "scalar":
        judge, lines = _SCALAR_SPEC, 'task = "score"\n'
    elif card.prompt is None:
        return None
    else:
        mode = card.prompt.get("mode", card.mode)
        judge = _PAIRWISE_SPEC if mode == "pairwise" else _POINTWISE_SPEC
        longest = _max_reply_tokens(card, card.prompt)
        lines = "" if longest is None else f"max_tokens = {longest}\n"
    return judge.format(name=name) + f'\n[judges.main]\ntype = "local"\nmodel = "."\n{lines}'


def _max_reply_tokens(card: JudgeCard, prompt: Mapping[str, Any]) -> int | None:
    """Tokens that a reply may have: what the prompt says, else as in training; ``None``: unknown.

    More than that would be taken from what is left for the question.
    """
    if isinstance(said := prompt.get("max_tokens"), int):
        return said
    if card.method == "grpo":
        asked = (card.config.get("grpo") or {}).get("max_response_length")
        return asked if isinstance(asked, int) else None
    lengths = msgspec.to_builtins(card.data.get("lengths"))
    answers = lengths.get("answers") if isinstance(lengths, dict) else None
    if answers is None or lengths.get("unit") != "tokens":
        return None
    return int(answers["longest"]) + _EXTRA_REPLY_TOKENS


_EXTRA_REPLY_TOKENS = 8
"""Tokens that a reply may have beyond the longest that was imitated."""

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_]")
_RESERVED_NAMES = ("source", "events")
_SPEC_COMMENT = "# Asks the judge of this folder: adjudge serve FOLDER\n"
_GRADER_TABLE = '[[graders]]\nname = "{name}"\ntype = "adjudge.graders.llm.trained_judge:'

_SCALAR_SPEC = f"""{_SPEC_COMMENT}\
# Its rank among the validation answers, 0 to 1. For the raw output: type = "scalar"; for the
# probability of being better than the reference: "…trained_judge:ScalarPreference".
{_GRADER_TABLE}RankedScalar"
"""
_POINTWISE_SPEC = f"""{_SPEC_COMMENT}\
# Its rating, 0 to 4, as a share of 4.
{_GRADER_TABLE}TrainedRating"
"""
_PAIRWISE_SPEC = f"""{_SPEC_COMMENT}\
# Compares the answers to one prompt in pairs, in both orders; needs whole groups. To compare with
# a reference instead: "…trained_judge:TrainedPreference".
{_GRADER_TABLE}TrainedTournament"
"""


def _method_class(judge: JudgeFile) -> type[TrainingMethod]:
    """Who knows how the file's method is done."""
    if judge.method == "sft":
        return ConversationMethod if judge.mode is None else JudgementMethod
    return {"bradley_terry": BradleyTerryMethod, "grpo": GrpoMethod}[judge.method]


class _JudgeRun:
    """The state of one run on its way."""

    def __init__(self, job: JudgeJob, folder: JudgeFolder, started: float) -> None:
        self._job, self._judge, self._folder = job, job.judge, folder
        self._rows: list[MetricRow] = list(folder.rows())
        self._started = started
        self._seconds = {"imports": time.perf_counter() - started}

    def go(self) -> None:
        """Train and write."""
        judge, folder = self._judge, self._folder
        with self._timed("data"):
            self._method = _method_class(judge)(judge, folder.path)
            model, tokenizer = self._method.base()
            _check_model_length(judge, model, self._method.tokens())
            self._method.tokenizer, self._method.rows = tokenizer, self._rows
            self._method.encode(ConversationEncoder(tokenizer))
            self._data = self._method.data()
            folder.record_data_digests({k: v for k, v in self._data.items() if "sha256" in k})
        self._steps = self._method.steps()
        self._model = model = add_lora(model, judge.lora, scalar=judge.is_scalar)
        before = weight_snapshot(model)
        with self._timed("training"):
            context = TrainerContext(folder.checkpoints, folder.checkpoint, self._on_row)
            found = self._method.learn(model, context)
        model = found.pop("model", model)
        leave_process_group()  # the first process alone goes on
        if not is_main_process():
            return
        found["weights"] = parameter_changes(model, before, lora=judge.lora is not None)
        model = merge_lora(model, judge.lora)
        self._method.best_step = found["best_step"]
        with self._timed("validation"):
            validation = self._method.validate(model)
        if self._method.material.bayes_accuracy is not None:
            validation["bayes_accuracy"] = self._method.material.bayes_accuracy
        self._finish(model, tokenizer, validation, found)

    def _on_row(self, step: int, row: MetricRow) -> None:
        """One step's metrics, from the trainer."""
        row = {"step": step, **self._method.complete_row(row, self._model)}
        self._rows.append(row)
        self._folder.append(row)
        self._job.on_row(step, row)
        self._job.on_progress("training", step, self._steps)

    def _finish(
        self, model: Any, tokenizer: Any, validation: dict[str, Any], found: dict[str, Any]
    ) -> None:
        judge, method, folder = self._judge, self._method, self._folder
        # Who serves the judge shows it as much of a conversation as it was trained on.
        tokenizer.model_max_length = method.tokens()
        folder.save_judge(model, tokenizer)
        card = make_judge_card(
            judge,
            self._job.source,
            self._data,
            validation,
            **method.card_fields(),
        )
        self._job.summary = write_judge(
            folder,
            judge,
            card,
            self._rows,
            {**self._seconds, "total": time.perf_counter() - self._started},
            **found,
            not_done=unsupported_settings(judge),
            steps=self._steps,
            tokens_per_s=found["tokens"] / max(self._seconds["training"], 1e-9),
            learned=method.learned,
            **method.summary_fields(),
            resumed_from=folder.step if folder.resumed else None,
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started


def _check_model_length(judge: JudgeFile, model: Any, tokens: int) -> None:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most and tokens > most:
        judge.refuse(
            "data.max_length",
            f"makes {tokens} tokens, but the model takes at most {most}. Lower it.",
        )


def plan_training(judge: JudgeFile) -> dict[str, int] | None:
    """Rows and updates of a run, from its data alone; ``None`` where that is on the hub.

    At most: rows that a model takes no more are known with its tokenizer. Raises
    :class:`~adjudge.errors.ConfigError` for data that the run could not use.
    """
    if any(map(is_on_hub, (*judge.data.train, *judge.data.val))):
        return None
    material: JudgeDataset[Any]
    if judge.mode is None:
        material = load_preferences(judge) if judge.is_scalar else load_demonstrations(judge)
        steps = training_steps(judge, len(material.train))
    else:
        labelled = load_labelled(judge)
        material = labelled.material
        questions, _ = make_questions(material.train, labelled.form, b"plan")
        count = count_grpo_steps if judge.method == "grpo" else training_steps
        steps = count(judge, len(questions))
    unusable = material.facts.get("unreadable", {}).get("rows", 0)
    return {
        "train_rows": len(material.train),
        "val_rows": len(material.val),
        "unusable": unusable,
        "steps": steps,
    }
