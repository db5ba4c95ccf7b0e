"""A sample that one can read, in a real browser: transcript, verdicts, prompts, ways, links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import opened, served, write
from tests.unit.helpers.report_rows import series_of

from adjudge.judges.asking import JudgeCall
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.report import page as page_module
from adjudge.runs.report.page import choose_stories, write_grading_report
from adjudge.runs.rows import GradedRow
from adjudge.runs.transcripts import TranscriptStore
from adjudge.runs.view.run_reader import RunReader
from adjudge.types import Sample, Usage

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e ${alert(2)}"
ANSWER = "Your booking is changed. " + "The fare is 120 dollars, as I said before. " * 60
CALL = {"id": "c1", "function": {"name": "find_booking", "arguments": '{"code": "4OG6T3"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be an agent. " * 80},
    {"role": "user", "content": "Change my booking " + HOSTILE},
    {"role": "assistant", "content": "<think>First the booking.\nThen the fare.</think>",
     "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"fare": 120,\n"seat": "3A"}'},
    {"role": "assistant", "content": ANSWER, "reasoning_content": "It is done " + HOSTILE},
]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
}
SCORES = [0.9, 0.1, 0.5, None, 0.2, 0.8, 0.4, 0.6]
ENV = [0.0, 1.0, 0.5, 0.5, 0.2, 0.8, 0.4, 0.6]


def _call(index: int, reply: str, **more: Any) -> JudgeCall:
    # The judge of sample 0 sees the beginning of the answer alone.
    shown = ANSWER[:400] if index == 0 else ANSWER
    prompt = f"Scale, 1 is best:\n1 - good\n5 - bad\n{MESSAGES[1]['content']}\n<a>{shown}</a>"
    usage = Usage(input_tokens=900, output_tokens=20, cost_usd=0.002)
    return JudgeCall(
        messages=[{"role": "system", "content": prompt}], schema=SCHEMA, reply=reply,
        source="live", model="judge-8b", latency_s=0.5, usage=usage, **more,
    )  # fmt: skip


def judged_run(folder: Path) -> None:
    """Two groups of four; the judge is against the environment in samples 0 and 1, 3 is missing."""
    folder.mkdir()
    graders = [
        {"name": "quality", "asks_judge": True, "judges": ["main"], "range": [0, 1]},
        {"name": "pair", "asks_judge": True, "judges": ["main"], "range": [0, 1], "weight": 0},
    ]
    (folder / "run.json").write_text(json.dumps({"spec_hash": "x", "graders": graders}))
    rows = []
    orders = {"verdicts": {"as_given": "win", "swapped": "loss"}, "consistent": False}
    lost = {"kind": "unparsable", "error": "no verdict " + HOSTILE}
    with TranscriptStore(folder, run="x") as store:
        for index, (score, env) in enumerate(zip(SCORES, ENV, strict=True)):
            said = lost if score is None else {"score": score, "reason": "fair " + HOSTILE}
            missing = {"kind": lost["kind"], "message": lost["error"]}
            rows.append(
                {"index": index, "group": f"g{index // 4}", "key": f"{index:032x}",
                 "reward": score, "missing": missing if score is None else None,
                 "env_reward": env, "where": f"{HOSTILE}.jsonl:{index + 1}",
                 "reward_info": {"quality_score": score, "pair_score": 0.5},
                 "details": {"quality": said, "pair": {
                     "score": 0.5, "reason": "[as_given] better\n\n[swapped] worse",
                     "metadata": orders}}}
            )  # fmt: skip
            store.add_sample(
                index, Sample(original_index=index, messages=MESSAGES, group=f"g{index // 4}")
            )
            bad = _call(index, "I like it " + HOSTILE, unread="no verdict in the reply")
            good = _call(index, json.dumps({"reason": HOSTILE, "score": 2}), why="repair")
            store.add_calls(index, "quality", [bad, good])
    write(folder, "rewards.jsonl", rows)
    (folder / "summary.json").write_text('{"samples": 8}')
    (folder / "report.html").write_text("<title>A report</title><p>of this run</p>")


def title(page: Page, text: str) -> None:
    expect(page.locator("#story-title")).to_contain_text(text)


def test_it_opens_on_the_worst_disagreement_and_goes_on_by_keys(
    browser: Browser, tmp_path: Path
) -> None:
    judged_run(tmp_path / "run")
    with served(tmp_path / "run") as (url, _), opened(browser, url) as watched:
        page = watched.page
        title(page, "Sample 0, group g0")
        expect(page.locator(".why-here")).to_contain_text(
            "quality 0.9 (rank 1 of 3); environment 0"
        )
        assert "#" not in page.url
        for key, sample, link in (
            ("d", 1, "1"), ("j", 2, "2"), ("k", 1, "1"), ("f", 3, "3"), ("g", 0, "0"),
            ("n", 1, "1"),
        ):  # fmt: skip
            page.keyboard.press(key)
            title(page, f"Sample {sample}, group")
            assert page.url.endswith(f"#sample={link}")
        page.go_back()
        title(page, "Sample 0, group")
        page.go_back()
        title(page, "Sample 3, group")
        expect(page.locator("#story-title")).to_be_focused()
        page.reload()
        title(page, "Sample 3, group")
        expect(page.locator(".strip .lost").first).to_contain_text("missing: unparsable")
        # A link from elsewhere, and keys that are typed into a field.
        page.goto(f"{url}#sample=5")
        title(page, "Sample 5, group g1")
        page.locator("#labelling > summary").click()
        page.locator("#label-author").fill("")
        page.locator("#label-author").press_sequentially("jfdg")
        title(page, "Sample 5, group g1")
        page.locator("#story-title").click()
        page.keyboard.press("?")
        expect(page.locator("dialog.keys")).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("Escape")
        expect(page.locator("dialog.keys")).to_be_hidden()
        title(page, "Sample 5, group g1")
        page.locator(".member").first.click()
        title(page, "Sample 4, group g1")


def read_whole(page: Page) -> None:
    """The sample 0, from its transcript to what its judge was shown."""
    title(page, "Sample 0, group g0")
    call = page.locator("details.call")
    expect(call.locator("summary")).to_contain_text('find_booking(code=4OG6T3) → {"fare": 120,')
    expect(call.locator("pre").first).to_be_hidden()
    expect(page.locator("details.thinking summary").first).to_contain_text("First the booking.")
    page.keyboard.press("e")
    expect(call.locator("pre").last).to_contain_text('"seat": "3A"')
    more = page.get_by_role("button", name=f"Show all {len(ANSWER):,} characters")
    last = page.locator(".message.assistant").last
    assert len(last.inner_text()) < len(ANSWER)
    more.first.click()
    expect(last).to_contain_text(ANSWER.strip()[-60:])
    card = page.locator(".right .grader").first
    checks = card.locator(".checks").first
    expect(checks).to_contain_text("only the first 4")
    expect(checks).to_contain_text(
        "the schema’s score goes from 1 to 5, the grader’s range from 0 to 1"
    )
    expect(checks).to_contain_text("the reply says 2, scored was 0.9")
    expect(checks).to_contain_text("1 of 2 replies could not be read")
    expect(card.locator(".kind")).to_contain_text("asks main · judge-8b · live")
    expect(card.locator(".unread")).to_contain_text("I like it " + HOSTILE.partition(" ")[0])
    expect(card.locator(".judge-call")).to_have_count(0)
    card.locator(".judge-calls > summary").click()
    expect(card.locator(".judge-call")).to_have_count(2)
    expect(card).to_contain_text("1 - good\n5 - bad", use_inner_text=True)
    expect(card.locator(".judge-call.bad")).to_contain_text("no verdict in the reply")
    expect(card.locator(".judge-call").last).to_contain_text("asked again (repair)")
    expect(card.locator(".judge-call").last).to_contain_text("900 + 20 tokens · $0.0020 · 0.50 s")
    assert "draw " not in card.inner_text()
    assert (card.bounding_box() or {"width": 0})["width"] > 0.85 * (
        page.evaluate("innerWidth") - 100
    )
    pair = page.locator(".right .grader").nth(1)
    expect(pair.locator(".orders > div").first).to_contain_text("this response shown first")
    expect(pair).to_contain_text("the two orders of the pair say different things")
    everything = page.locator("body").inner_text()
    assert HOSTILE.partition(" ")[2].partition(" ")[0] in everything
    assert "U+202E" in everything
    assert page.locator("main img, main a[href^=http], main [onerror]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_sample_is_read_whole(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    judged_run(tmp_path / "run")
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with served(tmp_path / "run") as (url, _), opened(browser, url, **options) as watched:
        read_whole(watched.page)
        assert width > 600 or layout_faults(watched.page) == []
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_has_the_same_sample(
    browser: Browser,
    tmp_path: Path,
    width: int,
    made_run: tuple[list[GradedRow], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged_run(tmp_path / "run")
    run = RunReader(tmp_path / "run")
    run.refresh()
    rows, summary = made_run[0][:8], made_run[1] | {"samples": 8}
    path = tmp_path / "report.html"
    monkeypatch.setattr(page_module, "MAX_STORIES", 7)
    write_grading_report(path, summary, rows, series_of(rows), choose_stories(run))
    options = {"viewport": {"width": width, "height": 900}}
    with opened(browser, path.as_uri(), **options) as watched:
        page = watched.page
        read_whole(page)
        expect(page.locator("#story")).to_contain_text("This page has 7 of 8 samples in full")
        assert width > 600 or layout_faults(page) == []
        title(page, "Sample 0, group g0")
        page.keyboard.press("d")
        title(page, "Sample 1, group g0")
        # What was unfolded stays so in the next sample.
        expect(page.locator(".right .judge-call")).to_have_count(2)
        page.keyboard.press("f")
        title(page, "Sample 3, group g0")
        assert page.url.endswith("#sample=3")
        page.go_back()
        title(page, "Sample 1, group g0")
        page.locator(".toggle").first.click()
        page.get_by_role("button", name="Show the whole sample").click()
        title(page, "Sample 0, group g0")


def test_places_are_lit_with_the_same_number_on_both_sides(
    browser: Browser, tmp_path: Path
) -> None:
    def look(number: int, query: str, seen: str) -> list[dict[str, Any]]:
        call = {"id": number, "function": {"name": "search", "arguments": f'{{"q": "{query}"}}'}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": number, "content": seen},
        ]

    seen = "there is nothing of that name here"
    said = "\U0001f600 one two three, one two three. The answer is \\boxed{4}."
    steps = [look(1, "a b", seen), look(2, "c", "x" * 40), look(3, "b a", seen), look(4, "c", "y")]
    messages = [{"role": "user", "content": "?"}, *(one for step in steps for one in step)]
    rows: list[dict[str, Any]] = [
        {"messages": [*messages, {"role": "assistant", "content": said}], "reference": "4"},
        {"prompt": "2 + 2?", "response": said, "reference": "4"},
    ]
    write(tmp_path, "in.jsonl", rows)
    places = [
        {"message": at, "call": 0, "kind": "similar", "pair": pair, "label": "similarity 1.00"}
        for pair, both in ((1, (1, 5)), (2, (3, 7)))
        for at in both
    ]
    (tmp_path / "loops.py").write_text(
        "from adjudge.graders.base import BaseGrader\n"
        "from adjudge.types import GraderScore\n"
        "class Loops(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, messages=None):\n"
        f"        found = {places!r} if messages else []\n"
        "        return GraderScore(self.name, 1.0, 'r', {'places': found}, (0.0, 1.0))\n"
    )
    graders = [{"name": "loops", "type": "loops:Loops"}, {"name": "answer", "type": "answer"}]
    spec = RewardSpec.from_dict({"graders": graders}, folder=tmp_path)
    grade_rollouts(GradingJob([tmp_path / "in.jsonl"], spec, tmp_path / "run", show_progress=False))
    with served(tmp_path / "run") as (url, _), opened(browser, url) as watched:
        page = watched.page
        page.goto(f"{url}#sample=0")
        title(page, "Sample 0")
        loop, answer = (page.locator(f"#grader-{n}") for n in range(2))
        lit = page.locator(".left .lit")
        texts = [
            "1 message 2 and message 6: similarity 1.00",
            "2 message 4 and message 8: similarity 1.00",
        ]
        expect(loop.locator(".places button")).to_have_text(texts)
        loop.hover()
        numbers = page.locator(".left summary > .place-number")
        expect(numbers).to_have_text(["1", "2", "1", "2"])
        loop.locator(".places button").last.click()
        expect(numbers).to_have_text(["2", "2"])
        expect(lit).to_have_count(2)
        loop.locator(".places button").last.click()
        answer.hover()
        expect(lit).to_have_text(["14"])
        page.keyboard.press("j")
        title(page, "Sample 1")
        expect(loop.locator(".places")).to_have_count(0)
        answer.locator(".places button").click()
        expect(answer.locator(".places button")).to_have_text(
            "1 the response: the answer that was read"
        )
        expect(lit).to_have_text(["14"])
        expect(lit).to_be_in_viewport()
