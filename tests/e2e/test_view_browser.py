"""The live page in a real browser: following, groups both ways, hostile text, 100,000 samples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.colours import contrast
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import begin, opened, row, served, state, write

pytestmark = pytest.mark.slow

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<a href='http://example.com/leak'>x</a><svg onload=alert(3)>",
    "__proto__ javascript:alert(4)",
    "line\u2028separator\u2029 and NUL\x00",
    "abc\u202egnp.exe\u202c and \u200bzero width",
    "lone \ud800 surrogates",
)

# Another process that writes a run as a trainer does: rows with a torn end, then the rest.
WRITER = """
import json, sys, time
from pathlib import Path
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for step in range(first, last + 1):
    with (folder / "rollouts.jsonl").open("ab") as file:
        for index in range(4):
            row = {"step": step, "index": index, "group": f"{step}/0", "reward": index / step}
            line = json.dumps(row).encode() + b"\\n"
            file.write(line[:9]); file.flush(); time.sleep(0.02); file.write(line[9:])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps({"step": step, "mean_return": step / 10, "step_s": 2}).encode())
        file.write(b"\\n")
"""


def cells(page: Page, table: str, name: str) -> list[str]:
    """The shown cells of the column under the heading ``name``."""
    heads = page.locator(f"{table} thead th").all_text_contents()
    place = [head.replace("\u00a0", " ") for head in heads].index(name) + 1
    return page.locator(f"{table} tbody tr > :nth-child({place})").all_text_contents()


def test_it_follows_a_run_from_before_its_beginning_to_its_end(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "later"
    with served(folder) as (url, _), opened(browser, url) as watched:
        page = watched.page
        state(page, "waiting")
        begin(folder)
        state(page, "no step of 6 done yet")
        writer = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen([*writer, "1", "4"]):
            state(page, "running: step 4 of 6, about 4 s left")
        expect(page.locator("#groups-of")).to_contain_text("of steps 1 to 4")
        expect(page.locator("[data-title=Return] output")).to_have_text("0.400")
        assert page.locator("#progress").get_attribute("value") == str(4 / 6)
        page.get_by_role("button", name="Following").click()
        # A resumed run: what came after the checkpoint is cut off and written again, faster.
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            kept = (folder / name).read_bytes().splitlines(keepends=True)
            (folder / name).write_bytes(b"".join(kept[: len(kept) // 2]))
        page.wait_for_timeout(1200)
        state(page, "step 4 of 6")
        page.get_by_role("button", name="Paused").click()
        state(page, "step 2 of 6")
        expect(page.locator("#groups-of")).to_contain_text("of steps 1 to 2")
        subprocess.run([*writer, "3", "6"], check=True)
        (folder / "summary.json").write_text('{"steps": 6}')
        state(page, "done: step 6 of 6")
        expect(page.locator("#groups-of")).to_contain_text("of steps 1 to 6")
        expect(page.locator("#said")).to_have_text("done: step 6 of 6")


def test_a_group_both_ways_by_hand_and_a_sample_by_keyboard(browser: Browser, live: str) -> None:
    with opened(browser, live) as watched:
        page = watched.page
        state(page, "running: step 3 of 6, about 1 min 30 s left")
        page.select_option("#show", "turned")
        expect(page.locator("#groups-of")).to_contain_text("1 of 6 groups")
        page.locator("#group-table button").focus()
        page.keyboard.press("Enter")
        title = page.locator("#story-title")
        expect(title).to_have_text("Sample 0 of step 3, group 3/0")
        expect(title).to_be_focused()
        story = page.locator("#story-body").inner_text()
        for text in (
            "assistant, turn 1", "environment’s reward +0.250", "advantage +0.125", "Answer 0.",
            "a log more", "to the point",
            # 0.4 and 0.6: mean 0.5, std 0.14142. With two zeros: mean 0.25, std 0.3.
            "without the failures of its group", "−0.707", "if failures counted as 0", "+0.500",
            "Its sign would change if failures counted as 0.", "Per turn: +0.125, −0.375",
        ):  # fmt: skip
            assert text in story, text
        # Pressed twice before the first is shown: two steps.
        page.evaluate(
            "for (const _ of [1, 2]) document.querySelector('[aria-keyshortcuts=g]').click()"
        )
        expect(title).to_have_text("Sample 2 of step 3, group 3/0")
        story = page.locator("#story-body").inner_text()
        assert "Reward missing. timeout: no answer in 30 s" in story
        assert "none: its reward is missing" in story


def test_curves_read_at_a_step_and_ranges_choose_samples(browser: Browser, live: str) -> None:
    with opened(browser, live) as watched:
        page = watched.page
        expect(page.locator("#at-step")).to_have_text("3")
        page.locator("#at").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#at-step")).to_have_text("2")
        outputs = page.locator("[data-title=Return] output")
        assert outputs.all_inner_texts() == ["0.500", "0.500", "0.250"]
        assert page.locator("[data-title=Return] .mark").count() == 1
        label = page.locator("[data-title=Return] svg.plot").get_attribute("aria-label") or ""
        assert "mean from 0.250 to 0.750" in label
        page.fill("#to", "2")
        page.press("#to", "Enter")
        expect(page.locator("#groups-of")).to_have_text(
            "4 groups of steps 1 to 2, the latest first"
        )
        page.get_by_role("button", name="All", exact=True).click()
        expect(page.locator("#groups-of")).to_have_text(
            "6 groups of steps 1 to 3, the latest first"
        )


def test_hostile_text_is_inert_and_shown(browser: Browser, tmp_path: Path) -> None:
    begin(tmp_path, label=HOSTILE[1])
    write(tmp_path, "metrics.jsonl", [
        {"step": 1, "mean_return": 1.0, **{f"judge/{text}_score_mean": 1.0 for text in HOSTILE}}
    ])  # fmt: skip
    write(tmp_path, "alarms.jsonl", [{"step": 1, "rule": text, "seen": text} for text in HOSTILE])
    write(tmp_path, "rollouts.jsonl", [
        row(1, i, None if i % 2 else 0.5, group=text,
            messages=[{"role": text, "content": text, "tool_calls": [{"name": text}]},
                      {"role": "assistant", "content": [{"type": "text", "text": text}]}],
            missing={"kind": text, "message": text},
            reward_info={f"{text}_score": 0.5, "outcome": 0.5},
            details={text: {"score": 0.5, "reason": text}, "b": {"kind": text, "error": text},
                     "events": [{text: {"score": 1, "reason": text}}]})
        for i, text in enumerate(HOSTILE)
    ])  # fmt: skip
    with served(tmp_path) as (url, _), opened(browser, url) as watched:
        page = watched.page
        expect(page.locator("#group-table tbody tr")).to_have_count(len(HOSTILE))
        for place in range(1, len(HOSTILE), 2):  # those whose reward is missing
            page.locator("#group-table tbody button").nth(place).click()
            name = page.locator("#group-table tbody button").nth(place).inner_text()
            expect(page.locator("#story-title")).to_contain_text(name)
        everything = page.locator("body").inner_text() + page.locator("#groups").inner_text()
        for text in HOSTILE[:4]:
            assert text in everything
        for mark in ("U+202E", "U+0000", "U+2028", "U+200B"):
            assert mark in everything
        assert page.locator("main img, main a, main script, main [onerror]").count() == 0
        page.wait_for_timeout(100)


def test_the_policy_stops_script_and_network_even_if_text_got_in(
    browser: Browser, live: str
) -> None:
    with opened(browser, live) as watched:
        page = watched.page
        state(page, "running")
        leak = "fetch('http://127.0.0.1:9/leak').then(() => false, () => true)"
        html = "try { document.body.innerHTML += '<p>x</p>'; } catch { return true; }"
        assert page.evaluate(f"() => {{ {html} }}")
        assert page.evaluate(leak)
        said, watched.said[:] = list(watched.said), []
        assert any("Content Security Policy" in line for line in said)


def test_a_hundred_thousand_samples(browser: Browser, tmp_path: Path) -> None:
    begin(tmp_path, planned=1000)
    (tmp_path / "summary.json").write_text("{}")
    write(tmp_path, "metrics.jsonl", [{"step": s, "mean_return": s / 9} for s in range(1, 1001)])
    with (tmp_path / "rollouts.jsonl").open("w") as file:
        for step in range(1, 1001):
            file.writelines(
                f'{{"step":{step},"index":{i},"group":"{step}/{i // 10}","messages":[{{"role":'
                f'"assistant","content":"Answer {i} of {step}. {"word " * 40}"}}],"reward":'
                f'{"null" if i % 29 == 7 else i * step % 97 / 97},"reward_info":{{"outcome":'
                f"{i / 100}}}}}\n"
                for i in range(100)
            )
    with served(tmp_path) as (url, pid), opened(browser, url) as watched:
        page = watched.page
        state(page, "done: step 1,000 of 1,000")
        expect(page.locator("#facts")).to_contain_text("100,000 in 10,000 groups", timeout=60_000)
        nodes = "document.querySelectorAll('*').length"
        page.get_by_role("button", name="All", exact=True).click()
        expect(page.locator("#groups-of")).to_contain_text("10,000 groups", timeout=60_000)
        page.select_option("#show", "missing")
        expect(page.locator("#groups-of")).to_contain_text("of 10,000 groups")
        page.locator("#group-table button").last.click()
        expect(page.locator("#story-body")).to_contain_text("Answer ")
        assert page.evaluate(nodes) < 3_000
        if (held := Path(f"/proc/{pid}/status")).exists():
            found = re.findall(r"VmRSS:\s+(\d+) kB", held.read_text())
            assert int(found[0]) < 200_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_stand_out_in_both_schemes_and_what_is_pressed_has_a_name(
    browser: Browser, live: str, scheme: str
) -> None:
    viewport = {"width": 390, "height": 900}
    with opened(browser, live, viewport=viewport, color_scheme=scheme) as watched:
        page = watched.page
        page.select_option("#show", "turned")
        expect(page.locator("#group-table tbody tr")).to_have_count(1)
        page.locator("#group-table button").click()
        expect(page.locator("#story-body")).to_contain_text("Its sign would change")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for mark in ("polyline.s0", "polyline.s1", "polyline.s2", ".mark"):
            stroke = page.evaluate("s => getComputedStyle(document.querySelector(s)).stroke", mark)
            assert contrast(stroke, ground) >= 3, mark
        assert layout_faults(page) == []
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, svg[role=img]")]
                .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") ||
                    (e.labels && e.labels.length))).map(e => e.outerHTML)"""
        )
        assert unnamed == []
