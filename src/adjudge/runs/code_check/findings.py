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
_RULES: dict[str, tuple[str, tuple[str, str]]] = {
    "default-score": (
        _FILLED,
        (
            'score = getattr(result, "score", None)  # None: nothing was said',
            "if score is None: reward = None  # a part is missing: so is the reward",
        ),
    ),
    "except-judge": (
        _FILLED,
        (
            "except (TimeoutError, ConnectionError):  # what asking can raise, nothing broader",
            "    reward = None  # missing, which a trainer leaves out; not a low reward",
        ),
    ),
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
        "The number set beforehand survives a failure, unseen. " + _FILLED,
        (
            "score = None  # beforehand: nothing was said yet",
            "if score is None: return None  # afterwards: missing, not a low reward",
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
        "NaN or None marks a missing reward (TRL leaves such a row out of the group); filling it, "
        "or a mean that skips it, makes the failure a measurement. " + _FILLED,
        (
            "return rewards  # as they are: None in TRL is missing",
            "present = [reward for reward in rewards if reward is not None]  # for means in logs",
        ),
    ),
    "no-match": (
        "A reply without a readable verdict is not a verdict of this number. " + _FILLED,
        (
            "if match is None: return None  # unparsable: missing",
            "# or, in a grader: raise GradingFailure('unparsable', 'no score in the reply')",
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


def finding(source: Source, rule: str, node: ast.AST) -> CodeFinding:
    """A finding of ``rule`` at ``node``."""
    text = source.text(node)
    code = text if len(text) <= 160 else f"{text[:159]}…"
    return CodeFinding(rule, getattr(node, "lineno", 1), code, *_RULES[rule])
