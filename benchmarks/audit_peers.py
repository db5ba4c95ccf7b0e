"""What the peers that audit judges find of the defects that `adjudge audit` is validated on.

One run, the same planted data for all: rubric-reward-lens, judgecal and autorubric as they are
installed in another environment, and adjudge here.

    ADJUDGE_DATA=... python benchmarks/audit_peers.py --peers-python /path/to/venv/bin/python

None of the peers reads a dump, so each gets what its inputs allow:

- rubric-reward-lens: rubric, responses, a grader. The grader returns the recorded rewards (each
  component a criterion), and for the variants that its probes write it goes on as the planted judge
  does where the defect is a liking for length or bold text.
- judgecal: pairs and a judge that compares. Two samples of a group are a pair; it prefers the
  higher recorded reward, with the same liking, and adds the planted bonus to what is shown first.
- autorubric: verdicts beside labels. The verdict is "reward of 0.5 or more", the label the same of
  the rewards before the defect was planted.

A peer "finds" a defect if it says something of the planted data that it does not say of the clean
ones. "cannot read" stands where its inputs have no place for what is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

UNREADABLE = {
    "failed judge filled with 0.5 (error texts)": "reasons",
    "dead groups": "groups",
    "copies within groups": "groups",
    "stock answer to many prompts": "prompts of one text",
    "reward jumps at a step": "steps",
    "judge drifts from the environment": "steps",
    "tool loops rewarded": "tool calls",
    "verdicts against their reasons": "reasons",
    "swapped scale": "reasons",
    "truncation rewarded": "finish reasons",
}
"""What of a defect only a dump has; labels (autorubric) and samples are still given to each."""


def write_cases(folder: Path, data: Path, seed: int) -> dict[str, list[str]]:
    """Clean and planted rows of each defect as files; and what adjudge finds."""
    from benchmarks.audit_plants import PLANTS, load_dump
    from benchmarks.audit_validation import audit_rows, found_names

    ours = {}
    for place, plant in enumerate(PLANTS):
        rng = random.Random(f"{seed}:{plant.name}")
        rows = load_dump(plant.dump, data, rng)
        clean = [row["reward"] for row in rows]
        plant.spoil(rows, rng)
        with tempfile.TemporaryDirectory() as scratch:
            names = found_names(audit_rows(rows, Path(scratch), as_folder=plant.as_folder))
        ours[plant.name] = [one for one in names[:2] if one in plant.found_by]
        for row, before in zip(rows, clean, strict=True):
            row["before"] = before
            if "messages" in row:
                row["response"] = str(row["messages"][-1].get("content"))
                row["prompt"] = str(row["messages"][1].get("content"))
                del row["messages"]
        case = {"name": plant.name, "rows": rows}
        (folder / f"{place:02}.json").write_text(json.dumps(case))
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peers-python", help="Python with the peers installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask_peers(arguments.ask)
        return
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = write_cases(folder, Path(os.environ["ADJUDGE_DATA"]), arguments.seed)
        command = [arguments.peers_python, str(Path(__file__).resolve()), "--ask", str(folder)]
        env = {**os.environ, "PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        subprocess.run(command, check=True, env=env)
        theirs = json.loads((folder / "answers.json").read_text())
    print("| planted | adjudge audit | rubric-reward-lens | judgecal | autorubric |")
    print("|---|---|---|---|---|")
    found = dict.fromkeys(theirs, 0)
    for plant, names in ours.items():
        cells = [theirs[peer][plant] for peer in theirs]
        for peer, cell in zip(theirs, cells, strict=True):
            found[peer] += cell.startswith("found")
        print(f"| {plant} | {'found' if names else 'not found'} | {' | '.join(cells)} |")
    totals = " | ".join(f"{found[peer]} of {len(ours)}" for peer in theirs)
    print(f"| **found** | {sum(map(bool, ours.values()))} of {len(ours)} | {totals} |")
    print(f"\n{time.perf_counter() - started:.0f} s")


# What follows runs in the peers' environment, without adjudge.


def ask_peers(folder: Path) -> None:
    """Ask each peer about each case, clean and planted, and write what it says."""
    answers: dict[str, dict[str, str]] = {}
    for peer, ask in (
        ("rubric-reward-lens", ask_reward_lens),
        ("judgecal", ask_judgecal),
        ("autorubric", ask_autorubric),
    ):
        answers[peer] = {}
        for path in sorted(folder.glob("[0-9]*.json")):
            case = json.loads(path.read_text())
            before = ask(case["name"], case["rows"], planted=False)
            after = ask(case["name"], case["rows"], planted=True)
            news = sorted(after - before)
            if news:
                # Given the right labels, autorubric sees that rewards are off, not what is wrong.
                word = "off labels" if peer == "autorubric" else "found"
                said = f"{word}: {'; '.join(news)}"
            elif peer != "autorubric" and case["name"] in UNREADABLE:
                said = f"cannot read {UNREADABLE[case['name']]}"
            else:
                said = "nothing"
            answers[peer][case["name"]] = said.replace("|", "/")
    (folder / "answers.json").write_text(json.dumps(answers))


def liking(name: str, text: str) -> float:
    """What the planted judge adds for a text."""
    if name == "length bias":
        return 0.08 * math.log(max(1, len(text)))
    return 0.15 * ("**" in text or "## " in text) if name == "format bias" else 0.0


PARTS = ("accuracy", "quality", "tone", "detail", "brevity")


def ask_reward_lens(name: str, rows: list[dict[str, Any]], *, planted: bool) -> set[str]:
    """Its verdict and the parts of its card that say that something is wrong."""
    from rubric_reward_lens import Criterion, Response, Rubric, audit
    from rubric_reward_lens.models import CriterionScore, GraderResult

    rows = [row for row in rows if math.isfinite(row["reward"])][:80]
    parts = [part for part in PARTS if planted and part in rows[0]] or ["follows"]
    texts = {str(place): row["response"] for place, row in enumerate(rows)}

    class Recorded:
        def grade(self, rubric: Any, response: Any) -> Any:
            own = response.id.split("::")[0]
            row = rows[int(own)]
            more = liking(name, response.text) - liking(name, texts[own]) if planted else 0.0
            reward = row["reward" if planted else "before"]
            scores = [CriterionScore(part, row.get(part, reward) + more) for part in parts]
            return GraderResult(response.id, scores, sum(s.score for s in scores) / len(scores))

    rubric = Rubric([Criterion(part, "The response follows the instructions") for part in parts])
    given = [Response(one, text, one, rows[int(one)]["prompt"]) for one, text in texts.items()]
    card = audit(rubric, Recorded(), given, n_boot=100)
    said = {f"hackable by {probe}" for probe, (gain, low, _) in card.hacking.per_probe.items()
            if gain > 0.05 and low > 0}  # fmt: skip
    said |= {f"{one} = {other}" for one, other, _ in card.structure.redundant_pairs}
    return said | {f"{one} has low signal" for one in card.structure.low_signal_criteria}


def ask_judgecal(name: str, rows: list[dict[str, Any]], *, planted: bool) -> set[str]:
    """The flags of its card."""
    from judgecal.core import Judgment, PairwiseItem
    from judgecal.probes import ProbeConfig, analyze_suite, plan_suite
    from judgecal.report import build_card

    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    items, scores = [], {}
    for group, members in groups.items():
        for place in range(0, len(members) - 1, 2):
            pair = members[place : place + 2]
            if not all(isinstance(row["response"], str) and row["response"] for row in pair):
                continue
            item = f"{group}-{place}"
            first = [row["before"] + 0.15 * (name == "first-position bias" and planted and not k)
                     for k, row in enumerate(pair)]  # fmt: skip
            rewards = [row["reward"] for row in pair] if planted else first
            better = pair[0]["before"] - pair[1]["before"]
            items.append(
                PairwiseItem(
                    item_id=item,
                    prompt=pair[0]["prompt"],
                    response_a=pair[0]["response"],
                    response_b=pair[1]["response"],
                    label="A" if better > 0 else "B" if better < 0 else "tie",
                )
            )
            for row, reward in zip(pair, rewards, strict=True):
                own = row["before"] if name == "first-position bias" else reward
                scores[item, row["response"]] = own - (liking(name, row["response"]) * planted)
    config = ProbeConfig(n_boot=300)
    probes = ["position", "verbosity", "stability"]
    judgments = []
    for request in plan_suite(items[:80], probes, config):
        meta = request.meta
        own = [
            score_text(scores, meta["item_id"], meta[key]) + liking(name, meta[key]) * planted
            for key in ("first_text", "second_text")
        ]
        own[0] += 0.15 * (name == "first-position bias" and planted)
        verdict = "tie" if own[0] == own[1] else "first" if own[0] > own[1] else "second"
        if any(map(math.isnan, own)):
            verdict = "invalid"
        judgments.append(Judgment(request.custom_id, verdict, None, dict(meta)))
    card = build_card(analyze_suite(judgments, probes, config), {"model": "recorded"})
    return {flag.split(":")[0].split(" (")[0][:60] for flag in card.overall_flags} - {
        "underpowered"
    }


def score_text(scores: dict[tuple[str, str], float], item: str, text: str) -> float:
    """The recorded reward of a text, or of the one that it is a padded copy of."""
    if (item, text) in scores:
        return scores[item, text]
    near = [value for (of, own), value in scores.items() if of == item and text[:40] == own[:40]]
    return near[0] if near else 0.0


def ask_autorubric(name: str, rows: list[dict[str, Any]], *, planted: bool) -> set[str]:
    """Where agreement with the labels or the bias of its metrics is called bad."""
    import warnings
    from datetime import UTC, datetime

    from autorubric import Criterion, CriterionReport, CriterionVerdict, EvaluationReport, Rubric
    from autorubric.dataset import RubricDataset
    from autorubric.eval import EvalResult, EvalTimingStats, ItemResult
    from autorubric.metrics import compute_metrics

    met = {True: CriterionVerdict.MET, False: CriterionVerdict.UNMET}
    rows = [row for row in rows if math.isfinite(row["reward"])]
    middle = 0.5
    rubric = Rubric([Criterion(name="follows", requirement="It follows the task", weight=1.0)])
    data = RubricDataset(prompt="p", rubric=rubric)
    results = []
    for place, row in enumerate(rows):
        data.add_item(row["response"], str(place), ground_truth=[met[row["before"] >= middle]])
        reward = row["reward" if planted else "before"]
        one = CriterionReport(
            name="follows", requirement="It follows the task", weight=1.0,
            verdict=met[reward >= middle], reason="",
        )  # fmt: skip
        score = float(reward >= middle)
        report = EvaluationReport(score=score, raw_score=score, llm_raw_score=score, report=[one])
        results.append(ItemResult(place, data.items[place], report, 0.0))
    now = datetime.now(UTC)
    timing = EvalTimingStats(*[0.0] * len(EvalTimingStats.__dataclass_fields__))
    evaluated = EvalResult(results, len(results), len(results), 0, None, None, timing, now, now)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = compute_metrics(evaluated, data)
    said = set()
    if metrics.mean_kappa is not None and metrics.mean_kappa < 0.6:
        said.add("agreement with the labels is low")
    bias = getattr(metrics, "bias", None)
    if bias is not None and getattr(bias, "is_significant", False):
        said.add("scores are biased against the labels")
    return said


if __name__ == "__main__":
    main()
