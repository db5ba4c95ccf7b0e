"""Forms read the usual reply on a short way: it must say what the reader says on the long one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from adjudge.graders.llm.forms import FieldsForm, ScoreForm
from adjudge.verdicts import Unread, Verdict, read_fields, read_score

KEYS = st.sampled_from(['"score"', '"reason"', '"\\u0073core"', '"steps"'])
VALUES = st.sampled_from([
    "1", "5", "6", "4.5", "1e999", "NaN", "1" * 310, "1" * 5_000, "true", "null", "[1]",
    '"fine"', '"\u200bfine"', f'"wide{" " * 12}gap"', '"</think>"', '"\\u200b"', '"\ud800"',
    '"\\ud800"', '{"score": 2}', '{"a": 1, "a": 2}', '[{"score": 3}]', "[" * 60 + "]" * 60,
])  # fmt: skip
PAIRS = st.lists(st.tuples(KEYS, VALUES).map(": ".join), max_size=4)
OBJECTS = PAIRS.map(lambda pairs: f"{{{', '.join(pairs)}}}")
REPLIES = st.tuples(
    st.sampled_from(["", "\n", " ", "So: ", "```json\n"]), OBJECTS, st.sampled_from(["", "\n", "."])
).map("".join)


REASON = '"reason": "It is right in every respect."'


@example(
    text=f'{{{REASON}, "\\u0073core": 1, "score": 5}}', keys=("score",), echoed=False, cut=False
)
@example(text=f'{{{REASON}, "score": 5}}\n', keys=("score",), echoed=True, cut=False)
@given(
    text=REPLIES,
    keys=st.sampled_from([(), ("score",), ("score", "reason")]),
    echoed=st.booleans(),
    cut=st.booleans(),
)
def test_the_quick_way_says_what_the_long_one_says(
    text: str, keys: tuple[str, ...], *, echoed: bool, cut: bool
) -> None:
    quoted = [f"It ends in {text.strip()} as asked."] if echoed else ["Something else."]
    quick = FieldsForm.of(keys).read(text, block=None, quoted=quoted, cut=cut)
    assert repr(quick) == repr(read_fields(text, keys, quoted=quoted, cut=cut))  # NaN is not NaN

    quick = ScoreForm(1, 5).read(text, block=None, quoted=quoted, cut=cut)
    slow = read_score(text, low=1, high=5, integer=True, quoted=quoted, cut=cut)
    assert meant(quick) == meant(slow)


def meant(read: Verdict | Unread) -> object:
    return read.value if isinstance(read, Verdict) else (read.kind, read.why)
