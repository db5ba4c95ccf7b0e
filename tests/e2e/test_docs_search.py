"""The search of the documentation's site answers the words that its readers type."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

lunr = pytest.importorskip("lunr")

ROOT = Path(__file__).parents[2]
FIRST = 5
"""Where the answer must stand: a reader looks at the first few results."""

ANSWERS = {
    "human": "align/",
    "W&B": "went-wrong/#short-answers",
    "GPU": "training/",
    "multi-turn": "went-wrong/#short-answers",
    "tool calls": "grader-reference/#tool-calls",
    "cost": "cost/",
    "timeout": "went-wrong/",
    "reward hacking": "went-wrong/#reward-hacking",
    "dynamic sampling": "went-wrong/",
    "vLLM": "judges/",
    "SGLang": "judges/",
    "cache": "went-wrong/#short-answers",
    "CSV": "grading/",
    "notebook": "extending/",
    "rate limit": "went-wrong/#too-many-requests-a-rate-limit",
    "two judges": "judging/",
    "Claude": "went-wrong/#short-answers",
    "code execution": "went-wrong/#short-answers",
    "Windows": "went-wrong/#short-answers",
    "telemetry": "went-wrong/#short-answers",
}
"""What is typed → the page, or its section, that answers it."""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """From words to locations, best first, ranked as the theme ranks them in the browser."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    built = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    config, documents = built["config"], built["docs"]
    for document in documents:
        document["text"] = re.sub("<[^>]+>", " ", document["text"])
    builder = lunr.get_default_builder()
    builder.pipeline.reset()
    builder.search_pipeline.reset()
    builder.pipeline.add(lunr.stop_word_filter.stop_word_filter)
    fields = [
        {"field_name": name, "boost": settings["boost"]}
        for name, settings in config["fields"].items()
        if name != "tags"
    ]
    index = lunr.lunr(ref="location", fields=fields, documents=documents, builder=builder)

    def find(words: str) -> list[str]:
        terms = [html.escape(word).lower() for word in re.split(config["separator"], words)]
        return [one["ref"] for one in index.search(" ".join(f"+{term}*" for term in terms))]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("words", ANSWERS)
def test_what_a_reader_types_leads_to_its_answer(search: Any, words: str) -> None:
    found = search(words)[:FIRST]
    assert any(one.startswith(ANSWERS[words]) for one in found), found
