"""The frame of pages without a script: its policy admits its style alone, and text stays text."""

from __future__ import annotations

import base64
import hashlib
import re

from adjudge.runs.report.frame import Section, Tile, notes_section, render_page, render_tiles

HOSTILE = "</title><script>alert(1)</script> & \"q\" 'a' {0} {style} @@STYLE@@"
SHOWN = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;q&quot; &#x27;a&#x27;"


def test_text_is_escaped_wherever_it_stands() -> None:
    html = render_page(
        HOSTILE,
        [(HOSTILE, HOSTILE)],
        [
            render_tiles([Tile(HOSTILE, HOSTILE, HOSTILE)]),
            Section("a", HOSTILE, "<p>x</p>", HOSTILE),
        ],
    )
    assert "<script" not in html
    assert (
        html.count(SHOWN) == 9
    )  # title, heading, link, fact and its name, three of a tile, section
    assert html.count("{0} {style} @@STYLE@@") == 9


def test_the_policy_admits_exactly_the_style() -> None:
    html = render_page("Run", [], [], styles=[("adjudge.judge_evaluation.swap", "page.css")])
    style = re.search("<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'" in html
    assert "style=" not in html.replace("default-src", "")


def test_a_section_without_content_is_neither_shown_nor_linked() -> None:
    html = render_page(
        "Run",
        [],
        [
            Section("a", "A", "", "A"),
            Section("b", "B", "<p>b</p>"),
            notes_section("<p>n</p>", "How"),
        ],
        above="<p>first</p>",
    )
    assert 'id="a"' not in html
    assert "#a" not in re.sub("<style>.*</style>", "", html, flags=re.DOTALL)
    assert '<section id="b"><h2>B</h2><p>b</p></section>' in html
    assert '<a href="#notes">How</a></nav>' in html
    assert html.index("<p>first</p>") < html.index("<main>")


def test_a_lone_surrogate_can_be_written() -> None:
    html = render_page("a \udcff b", [], [Section("a", "A", "c \ud800 d")])
    assert "a ? b" in html
    assert "c ? d" in html
    html.encode()


def test_an_alarm_is_marked() -> None:
    found = render_tiles([Tile("Missing", "3", "of 9", alarm=True), Tile("Groups", "2", "")])
    assert found.count('class="alarm"') == 1
    assert found.index('class="alarm"') < found.index("Missing")
