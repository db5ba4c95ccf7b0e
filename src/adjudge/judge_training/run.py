"""A judge's whole training: rows, base model, training, and the folder that is the judge."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import adjudge
from adjudge.errors import ConfigError
from adjudge.judge_training.base import adapted, merged, moved, snapshot
from adjudge.judge_training.card import CARD, SPEC, Card, spec_of
from adjudge.judge_training.distributed import launched, leads, processes, run_launched
from adjudge.judge_training.folder import Followed, JudgeFolder, open_folder
from adjudge.judge_training.generative.methods import Grpo, Judgements
from adjudge.judge_training.judge_tables import VARIABLES
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import Encoder
from adjudge.judge_training.method import Method
from adjudge.judge_training.methods import Conversations, Pairs
from adjudge.judge_training.report import write_judge_report
from adjudge.judge_training.trainer_settings import Row, left_undone
from adjudge.judges.local.loading import digest
from adjudge.training.libraries import load_libraries

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
    ``summary.json``, ``report.html`` and, unless the judge was taught only to answer,
    ``reward.toml``, which asks it. Of several processes that train together the first writes; in
    the others the summary is empty. Raises :class:`~adjudge.errors.ConfigError` for what cannot be
    trained and :class:`~adjudge.errors.RunFolderError` for a folder of another run.
    """
    judge = job.judge
    if judge.backend == "verl":
        raise ConfigError(f"{judge.where}: backend = 'verl' is not trained here; 'trl' is")
    started = time.perf_counter()
    for name, value in judge.overrides.items():
        table, key, _ = VARIABLES[name]
        _log.warning("%s.%s is %s, by the environment variable %s", table, key, value, name)
    for note in left_undone(judge):
        _log.warning("%s", note)
    if processes(judge) > 1 and launched() is None:
        job.summary = run_launched(job)
        return job.summary
    load_libraries(one_device=launched() is None, hub=judge.needs_hub)
    with closing(open_folder(job.folder, judge, job.source)) as folder:
        _Run(job, folder, started).go()
    return job.summary


def _method(judge: JudgeFile) -> type[Method]:
    """Who knows how the file's method is done."""
    if judge.method == "sft":
        return Conversations if judge.mode is None else Judgements
    return {"bradley_terry": Pairs, "grpo": Grpo}[judge.method]


class _Run:
    """The state of one run on its way; what its :class:`Method` is told."""

    def __init__(self, job: JudgeJob, folder: JudgeFolder | Followed, started: float) -> None:
        self._job, self._judge, self._folder = job, job.judge, folder
        self._rows: list[Row] = list(folder.rows())
        self._started = started
        self._seconds = {"imports": time.perf_counter() - started}
        self.folder, self.resume = folder.checkpoints, folder.checkpoint

    def go(self) -> None:
        """Train and write."""
        judge = self._judge
        with self._timed("data"):
            self._method = _method(judge)(judge, self._folder.path)
            model, tokenizer = self._method.base()
            _check_length(judge, model, self._method.tokens())
            self._method.tokenizer, self._method.rows = tokenizer, self._rows
            self._method.encode(Encoder(tokenizer))
            self._data = self._method.data()
            self._folder.learns_from({k: v for k, v in self._data.items() if "sha256" in k})
        self._steps = self._method.steps()
        self._model = model = adapted(model, judge.lora, scalar=judge.is_scalar)
        before = snapshot(model)
        with self._timed("training"):
            found = self._method.learn(model, self)
        model = found.pop("model", model)
        if not leads():
            return
        found["weights"] = moved(model, before, lora=judge.lora is not None)
        model = merged(model, judge.lora)
        self._method.kept = found["best_step"]
        with self._timed("validation"):
            validation = self._method.validated(model)
        if self._method.material.bayes_accuracy is not None:
            validation["bayes_accuracy"] = self._method.material.bayes_accuracy
        assert isinstance(self._folder, JudgeFolder)  # noqa: S101  (this process leads)
        self._finish(self._folder, model, tokenizer, validation, found)

    def on_row(self, step: int, row: Row) -> None:
        """One step's metrics, from the trainer."""
        row = {"step": step, **self._method.noted(row, self._model)}
        self._rows.append(row)
        self._folder.append(row)
        self._job.on_row(step, row)
        self._job.on_progress("training", step, self._steps)

    def _finish(
        self,
        folder: JudgeFolder,
        model: Any,
        tokenizer: Any,
        validation: dict[str, Any],
        found: dict[str, Any],
    ) -> None:
        judge, method, data = self._judge, self._method, self._data
        # Who serves the judge shows it as much of a conversation as it was trained on.
        tokenizer.model_max_length = method.tokens()
        folder.save_judge(model, tokenizer)
        card = self._card(validation)
        if (spec := spec_of(card)) is not None:
            folder.write(SPEC, spec.encode())
        folder.write_json(CARD, card)
        seconds = {**self._seconds, "total": time.perf_counter() - self._started}
        self._job.summary = {
            "adjudge": adjudge.__version__,
            "created": card.created,
            "label": card.label,
            "method": judge.method,
            "mode": judge.mode,
            "base": judge.model.path,
            "seed": judge.trainer.seed,
            "overrides": judge.overrides,
            "not_done": left_undone(judge),
            "steps": self._steps,
            "batch_size": judge.data.train_batch_size,
            **found,
            "tokens_per_s": found["tokens"] / max(self._seconds["training"], 1e-9),
            "learned": method.learned(),
            "data": data,
            "first": _first_validation(self._rows),
            "validation": validation,
            **method.in_summary(),
            "resumed_from": folder.step if folder.resumed else None,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
        }
        write_judge_report(folder.path / "report.html", self._job.summary, self._rows, card)
        folder.write_json("summary.json", self._job.summary)

    def _card(self, validation: dict[str, Any]) -> Card:
        judge = self._judge
        return Card(
            adjudge=adjudge.__version__,
            kind="scalar" if judge.is_scalar else "generative",
            method=judge.method,
            mode=judge.mode,
            label=judge.model.label or self._job.source.stem,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            base={"path": judge.model.path, "digest": digest(judge.base)},
            data=self._data,
            config={**judge.model_dump(mode="json"), "overrides": judge.overrides},
            validation=validation,
            max_length=judge.data.max_length,
            trained_ids=self._method.trained_ids(),
            **self._method.on_card(),
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started


def _check_length(judge: JudgeFile, model: Any, tokens: int) -> None:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most and tokens > most:
        judge.refuse("data.max_length", f"makes {tokens} tokens, but the model takes {most}")


def _first_validation(rows: list[Row]) -> Row:
    """The metrics before any step."""
    first = next((row for row in rows if row["step"] == 0), {})
    return {k.removeprefix("val/"): v for k, v in first.items() if k.startswith("val/")}
