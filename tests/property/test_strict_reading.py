"""Whatever surrounds it, the form that was asked for is all that is read."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import assume, example, given, strategies as st
from tests.property.test_verdicts import REPLIES, REPLY

from adjudge.graders.llm.reply_forms import ChoiceForm, JudgeReplyForm, MarksForm, ScoreForm
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge.verdicts.strict import read_object

BLOCK = "verdict-3fa9c0d1e2b34567"
FORMS: list[JudgeReplyForm] = [
    ScoreForm(1, 5),
    ChoiceForm(["A", "B"]),
    MarksForm([False] * 3),
]
VALUES = st.sampled_from([1, 5, "4", "A", "b", "MET", "met: no", None, True, [4], {"score": 4}])
OBJECTS = st.dictionaries(
    st.sampled_from(["score", "reason", "better", "1", "2", "3", "final"]), VALUES, max_size=3
)


def meant(found: dict[str, object]) -> list[object]:
    return [read.value for form in FORMS if isinstance(read := form.verdict_of(found), Verdict)]


@given(text=REPLY)
@example(text='{"score": 4}<think>')  # the object is not the judge's last word
@example(text='{"score": 4}<think>No: 2.</think>')
@example(text='{"sco<think>…</think>re": 4}')
def test_an_object_with_words_beside_it_is_no_verdict(text: str) -> None:
    assert isinstance(read_object(text + " Done."), UnreadableReply)
    assert isinstance(read_object(text, block=BLOCK), UnreadableReply)


@given(before=REPLY, after=REPLY, found=OBJECTS)
def test_no_text_around_the_block_changes_what_is_read(
    before: str, after: str, found: dict[str, object]
) -> None:
    text = f"{before}\n<{BLOCK}>{json.dumps(found)}</{BLOCK}>\n{after}"
    read = read_object(text, block=BLOCK)
    if isinstance(read, UnreadableReply):  # thinking tags may hide it; nothing may change it
        assert any(name in before + after for name in ("think", "thought", "reasoning"))
    else:
        assert meant(read) == meant(json.loads(json.dumps(found)))


@given(
    found=OBJECTS,
    candidate=st.sampled_from(REPLIES),
    fenced=st.booleans(),
    thought=st.booleans(),
)
def test_well_formed_replies_are_read_whatever_is_quoted_in_them(
    found: dict[str, object], candidate: str, fenced: bool, thought: bool
) -> None:
    found = {**found, "reason": f"It says: {candidate}"}
    text = json.dumps(found, ensure_ascii=False)
    text = f"```json\n{text}\n```" if fenced else text
    if thought:
        text = f"<think>First 5, then {{1}}.</think>\n{text}"
    if thought and any(name in candidate for name in ("think", "thought", "reasoning")):
        return  # a tag in the reason is one as soon as the reply has others
    read = read_object(text, quoted=[candidate])
    assert not isinstance(read, UnreadableReply)
    assert meant(read) == meant(found)


ENDS = st.floats(-1e6, 1e6).map(lambda end: round(end, 4))


@given(low=ENDS, high=ENDS)
@example(low=1.0, high=5.0)
@example(low=0.0, high=1.0)
@example(low=0.005, high=1.0)
@example(low=0.0, high=250.0)
def test_the_points_that_a_schema_allows_lie_in_the_scale_and_can_be_read(
    low: float, high: float
) -> None:
    assume(low < high)
    form = ScoreForm(low, high, integer=False)
    points = form.schema["properties"]["score"].get("enum")
    assert (points is None) == (high - low > 250)
    if points is None:
        return
    assert points == sorted(set(points))
    assert (points[0], points[-1]) == (low, high)
    assert len(points) <= 252
    assert all(after - before < 1.0 + 1e-9 for before, after in pairwise(points))
    for point in points:
        verdict = form.verdict_of(json.loads(json.dumps({"reason": "", "score": point})))
        assert isinstance(verdict, Verdict)
        assert verdict.value == point
