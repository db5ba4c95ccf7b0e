"""``num_examine``: a few rollouts on the console, as verl's own managers print them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from adjudge.rewards.samples import RewardResult
from adjudge.trainers.verl.rows import Rows

__all__ = ["print_examples"]

_LONGEST = 2000


def print_examples(rows: Rows, results: Sequence[RewardResult], num_examine: int) -> None:
    """Print the first ``num_examine`` rollouts of each data source.

    Asked for by the user, and cut at 2,000 characters a field; control characters are escaped,
    because the texts are a policy's and the console is a terminal.
    """
    seen: Counter[str] = Counter()
    for sample, source, result in zip(rows.samples, rows.sources, results, strict=True):
        seen[source] += 1
        if seen[source] > num_examine:
            continue
        reference = (sample.extra or {}).get("reference")
        score = result.score if result.missing is None else f"missing: {result.missing.kind}"
        lines = {
            "prompt": sample.prompt,
            "response": sample.response,
            "ground_truth": reference,
            "score": score,
            **result.reward_info,
        }
        for name, value in lines.items():
            sys.stdout.write(f"[{name}] {_shown(value)}\n")


def _shown(value: object) -> str:
    text = str(value)
    kept = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:_LONGEST])
    return kept if len(text) <= _LONGEST else f"{kept}… ({len(text)} characters)"
