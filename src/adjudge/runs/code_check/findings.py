"""What is said about a finding: why it matters to a group-relative trainer, and a remedy."""

from __future__ import annotations

import ast

import msgspec

from adjudge.runs.code_check.source import Source

__all__ = ["RULES", "CodeFinding", "finding"]

_FILLED = (
    "What failed has said nothing; here its silence becomes a number. GRPO compares it "
    "with the group: among eight rewards of 0.6 ± 0.03 one 0.0 gets an advantage of about -2.5, "
    "and the order of the other seven is lost."
)
_CATCH = (
    "except (TimeoutError, ConnectionError):  # what asking can raise, and nothing broader",
    "    return None  # missing, which a trainer leaves out; not a low reward",
)

_RULES: dict[str, tuple[str, tuple[str, str]]] = {
    "default-score": (
        _FILLED,
        (
            "{name} = {plain}  # None: nothing was said",
            "if {name} is None: reward = None  # a part is missing: so is the reward",
        ),
    ),
    "except-judge": (_FILLED, _CATCH),
    "except-broad": (
        (
            "Every failure in this block, a typo or a timeout included, becomes this number, and "
            "GRPO takes it for a bad answer: among eight rewards of 0.6 ± 0.03 one 0.0 gets an "
            "advantage of about -2.5."
        ),
        (
            "except ValueError:  # only what a wrong answer raises: that one is really worth 0",
            "    return 0.0  # any other error leaves the function, or returns None: missing",
        ),
    ),
    "preset-score": (
        "The number set before the try block survives a failure inside it, unseen. " + _FILLED,
        (
            "{name} = None  # before the try block: nothing was said yet",
            "if {name} is None: return None  # after it: missing, not a low reward",
        ),
    ),
    "gave-up": (
        "When every try has failed the function ends with a number. " + _FILLED,
        (
            "return None  # instead of the number: missing, and the trainer leaves it out",
            "# or, in a grader: raise GradingFailure('server_error', 'no reply in N tries')",
        ),
    ),
    "nan-filled": (
        "NaN or None marks a missing reward (TRL leaves such a row out of the group); filling it "
        "makes the failure a measurement. " + _FILLED,
        (
            "present = [reward for reward in {name} if reward is not None and reward == reward]",
            "# pass {name} on as it is: None in TRL, and use `present` for means in logs",
        ),
    ),
    "unguarded-score": (
        (
            "A failed grader returns GraderError, which has no `score`: this line raises "
            "AttributeError, and one failure among thousands ends the whole training step."
        ),
        (
            "score = getattr({owner}, 'score', None)  # None: the grader failed",
            "reason = getattr({owner}, 'reason', '') or getattr({owner}, 'error', '')",
        ),
    ),
    "survivors-mean": (
        (
            "The mean runs over the graders that answered, so the weight of the failed one moves "
            "to the others: two samples of a group are measured with different rulers, and GRPO "
            "takes the difference for quality."
        ),
        (
            "scores = [getattr(result, 'score', None) for result in results]",
            "total = None if None in scores else sum(scores) / len(scores)",
        ),
    ),
    "no-match": (
        "A reply without a readable verdict is not a verdict of this number. " + _FILLED,
        (
            "if {name} is None: return None  # unparsable: missing",
            "# or, in a grader: raise GradingFailure('unparsable', 'no score in the reply')",
        ),
    ),
    "made-up-result": (
        "This builds results for samples that were not judged; in each the score is a number. "
        + _FILLED,
        (
            "score=None,  # missing, with the reason in details",
            "reward_info={{name: None for name in self.grader_names}},  # None, not 0.0, here too",
        ),
    ),
}
RULES = tuple(_RULES)


class CodeFinding(msgspec.Struct, frozen=True):
    """A place where a failure becomes a number.

    ``line`` counts from 1; ``code`` is what stands there, on one line; ``why`` says what a
    group-relative trainer makes of it; ``fix``: two lines that could stand there instead.
    """

    rule: str
    line: int
    code: str
    why: str
    fix: tuple[str, str]


def finding(
    source: Source,
    rule: str,
    node: ast.AST,
    *,
    name: str = "score",
    plain: str = "getattr(result, 'score', None)",
    owner: str = "result",
) -> CodeFinding:
    """A finding of ``rule`` at ``node``; the other arguments fill its two lines."""
    why, (first, second) = _RULES[rule]
    words = {"name": name, "plain": plain, "owner": owner}
    fix = (first.format(**words), second.format(**words))
    return CodeFinding(rule, getattr(node, "lineno", 1), _clip(source.text(node)), why, fix)


def _clip(text: str, longest: int = 160) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
