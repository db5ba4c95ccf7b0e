"""Pages, tables and charts of all reports: text stays text, and a page admits its style alone."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from jinja2 import Environment, PackageLoader, UndefinedError, meta
from rich.console import Console

from adjudge.report.charts import (
    ChartLine,
    forest_strip,
    histogram_chart,
    line_chart,
    reliability_diagram,
    scatter_chart,
    signed_strip,
)
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    bold,
    code,
    element_text,
    embed_json,
    format_number,
    format_percent,
    notes_section,
    quote,
    render_page,
    render_prose,
    small,
)
from adjudge.report.table import Column, Table, lost, numeric
from adjudge.stats import Bins, Estimate

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "lab" / "src")
HOSTILE = [
    "</title></style></script><script>alert(1)</script>",
    "<!--<script>",
    '"onload="alert(2)" x="',
    "'onmouseover='alert(3)'",
    "{{7*7}} {% include 'page.css' %} {# #} ${7*7} {0} %s",
    "abc\u202egnp.exe\u202c \u200bzero \ufeff\x00\x07",
    "half \ud83d a pair \udfff",
    "&lt;b&gt; &amp;",
]


@cache
def templates() -> list[tuple[str, str]]:
    """Packages and the templates in them."""
    return [
        (".".join(path.parent.relative_to(source).parts), path.name)
        for source in SOURCES
        for path in sorted(source.rglob("*.html"))
        if "/view/" not in str(path) and "/service/" not in str(path)
    ]


class Markup(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class Anything:
    """A value of any shape that a template asks for, made of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from (self, self)


def whole_page(text: str) -> str:
    """A page with ``text`` wherever one can stand."""
    content = [text, Table([text], [[text]], caption=text), Element("p", text, title=text)]
    section, tile = Section("a", text, content, text), Tile(text, text, text)
    return render_page(text, [(text, [text])], [section], tiles=[tile], above=text)


@pytest.mark.parametrize(("package", "name"), templates(), ids=str)
@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_template_is_given_stays_text(package: str, name: str, text: str) -> None:
    if (package, name) == ("adjudge.report", "page.html"):
        page, harmless = whole_page(text), whole_page("t")
    else:
        loader = PackageLoader(package, ".")
        source = loader.get_source(Environment(loader=loader), name)[0]
        wanted = meta.find_undeclared_variables(Environment(autoescape=True).parse(source))
        page = render_prose(package, name, **{one: Anything(text) for one in wanted})
        harmless = render_prose(package, name, **{one: Anything("t") for one in wanted})
    found, plain = Markup(page), Markup(harmless)
    assert found.tags == plain.tags
    assert found.names == plain.names
    assert page == harmless or "7*7" not in text or "{{7*7}}" in page


@given(st.text(), st.text())
def test_an_element_holds_any_text(content: str, value: str) -> None:
    found = Markup(Element("p", content, bold(content), title=value).__html__())
    assert found.tags == ["p", "b"]
    assert found.names <= {"title"}
    assert element_text(Element("p", content, [bold(content), None, 3])) == content * 2 + "3"


def test_only_the_frame_makes_markup_of_text() -> None:
    """``safe``, ``Markup`` and ``__html__`` are ways around the escaping."""
    for package, name in templates():
        text = PackageLoader(package, ".").get_source(Environment(), name)[0]
        assert not re.search(r"\|\s*safe|autoescape|markup", text, re.IGNORECASE), (package, name)
    makers = re.compile(r"\bMarkup\(|import Markup|\bSafeHtml\(|__html__")
    for source in SOURCES:
        for path in source.rglob("*.py"):
            # What others wrote comes to a page as text, or by way of this room.
            found = makers.search(path.read_text(encoding="utf-8"))
            assert found is None or path.parent == ROOT / "src" / "adjudge" / "report", path


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_prose("adjudge.runs.report", "stories.html")


