"""The policy at the start of a run: built on the spot, or loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from adjudge.judges.local.loading import Wanted, load
from adjudge.training.demonstrations import demonstrations_of
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import TINY
from adjudge.training.runfile.template import chat_template
from adjudge.training.tiny import build_model, build_tokenizer
from adjudge.training.warm_start import warm_start

__all__ = ["base_place", "first_policy", "load_policy", "needs_hub", "save_policy"]


def first_policy(
    run: RunFile, scratch: str, on_step: Callable[[int], None]
) -> tuple[Any, Any, list[float]]:
    """Model, tokenizer and the losses of the warm start.

    ``tiny`` is built, and imitates demonstrations of the task; any other base is loaded as it is.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    training = run.training
    if run.model.base != TINY:
        return *load_policy(base_place(run), chat_template(run)), []
    rows = demonstrations_of(run)
    wordy = run.is_multi_turn or any(len(row["messages"]) > 2 for row in rows)
    tokenizer = build_tokenizer(_texts(rows), vocabulary=1000 if wordy else 420)
    model = build_model(tokenizer, seed=training.seed)
    losses = warm_start(
        model, tokenizer, rows,
        steps=training.warm_start_iterations, seed=training.seed, folder=scratch, on_step=on_step,
    )  # fmt: skip
    return model, tokenizer, losses


def load_policy(place: str | Path, template: str | None = None) -> tuple[Any, Any]:
    """A language model and its tokenizer, from a folder or by name, in float32 to be trained.

    ``template``: a chat template in place of the tokenizer's own; it is saved with it. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    loaded = load(Wanted(str(place), "chat", dtype="float32", chat_template=template))
    loaded.tokenizer.padding_side = "left"
    if loaded.tokenizer.pad_token_id is None:
        loaded.tokenizer.pad_token = loaded.tokenizer.eos_token
    return loaded.model, loaded.tokenizer


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write both where :func:`load_policy`, a server or another trainer can load them."""
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def needs_hub(run: RunFile) -> bool:
    """Whether the run begins with a model that is named, not lying here."""
    return run.model.base != TINY and not Path(base_place(run)).is_dir()


def base_place(run: RunFile) -> str:
    """The folder of the model that the run begins with, or its name on the hub."""
    beside = run.folder / run.model.base
    return str(beside) if beside.is_dir() else run.model.base


def _texts(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (turn["content"] for row in rows for turn in row["messages"])
