"""Writes the demonstration's files: rollouts of a small agent task, and a judge's results.

    python examples/make_demo_data.py src/adjudge/cli/demo_data

Eight tasks ("which warehouse holds most of part P?"), eight rollouts each, by policies that differ
in how they go about it: thorough, hasty, looping, forgetful. The environment's reward is 1 for the
right warehouse. The judge's scores lean on how the work was done, with noise; a tenth of its calls
failed. Three rows are broken on purpose.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTS = ("M4 bolts", "hinge pins", "cable drums", "valve seals", "drive belts", "lamp holders",
         "filter mats", "pump rotors")  # fmt: skip
SITES = ("Aarhus", "Bilbao", "Cork", "Dresden")
STYLES = ("thorough", "thorough", "thorough", "hasty", "looping", "forgetful", "thorough", "hasty")
QUALITY = {"thorough": 0.78, "hasty": 0.66, "looping": 0.58, "forgetful": 0.62}
CLOSINGS = {
    "thorough": ("{answer}.", "All four sites are counted: {answer} holds the most {part}."),
    "hasty": ("It should be {answer}, going by what I have seen so far.", "{answer}, I think."),
    "looping": ("After checking again and again, {answer} has the most {part}.", "{answer} it is."),
    "forgetful": ("As far as I remember, {answer} has the most.", "Probably {answer}."),
}  # fmt: skip
FAILURES = {
    (0, 2): ("timeout", "no reply within 30 s"),
    (1, 2): ("rate_limited", "429 after 4 attempts"),
    (2, 6): ("unparsable", "no verdict in the reply"),
    (4, 0): ("timeout", "no reply within 30 s"),
    (5, 3): ("server_error", "503 after 4 attempts"),
    (6, 1): ("unparsable", "two verdicts in the reply"),
}


def call(number: int, name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def result(number: int, name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": name, "content": text}


def steps(style: str, part: str, stock: dict[str, int], rng: random.Random) -> Iterator[Any]:
    """Tool calls and their results, as this policy would make them."""
    number = 0
    sites = list(SITES)
    rng.shuffle(sites)
    visited = sites if style != "hasty" else sites[: rng.choice((1, 2))]
    if style == "forgetful":
        visited = [*sites[:3], sites[0], sites[1]]
    for site in visited:
        repeats = rng.choice((2, 3)) if style == "looping" else 1
        for _ in range(repeats):
            yield call(number, "stock", site=site, part=part)
            shelf = rng.choice("ABCDEF") if style != "looping" else "A"
            yield result(
                number,
                "stock",
                f"{site}: {stock[site]} units of {part}, counted on shelf {shelf}{stock[site] % 9}",
            )
            number += 1


def rollout(task: int, sample: int, rng: random.Random) -> dict[str, Any]:
    part = PARTS[task]
    counts = random.Random(f"stock {task}")
    stock = {site: counts.randrange(40, 900) for site in SITES}
    best = max(stock, key=stock.__getitem__)
    style = STYLES[(sample + task) % len(STYLES)]
    seen = list(steps(style, part, stock, rng))
    knows_all = style in ("thorough", "looping")
    answer = best if knows_all and rng.random() < 0.93 else rng.choice(SITES)
    closing = rng.choice(CLOSINGS[style]).format(answer=answer, part=part)
    question = f"Which warehouse holds the most {part}? Check the stock and name one site."
    opening = [
        {"role": "system", "content": "You manage stock. Use the tools; answer with one site."},
        {"role": "user", "content": question},
    ]
    return {
        "id": f"task{task}-{sample}",
        "task": f"task{task}",
        "style": style,
        "messages": [*opening, *seen, {"role": "assistant", "content": closing}],
        "reward": float(answer == best),
    }


def judged(row: dict[str, Any], task: int, sample: int, rng: random.Random) -> dict[str, Any]:
    if (task, sample) in FAILURES:
        kind, message = FAILURES[task, sample]
        return {"id": row["id"], "error": {"kind": kind, "message": message}}
    score = QUALITY[row["style"]] + 0.08 * row["reward"] + rng.gauss(0, 0.03)
    reason = {
        "thorough": "visits every site once and concludes from the counts",
        "hasty": "answers before all sites were checked",
        "looping": "asks for the same counts again and again",
        "forgetful": "returns to sites it had seen and misses one",
    }[row["style"]]
    return {"id": row["id"], "score": round(min(1.0, max(0.0, score)), 3), "reason": reason}


def main(folder: Path) -> None:
    rng = random.Random(20)
    rows, verdicts = [], []
    for task in range(8):
        for sample in range(8):
            row = rollout(task, sample, rng)
            verdicts.append(judged(row, task, sample, rng))
            rows.append(json.dumps({key: row[key] for key in row if key != "style"}))
    rows.insert(11, rows[10][:180])  # a write that was cut off
    rows.insert(30, json.dumps({"id": "no-messages", "task": "task3", "reward": 0.0}))
    rows.insert(50, json.dumps({"id": "odd", "task": "task6", "messages": 7, "reward": 1.0}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollouts.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    lines = "\n".join(json.dumps(verdict) for verdict in verdicts)
    (folder / "judge_results.jsonl").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
