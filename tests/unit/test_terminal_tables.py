"""Tables in a narrow terminal: columns are left out in a stated order, and nothing is cut."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st
from rich.cells import cell_len
from tests.unit.helpers.narrow_terminal import shown

from adjudge.report.table import Column, Table, numeric


def test_columns_go_in_the_stated_order() -> None:
    columns = ["grader", *numeric("mean"), Column("95 %", "i"), *numeric("std", "missing")]
    rows = [["helpfulness", "0.512", "0.498 to 0.526", "0.101", "6 (9.4%)"]]
    table = Table(columns, rows, drop=("std",), keep=("mean", "missing"))
    heads, left = [], []
    for width in (80, 47, 40, 30):
        first, *_, last = shown(table, width).splitlines()
        heads.append(first.split())
        left.append(last.strip())
    assert heads == [
        ["grader", "mean", "95", "%", "std", "missing"],
        ["grader", "mean", "95", "%", "missing"],
        ["grader", "mean", "missing"],
        ["grader", "mean", "missing"],
    ]
    assert left[1] == "columns left out for width: std; --json has all"
    assert "0.512" in shown(table, 30)


def test_a_name_is_broken_only_after_everything_else_went() -> None:
    name = "http://judges.example.org:8000/v1#Qwen2.5-7B-Instruct"
    text = shown(Table(["judge", *numeric("calls/s", "calls")], [[name, "1,234.5", "98,765"]]), 30)
    assert "1,234.5" in text
    assert "98,765" not in text
    assert "http://judges" in text
    assert "".join(line[:21].strip() for line in text.splitlines()[1:-2]) == name


CELLS = st.one_of(
    st.text("ab 一é/_.…", max_size=60),
    st.floats(allow_nan=False, width=16).map(lambda x: f"{x:.3f}"),
)


@settings(max_examples=25)
@given(
    rows=st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(["", "n", "i", "c"]), min_size=4, max_size=4),
    width=st.integers(12, 90),
)
def test_no_line_is_too_long_and_nothing_of_a_shown_cell_is_lost(
    rows: list[list[str]], kinds: list[str], width: int
) -> None:
    columns = [Column(f"h{place}", kind) for place, kind in enumerate(kinds)]
    table = Table(columns, rows)
    text = shown(table, width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    heading = text.splitlines()[0]
    for place, one in enumerate(columns):
        if str(one.heading) in heading:
            alone = shown(Table([one], [[row[place]] for row in rows]), 2000)
            for character in set("".join(alone.split())):
                assert text.count(character) >= alone.count(character)
    assert "h0" in heading
