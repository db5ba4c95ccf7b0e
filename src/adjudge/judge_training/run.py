"""A judge's whole training: rows, base model, training, and the folder that is the judge."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import adjudge
from adjudge.errors import ConfigError
from adjudge.judge_training.base import adapted, load_base, merged, moved, prepare, snapshot
from adjudge.judge_training.card import CARD, SPEC, Card, normalisation_of, spec_text
from adjudge.judge_training.folder import JudgeFolder
from adjudge.judge_training.judge_tables import VARIABLES
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import (
    Encoded,
    Encoder,
    Material,
    demonstrations_of,
    encoded,
    lengths_of,
    preferences_of,
    rows_digest,
)
from adjudge.judge_training.report import write_judge_report
from adjudge.judge_training.scalar.bradley_terry import (
    PairScores,
    margins_of,
    score_pairs,
    train_bradley_terry,
)
from adjudge.judge_training.scalar.pair_metrics import pair_metrics
from adjudge.judge_training.sft import learns_all_turns, train_sft
from adjudge.judge_training.trainer_settings import Row, left_undone, steps_of
from adjudge.judges.local.loading import digest

__all__ = ["JudgeJob", "run_judge"]


_log = logging.getLogger("adjudge")


@dataclass
class JudgeJob:
    """A judge's training file and a folder to train it into.

    ``on_progress(stage, done, total)`` hears of each step, ``on_row`` of its metrics. ``summary``
    is what :func:`run_judge` found, the content of ``summary.json``.
    """

    judge: JudgeFile
    source: Path
    folder: Path
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    on_row: Callable[[int, Row], None] = lambda *_: None
    summary: dict[str, Any] = field(default_factory=dict)


def run_judge(job: JudgeJob) -> dict[str, Any]:
    """Train the judge into ``job.folder``, or go on with an interrupted training; the summary.

    The folder then holds the model and its tokenizer, ``judge.json`` (its card), ``metrics.jsonl``,
    ``summary.json``, ``report.html`` and, for a scalar judge, ``reward.toml``, which asks it.
    Raises :class:`~adjudge.errors.ConfigError` for what cannot be trained and
    :class:`~adjudge.errors.RunFolderError` for a folder of another run.
    """
    judge = job.judge
    if judge.method == "grpo" or judge.backend == "verl":
        raise ConfigError(
            f"{judge.where}: method = {judge.method!r} on backend = {judge.backend!r} is not "
            "trained here; 'sft' and 'bradley_terry' on 'trl' are"
        )
    started = time.perf_counter()
    for name, value in judge.overrides.items():
        table, key, _ = VARIABLES[name]
        _log.warning("%s.%s is %s, by the environment variable %s", table, key, value, name)
    for note in left_undone(judge):
        _log.warning("%s", note)
    prepare()
    with closing(JudgeFolder(job.folder, judge, job.source)) as folder:
        _Run(job, folder, started).go()
    return job.summary


class _Run:
    """The state of one run on its way."""

    def __init__(self, job: JudgeJob, folder: JudgeFolder, started: float) -> None:
        self._job, self._judge, self._folder = job, job.judge, folder
        self._rows: list[dict[str, float]] = list(folder.rows())
        self._started = started
        self._seconds = {"imports": time.perf_counter() - started}

    def go(self) -> None:
        """Train and write."""
        judge = self._judge
        with self._timed("data"):
            material = self._material()
            model, tokenizer = load_base(judge, _texts(material))
            _check_length(judge, model)
            encoder = Encoder(tokenizer)
            train = encoded(material.train, encoder, judge, "data.train")
            val = encoded(material.val, encoder, judge, "data.val")
            lengths = lengths_of(train, encoder, judge)
        self._steps = steps_of(judge, len(train.rows))
        model = adapted(model, judge.lora, scalar=judge.is_scalar)
        before = snapshot(model)
        learn: Any = train_bradley_terry if judge.is_scalar else train_sft
        with self._timed("training"):
            found = learn(
                model, tokenizer, train, val, judge,
                folder=self._folder.checkpoints, resume=self._folder.checkpoint,
                on_row=self._row, on_saved=lambda _: None,
            )  # fmt: skip
        found["weights"] = moved(model, before, lora=judge.lora is not None)
        model = merged(model, judge.lora)
        data = {
            **material.facts,
            "train_rows": train.facts,
            "val_rows": val.facts,
            "train_sha256": rows_digest(train.rows),
            "val_sha256": rows_digest(val.rows),
            "lengths": lengths,
        }
        with self._timed("validation"):
            validation, scores = self._validated(model, tokenizer, val)
        if material.bayes_accuracy is not None:
            validation["bayes_accuracy"] = material.bayes_accuracy
        self._finish(model, tokenizer, train, data, validation, scores, found)

    def _material(self) -> Material[Any]:
        judge = self._judge
        return preferences_of(judge) if judge.is_scalar else demonstrations_of(judge)

    def _row(self, step: int, row: Row) -> None:
        row = {"step": step, **row}
        self._rows.append(row)
        self._folder.append(row)
        self._job.on_row(step, row)
        self._job.on_progress("training", step, self._steps)

    def _validated(
        self, model: Any, tokenizer: Any, val: Encoded[Any]
    ) -> tuple[dict[str, Any], PairScores]:
        """Metrics of the model that is kept: what its best step said, or, for pairs, anew."""
        if not self._judge.is_scalar:
            best = min(
                (row for row in self._rows if "val/loss" in row), key=lambda r: r["val/loss"]
            )
            return {k.removeprefix("val/"): v for k, v in best.items() if "val/" in k}, []
        size = self._judge.data.micro_batch_size
        # In float32, as the judge is saved.
        scores = score_pairs(model, tokenizer.pad_token_id, val.ids, size, nullcontext)
        if not all(math.isfinite(score) for pair in scores for score in pair):
            self._judge.refuse("optim.lr", "the judge's outputs are no numbers any more; lower it")
        lengths = [(len(chosen), len(rejected)) for chosen, rejected in val.ids]
        subsets: dict[str, list[bool]] = {}
        for row, (chosen, rejected) in zip(val.rows, scores, strict=True):
            subsets.setdefault(row.subset or "all", []).append(chosen > rejected)
        by_subset = {
            name: {"rows": len(right), "accuracy": sum(right) / len(right)}
            for name, right in sorted(subsets.items())
        }
        metrics: dict[str, Any] = {
            **pair_metrics(scores, lengths, margins_of(val, self._judge)),
            "rows": len(scores),
        }
        return {**metrics, "subsets": by_subset}, scores

    def _finish(
        self,
        model: Any,
        tokenizer: Any,
        train: Encoded[Any],
        data: dict[str, Any],
        validation: dict[str, Any],
        scores: PairScores,
        found: dict[str, Any],
    ) -> None:
        judge, folder = self._judge, self._folder
        # Who serves the judge shows it as much of a conversation as it was trained on.
        tokenizer.model_max_length = judge.data.max_length
        folder.save_judge(model, tokenizer)
        label = judge.model.label or job_label(self._job)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        card = Card(
            adjudge=adjudge.__version__,
            kind="scalar" if judge.is_scalar else "generative",
            method=judge.method,
            mode=judge.mode,
            label=label,
            created=created,
            base={"path": judge.model.path, "digest": digest(judge.base)},
            data=data,
            config={**judge.model_dump(mode="json"), "overrides": judge.overrides},
            validation=validation,
            max_length=judge.data.max_length,
            normalisation=normalisation_of([s for pair in scores for s in pair])
            if scores
            else None,
            trained_ids=tuple(sorted({one for row in train.rows for one in row.source_ids})),
        )
        if judge.is_scalar:
            folder.write(SPEC, spec_text(label).encode())
        folder.write_json(CARD, card)
        seconds = {**self._seconds, "total": time.perf_counter() - self._started}
        self._job.summary = {
            "adjudge": adjudge.__version__,
            "created": created,
            "label": label,
            "method": judge.method,
            "base": judge.model.path,
            "seed": judge.trainer.seed,
            "overrides": judge.overrides,
            "not_done": left_undone(judge),
            "steps": self._steps,
            "batch_size": judge.data.train_batch_size,
            **found,
            "tokens_per_s": found["tokens"] / max(self._seconds["training"], 1e-9),
            "learned": "answers"
            if judge.is_scalar
            else ("all turns" if learns_all_turns(tokenizer) else "last turns"),
            "data": data,
            "first": _first_validation(self._rows),
            "validation": validation,
            "resumed_from": folder.step if folder.resumed else None,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
        }
        write_judge_report(folder.path / "report.html", self._job.summary, self._rows, card)
        folder.write_json("summary.json", self._job.summary)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started


def job_label(job: JudgeJob) -> str:
    """What a judge without a label is called: its training file."""
    return job.source.stem


def _texts(material: Material[Any]) -> Iterator[str]:
    """All that is said in the training rows, for a tiny model's tokenizer."""
    for row in material.train:
        sides = [row.chosen, row.rejected] if hasattr(row, "chosen") else [row.messages]
        for side in sides:
            for turn in side:
                if isinstance(turn["content"], str):
                    yield turn["content"]


def _check_length(judge: JudgeFile, model: Any) -> None:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most and judge.data.max_length > most:
        judge.refuse(
            "data.max_length", f"is {judge.data.max_length}, but the model takes {most} tokens"
        )


def _first_validation(rows: list[dict[str, float]]) -> dict[str, float]:
    """The metrics before any step."""
    first = next((row for row in rows if row["step"] == 0), {})
    return {k.removeprefix("val/"): v for k, v in first.items() if k.startswith("val/")}
