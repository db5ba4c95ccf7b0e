"""The live page of a made-up run: its files, its server, and a browser's page that watches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, expect

from adjudge.text import encode_json

VIEW = "import typer; from adjudge.cli.view import view; typer.run(view)"


def row(step: int, index: int, reward: float | None, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant", "user", "assistant")
    texts = (f"Question {index} of step {step}.", f"Answer {index}.", "Go on.", "As you say.")
    lost = {"kind": "timeout", "error": "no answer in 30 s"}
    return {
        "step": step, "index": index, "group": f"{step}/{index // 4}",
        "messages": [{"role": r, "content": text} for r, text in zip(roles, texts, strict=True)],
        "reward": reward,
        "missing": {"kind": "timeout", "message": lost["error"]} if reward is None else None,
        "env_reward": 1.0, "turn_rewards": [0.25, 0.75],
        "advantage": None if reward is None else reward - 0.5,
        "turn_advantages": None if reward is None else [0.125, -0.375],
        "reward_info": {"outcome": reward, "quality_score": reward, "env_reward": 1.0},
        "details": {
            "quality": lost if reward is None else {"score": reward, "reason": "to the point"},
            "events": [{"progress": {"score": 0.5, "reason": "a log more"}}, {"progress": lost}],
        },
        "tokens": 41, **more,
    }  # fmt: skip


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    with (folder / name).open("ab") as file:
        file.writelines(encode_json(one) + b"\n" for one in rows)  # as a run writes them


def begin(folder: Path, planned: int = 6, label: str = "a small run") -> None:
    folder.mkdir(exist_ok=True)
    run = {"kind": "train", "label": label, "steps_planned": planned, "pid": os.getpid()}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text('[judge]\ncombine_mode = "replace"\njudge_scale = 1.0\n')


@contextmanager
def start_view(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The command as a process that may be killed, and its address."""
    command = [sys.executable, "-c", VIEW, str(folder), "--json", "--no-open", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The command as a process; its address and process number."""
    with subprocess.Popen(
        [sys.executable, "-c", VIEW, str(folder), "--json", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            facts = json.loads(process.stdout.readline())
            yield facts["url"], facts["pid"]
        finally:
            process.stdin.close()
    assert process.returncode == 0


class Watched:
    """A page, and everything that it must not do."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.said: list[str] = []
        page.on("console", lambda message: self.said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", self.dismiss)
        page.on("popup", lambda popup: self.said.append(f"popup: {popup.url}"))
        page.on("request", lambda request: self.asked(request.url))

    def asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:,")):
            self.said.append(f"request: {url}")

    def dismiss(self, dialog: Dialog) -> None:
        self.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A page; at the end it has said, asked and requested nothing."""
    viewport = {"width": 1280, "height": 900}
    options = {"viewport": viewport, "reduced_motion": "reduce", **options}
    with browser.new_context(**options) as context:
        watched = Watched(context.new_page(), url)
        watched.page.goto(url)
        yield watched
        assert watched.said == []


def state(page: Page, text: str) -> None:
    expect(page.locator("#state")).to_contain_text(text)


@contextmanager
def small_run(folder: Path) -> Iterator[str]:
    """The page of a run of three steps; two rewards of the last one's first group are missing."""
    begin(folder)
    metrics = [
        {"step": step, "mean_return": step / 4, "env_return": 0.5, "judge_return": step / 8,
         "judge/missing_frac": 0.25, "judge/latency_p50": 0.5, "step_s": 30.0}
        for step in (1, 2, 3)
    ]  # fmt: skip
    write(folder, "metrics.jsonl", metrics)
    alarm = {"step": 2, "rule": "length_creep", "seen": "longer", "advice": "shorten", "note": 0}
    write(folder, "alarms.jsonl", [alarm])
    for step in (1, 2):
        write(folder, "rollouts.jsonl", [row(step, i, i / 8) for i in range(8)])
    rewards = [0.4, 0.6, None, None, 0.5, 0.5, 0.5, 0.5]
    write(folder, "rollouts.jsonl", [row(3, i, reward) for i, reward in enumerate(rewards)])
    with served(folder) as (url, _):
        yield url