def test_nothing_loads_the_template_engine_before_a_page_is_written() -> None:
    program = (
        "import sys, adjudge.cli.grade, adjudge.runs.grading, adjudge.trainers.trl\n"
        "assert not {'jinja2', 'markupsafe'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- the frame ----------------------------------------------------------------------------------


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_a_section_without_content_is_neither_shown_nor_linked() -> None:
    sections = [
        Section("a", "A", [None, "", Table(["x"], [])], "A"),
        Section("b", "B", "b"),
        notes_section("adjudge.runs.report", link="How"),
    ]
    html = render_page("Run", [], sections, above=Element("p", "first"))
    assert 'id="a"' not in html
    assert "#a" not in re.sub("<style>.*</style>", "", html, flags=re.DOTALL)
    assert '<section id="b"><h2>B</h2><p>b</p></section>' in html
    assert '<a href="#notes">How</a></nav>' in html
    assert html.index("<p>first</p>") < html.index('<section id="b">')


def test_an_alarm_is_marked_and_a_fact_without_a_text_is_left_out() -> None:
    tiles = [Tile("Missing", "3", "of 9", alarm=True), Tile("Groups", "2", "")]
    found = render_page("Run", [("Seed", "3"), ("Judge", "")], [], tiles=tiles)
    assert found.count('class="alarm"') == 1
    assert found.index('class="alarm"') < found.index("Missing")
    assert "Judge" not in found


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_data_in_a_page_cannot_end_its_block(data: dict[str, str | int]) -> None:
    text = embed_json(data)
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()


# --- tables -------------------------------------------------------------------------------------


def printed(table: Table, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, color_system=None, emoji=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_table_says_the_same_on_a_page_and_in_a_terminal() -> None:
    rows = [["loop", "0.5", small("0.4 to 0.6")], [bold("reward"), "–", lost("timeout 2")]]
    table = Table(["grader", *numeric("mean"), Column("95 %", "i")], rows, caption="Scores")
    page = Markup(table.__html__())
    words = [text for text in page.texts if text.strip()]
    assert words == [
        "Scores",
        "grader",
        "mean",
        "95 %",
        "loop",
        "0.5",
        "0.4 to 0.6",
        "reward",
        "–",
        "timeout 2",
    ]
    assert page.tags.count("th") == 5
    assert printed(table).split() == " ".join(words).split()


def test_a_terminal_shows_control_characters_by_number_and_no_markup() -> None:
    assert (
        printed(Table(["x"], [["[red]a\x1b[2J\nb[/]"]])).splitlines()[1].strip()
        == r"[red]a\x1b[2J\x0ab[/]"
    )


def test_a_table_without_rows_is_false_and_one_without_headings_has_no_head() -> None:
    assert not Table(["a"], [])
    found = Table(["", *numeric("")], [["a", "1"]]).__html__()
    assert "thead" not in found
    assert printed(Table(["", *numeric("")], [["a", "1"]])).split() == ["a", "1"]


# --- charts and numbers -------------------------------------------------------------------------


def test_charts_say_in_words_what_they_show() -> None:
    lines = [ChartLine("judge", [0.25, None, 0.75]), ChartLine("gold", [1.0, float("nan"), 0.5])]
    found = line_chart("Scores", lines, [1, 2, 3], marks=[2])
    assert found is not None
    html = str(found)
    assert 'aria-label="Scores: judge from 0.250 to 0.750; gold from 1.000 to 0.500"' in html
    assert html.count("<polyline") == 2 * 2 + 2  # each in two pieces, and in the key
    assert "nan" not in html
    square = reliability_diagram("J", [(4, 0.75, 0.5)])
    assert square is not None
    assert "4 pairs: confidence 0.750, right 0.500" in str(square)
    scatter = scatter_chart("J", [[(1.0, 2.0, 7)], [(float("nan"), 1.0, 8)]], ["a", "b"])
    assert scatter is not None
    assert "seed 7: official 1.000, judged 2.000" in str(scatter)
    assert "seed 8" not in str(scatter)


def test_a_long_run_makes_no_endless_chart() -> None:
    found = line_chart("x", [ChartLine("a", [float(x % 7) for x in range(50_000)])], range(50_000))
    assert found is not None
    assert len(str(found)) < 30_000


def test_what_rounding_leaves_of_zero_is_zero_on_an_axis() -> None:
    low, high = -2.4748737341529163, 2.474873734152917  # the middle is 4.4e-16
    bins = Bins([low, 0.1 + 0.2 - 0.3, high])  # and an edge 5.6e-17
    values = ChartLine("a", [low, high])
    drawn = [
        histogram_chart([3, 2], bins, "h"),
        histogram_chart([3, 2], Bins(bins.edges, 0.01), "h"),
        line_chart("t", [values], [1, 2]),
    ]
    for chart in map(str, drawn):
        assert "0.00" in chart
        assert re.search(r"\de[−-]", chart) is None


def test_charts_of_nothing_are_none() -> None:
    assert line_chart("x", [ChartLine("a", [None])], [1]) is None
    assert reliability_diagram("x", []) is None
    assert scatter_chart("x", [[]], ["a"]) is None
    assert signed_strip(Estimate(None, 0.1, 0.9), "x") is None


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_marks_stay_inside_a_strip(value: float, low: float) -> None:
    strip = signed_strip(Estimate(value, low, value), "x", span=3.0, allowed=(-1.0, 1.0))
    assert strip is not None
    forest = forest_strip({"within": Estimate(value, low, value)}, "x")
    for place in re.findall(r'[xc][12x]="([\d.-]+)%"', str(strip) + str(forest)):
        assert 0 <= float(place) <= 100


def test_numbers_read_well() -> None:
    found = [format_number(x) for x in (None, float("nan"), 0, -0.5, 1e-5, 123.456, 12345.6)]
    assert found == ["–", "–", "0.000", "−0.500", "1.0e−05", "123.5", "12,346"]
    shares = [format_percent(*x) for x in ((0, 0), (0, 5), (5, 5), (1, 10_000), (9_999, 10_000))]
    assert shares == ["–", "0\u202f%", "100\u202f%", "< 0.1\u202f%", "> 99.9\u202f%"]
    assert code("a_b").__html__() == "<code>a_<wbr/>b</code>"
    assert quote("<b>").__html__() == "<q>&lt;b&gt;</q>"


_MAKES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
    r"|parseFromString|srcdoc|setHTML|\beval\(|new Function|javascript:|\.on\w+ = [`'\"]"
    r"|set(?:Timeout|Interval)\(\s*[`'\"]|setAttribute\(\s*[`'\"]on"
)


def test_no_script_of_a_page_makes_markup_or_code_of_text() -> None:
    """What samples and judges say becomes text nodes, in every page that has a script."""
    scripts = [path for source in SOURCES for path in source.rglob("*.js")]
    assert len(scripts) > 3
    for path in scripts:
        assert _MAKES_MARKUP.findall(path.read_text(encoding="utf-8")) == [], path
