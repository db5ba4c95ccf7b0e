"""The reader of forms on recorded replies: dressed in our forms all are read, undressed none is.

The data stays outside the project: set ``ADJUDGE_DATA`` to a folder that has ``llmbar/`` (judges'
comparisons with the winner that their authors read) and ``hard/`` (replies with what is right).
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.contract.test_recorded_verdicts import comparisons
from tests.recorded import find_recorded

from adjudge.graders.llm.reply_forms import ChoiceForm, MarksForm, ScoreForm
from adjudge.verdicts import UnreadableReply, Verdict, read_object

pytestmark = pytest.mark.needs

BLOCK = "verdict-3fa9c0d1e2b34567"
PAIR = ChoiceForm(["A", "B"])


def test_recorded_completions_in_our_forms_are_all_read() -> None:
    outcomes = Counter[str]()
    for one in comparisons(find_recorded("llmbar")):
        if one.recorded is None:
            continue
        found = json.dumps({"reason": one.text, "better": one.recorded}, ensure_ascii=False)
        dressed = {
            None: (found, f"```json\n{found}\n```", f"<think>{one.recorded}?</think>{found}"),
            BLOCK: (f"{one.text}\n\n<{BLOCK}>\n{found}\n</{BLOCK}>",),
        }
        for block, texts in dressed.items():
            for text in texts:
                read = read_object(text, block=block, quoted=one.candidates)
                verdict = read if isinstance(read, UnreadableReply) else PAIR.verdict_of(read)
                right = isinstance(verdict, Verdict) and verdict.value == one.recorded
                outcomes["right" if right else "refused"] += 1
                assert right or isinstance(verdict, UnreadableReply)
    assert outcomes["refused"] <= 0.002 * outcomes.total(), outcomes


def test_recorded_completions_as_they_are_have_no_verdict() -> None:
    for one in comparisons(find_recorded("llmbar")):
        assert isinstance(read_object(one.text), UnreadableReply)
        assert isinstance(read_object(one.text, block=BLOCK), UnreadableReply)


def test_no_hard_reply_has_a_wrong_verdict() -> None:
    path = find_recorded("hard/verdicts_and_answers.jsonl")
    for case in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if case["reader"] not in {"score", "marks"}:
            continue
        args = case["args"]
        form = (
            ScoreForm(args["low"], args["high"], integer=False)
            if case["reader"] == "score"
            else MarksForm(args["args"][0], ("yes", "no"))
        )
        found = read_object(case["text"], quoted=args.get("quoted", ()), cut=args.get("cut", False))
        verdict = found if isinstance(found, UnreadableReply) else form.verdict_of(found)
        if isinstance(verdict, Verdict):
            assert verdict.value in [v for v in case["expected"] if v != "refuse"], case
