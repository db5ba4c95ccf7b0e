"""What the card of a generative judge says of how it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.card import read_card
from adjudge.judge_training.generative.prompt import Mode, grpo_template
from adjudge.judge_training.generative.questions import Form
from adjudge.judge_training.scalar.calibration import RatingCalibration
from adjudge.prompts import PromptTemplate

__all__ = ["Taught", "prompt_of", "taught"]


class Taught(msgspec.Struct, frozen=True):
    """How a judge was trained to be asked (``form``, in the wording ``template``).

    ``ratings``: what its ratings are worth, if its card says so.
    """

    form: Form
    template: PromptTemplate
    ratings: RatingCalibration | None = None


def prompt_of(form: Form) -> dict[str, Any]:
    """``form`` as a card's ``prompt``: with the whole wording, so that no other is ever used."""
    template = grpo_template(form.mode, ties=form.ties)
    found: dict[str, Any] = msgspec.to_builtins(form)
    return {
        **found,
        "template": template.hash,
        "messages": msgspec.to_builtins(template.messages),
    }


def taught(folder: Path | str, mode: Mode) -> Taught:
    """How the judge of ``folder`` is asked to judge in ``mode``.

    Raises :class:`~adjudge.errors.ConfigError` for a folder without a card, and for a judge that is
    scalar, was taught to answer rather than to judge, judges in the other mode, or was trained with
    a wording that is neither in its card nor today's.
    """
    card = read_card(folder)
    if card.kind != "generative":
        raise ConfigError(f"{folder}: its judge is {card.kind}; ask it by RankedScalar")
    if card.prompt is None:
        raise ConfigError(
            f"{folder}: it was taught to answer, not to judge ({card.method}): its card has no "
            "prompt; train it with method = 'grpo', or on judgements"
        )
    try:
        form = msgspec.convert(card.prompt, Form)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{folder}: prompt: the card's is none: {error}") from None
    if form.mode != mode:
        asks = "TrainedRating" if form.mode == "pointwise" else "TrainedTournament"
        raise ConfigError(f"{folder}: its judge is {form.mode}, not {mode}; ask it by {asks}")
    return Taught(form, _wording(card.prompt, form, folder), card.rating_calibration)


def _wording(prompt: dict[str, Any], form: Form, folder: Path | str) -> PromptTemplate:
    today = grpo_template(form.mode, ties=form.ties)
    kept = prompt.get("messages")
    template = today if kept is None else PromptTemplate(kept)
    if form.template and template.hash != form.template:
        remedy = (
            "its card does not have the words; train it again, or take 'template' out of the "
            "card's prompt to ask in today's"
            if kept is None
            else "the card's words are others; put them back"
        )
        raise ConfigError(
            f"{folder}: it was trained with the wording {form.template}, but {remedy}"
        )
    if template.fields != today.fields or template.exposed:
        names = ", ".join(sorted(today.fields))
        raise ConfigError(f"{folder}: prompt: its fields must be {names}, in the user's message")
    if form.language not in template.languages:
        raise ConfigError(f"{folder}: prompt: has no words in its language, {form.language}")
    return template
