"""What makes a rubric easy to satisfy without being good.

The exploits that policies find in rubrics are known (arXiv 2605.12474): parts of compound criteria,
words that are present without being right, vague topics. ``lint`` looks for the wording that allows
them, and for criteria that count twice. Each rule found something in the rubrics of HealthBench or
in VerInstruct's checklists.

The rules about wording are heuristics for English. Patterns are matched against the demand in lower
case, without asides and examples; none has a repetition inside a repetition, so all are linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from adjudge.rubrics.parsing import AnyRubric
from adjudge.rubrics.rubric import Criterion, GlobalRubric, Rubric, RubricBundle

Severity = Literal["warning", "note"]
SEVERITIES = get_args(Severity)

_SUBJECT = r"^(?:the (?:response|answer|assistant|model|output) )?(?:should |must )?"
_ASIDE = re.compile(r"\([^()]*\)|\"[^\"]*\"|“[^“”]*”|(?<=\s)'[^']{1,200}'(?=[\s.,;:])")
_EXAMPLES = re.compile(r"(?:\be\.g\.|\bi\.e\.|\bsuch as\b|\bfor example\b|\bfor instance\b)[^.;]*")
_ANY_OF = re.compile(r"\b(?:at least (?:one|two|three|\d+)|any of|one of|one or more|either)\b")
_VERBS = (
    "acknowledg|advis|answer|apologi|ask|assess|avoid|calculat|cit|clarif|compar|conclud|confirm|"
    "defin|demonstrat|describ|discuss|distinguish|emphasi|encourag|ensur|evaluat|explain|express|"
    "giv|highlight|identif|includ|incorporat|indicat|inform|instruct|justif|maintain|mention|"
    "outlin|prioriti|propos|provid|recommend|refrain|remind|specif|suggest|summari|urg|verif|warn"
)
_JOINED = re.compile(
    r"(?:\band|\bwhile|\bas well as|;)(?: (?:also|then|not|must|should|clearly|correctly|it)){0,3} "
    rf"(?:{_VERBS})(?:e|es|y|ies|s|ing|ying|ze|zes|zing)?\b(?!-)"
    r"|;(?: it| the response)? (?:should|must)\b"
)
_MODAL = re.compile(r"\b(?:should|must|needs? to|has to|have to)\b")
_SENTENCE = re.compile(r"(?<=[a-z)\]]{2})[.!?]\s+(?=[A-Z])|\n+")
_SAYS_WHAT = (
    r"(?:\b(?:that|correct\w*|accurat\w*|precis\w*|exact\w*|right|true|valid|proper\w*|how|why|when|"
    r"whether|including|instructions?|because|due to|is|are|was|were|can|may|will|needs?|phrase|"
    r"sentence|words?|keyword\w*|as|if|in case)\b|\d|[:\"“'’‘`])"
)
_MENTIONS = _SUBJECT + r"(?:clearly |briefly |also )?"
_MENTION = re.compile(
    rf"{_MENTIONS}(?:(?:mention|discuss|address|reference|cover)(?:s|es)?|refers? to|"
    rf"touch(?:es)? (?:on|upon)|talks? about)\b(?!.*{_SAYS_WHAT})"
)
_CONTAIN = re.compile(rf"{_MENTIONS}(?:include|contain)s?\b(?!.*{_SAYS_WHAT})")
_ADJECTIVES = (
    r"(?:appropriate|suitable|adequate|good|nice|great|helpful|useful|natural|engaging|interesting|"
    r"compelling|high[- ]quality|reasonable|proper|sufficient|excellent|effective|well[- ]written|"
    r"insightful|meaningful)"
)
_OF_RESPONSES = (
    r"(?:responses?|answers?|tone|level|details?|depth|length|language|style|format|manner|way|"
    r"quality|structure|writing|flow|explanations?|advice|information|wording|clarity|summary)"
)
_VAGUE = re.compile(
    rf"\b(?:(?:appropriately|adequately|properly|sufficiently|effectively|well)(?= *(?:[,.;]|$))|"
    rf"{_ADJECTIVES} (?:\w+ )?{_OF_RESPONSES}|(?:{_OF_RESPONSES}|it) "
    rf"(?:is|are|(?:should|must) be|sounds?|feels?|seems?|reads?) (?:\w+ )?{_ADJECTIVES})\b"
)
_ANCHOR = re.compile(
    r"\d|[:\"“`(]|\b(?:including|that|by \w+ing|without|because|if|when|unless|since)\b"
)
_KNOWLEDGE = re.compile(
    r"\b(?:reference (?:answer|solution|response)|ground[- ]truth|gold(?:en)? answer|factuality|"
    r"factual(?:ly)? (?:\w+ )?(?:accura\w+|correct\w*|incorrect\w*|errors?)|"
    r"no (?:factual )?(?:errors|inaccuracies))\b"
)
_NEGATION = re.compile(
    _SUBJECT + r"(?:(?:does|do|did|is|has) )?(?:not|never|no|doesn't|fails? to|failed to|"
    r"neglects? to|omits?|lacks?|avoids?|refrains? from|without)\b"
)
_SHUNS = re.compile(
    _SUBJECT
    + r"(?:avoids?\b|refrains? from\b|is free (?:of|from)\b|(?:does not|doesn't|not|never) "
    r"(?:\w+ ){0,4}(?:harmful|unsafe|incorrect|inaccurate|wrong|misleading|dangerous|false)\b)"
)
_FAULT = re.compile(
    _SUBJECT + r"(?:fails? to|failed to|neglects? to|omits?|fabricates?|hallucinates?|incorrectly|"
    r"inaccurately|falsely|wrongly|misrepresents?|misstates?)\b"
)
_WORD = re.compile(r"[^\W_]+")
_STOP = re.compile(
    "an?|the|of|to|in|on|for|and|or|with|by|from|as|at|is|are|be|its?|this|that|should|must|does|do|"
    "not|response|answer|assistant|model|output"
)
_STEPS = re.compile(r"\bstep \d.*\bstep \d")
_ADVICE = {
    "compound": "split it, so that meeting one part earns that part only",
    "presence_only": "say what must be said about it, or that it must be correct",
    "unverifiable": "name what can be seen in the response when it is met",
    "polarity": "met must be good where points are positive and bad where they are negative",
    "overlap": "keep one, with the points of both",
}
_LIST_ITEMS = 4
_MEMBER_WORDS = 5
_ALIKE = 0.8

_WORDINGS: tuple[tuple[str, Severity, re.Pattern[str], re.Pattern[str] | None, str], ...] = (
    ("compound", "warning", _STEPS, None, "is a procedure of several steps with a verdict each"),
    ("compound", "warning", _JOINED, _ANY_OF, "joins demands: {!r}"),
    ("presence_only", "warning", _MENTION, None, "{!r} asks for words, not for what is right"),
    ("presence_only", "note", _CONTAIN, None, "{!r} asks for words, not for what is right"),
    ("unverifiable", "note", _KNOWLEDGE, None, "{!r} needs knowledge from elsewhere; give it"),
    ("unverifiable", "warning", _VAGUE, _ANCHOR, "{!r} is left to taste"),
)
"""Rule, severity, what is looked for in the demand, what in the text excuses it, the message."""


class LintFinding(msgspec.Struct, frozen=True):
    """One thing that ``lint`` found.

    ``criterion``: the id of the criterion. ``part``: which rubric of a bundle it is about.
    ``severity``: ``warning`` is likely to be exploited or misjudged, ``note`` may be meant.
    """

    rule: str
    criterion: str
    severity: Severity
    message: str
    suggestion: str
    part: str = ""


def lint(rubric: AnyRubric) -> list[LintFinding]:
    """Findings, warnings first, then in the order of the criteria; of a bundle, each part's.

    Reads the rubric only. Criteria without points or weights (a global rubric's) are not looked at.

    >>> [f.rule for f in lint(Rubric(("Explains the cause and recommends a dose",)))]
    ['compound']
    """
    found = [
        LintFinding(rule, criterion.id, severity, message, _ADVICE[rule], name)
        for name, part in list_parts(rubric)
        if isinstance(part, Rubric)
        for place, criterion in enumerate(part.criteria)
        for rule, severity, message in (
            *_check_wording(criterion),
            *_check_overlap(criterion, part.criteria[:place]),
        )
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def list_parts(rubric: AnyRubric) -> list[tuple[str, Rubric | GlobalRubric]]:
    """The rubrics of a bundle with their names; a rubric alone has the name ``""``."""
    if not isinstance(rubric, RubricBundle):
        return [("", rubric)]
    named = [(name, getattr(rubric, name)) for name in ("global_rubric", "outcome", "events")]
    return [(name, part) for name, part in named if part is not None]


def _check_wording(criterion: Criterion) -> Iterator[tuple[str, Severity, str]]:
    """What is wrong with the text: rule, severity, message; one of each rule."""
    demand, found = _normalize_demand(criterion.text), set[str]()
    forgiven = {"presence_only"} if criterion.is_fault or _NEGATION.search(demand) else set()
    for rule, severity, pattern, excuse, message in _WORDINGS:
        match = pattern.search(demand)
        excused = excuse is not None and excuse.search(criterion.text.lower())
        if match and not excused and rule not in found | forgiven:
            found.add(rule)
            yield rule, severity, message.format(match[0].strip()[:40])
    if "compound" not in found and not _ANY_OF.search(demand):
        sentences = _SENTENCE.split(_ASIDE.sub(" ", criterion.text))
        if sum(_MODAL.search(one.lower()) is not None for one in sentences) > 1:
            yield "compound", "warning", "has several sentences that demand something"
        elif (longest := _longest_list(demand)) >= _LIST_ITEMS:
            yield "compound", "note", f"asks for a list of {longest}, of which a part may be there"
    if (fault := _FAULT if not criterion.is_fault else _SHUNS).search(demand):
        good, costs = ("bad", "earns") if fault is _FAULT else ("good", "costs")
        yield "polarity", "warning", f"is met by a {good} response, yet meeting it {costs} points"


def _normalize_demand(text: str) -> str:
    """The demand itself, lower-cased: no label in front, no asides, no examples."""
    head, colon, rest = text.partition(":")
    if colon and rest.strip() and " " not in head.strip() and len(head) < 60:
        text = rest  # a name such as Paragraphs_Constraints
    return " ".join(_EXAMPLES.sub(" ", _ASIDE.sub(" ", text)).split()).lower()


def _longest_list(demand: str) -> int:
    """Members of the longest ``a, b, c, and d`` of short members."""
    longest, run = 0, 1
    for member in re.split(r", |(?<=[.;:])", demand):
        longest = max(longest, (run + 1) * member.startswith("and "))
        is_short = member.count(" ") < _MEMBER_WORDS and not member.startswith("or ")
        run = run + 1 if is_short and not member.endswith((".", ";", ":")) else 1
    return longest


def _check_overlap(
    later: Criterion, earlier: tuple[Criterion, ...]
) -> Iterator[tuple[str, Severity, str]]:
    """The first earlier criterion that asks nearly the same, with points of the same sign."""
    for one in earlier:
        words, others = _words(one.text), _words(later.text)
        differing, shared = words ^ others, len(words & others)
        alike = shared >= _ALIKE * (shared + len(differing)) and (shared > 2 or not differing)
        # Another dose is another demand.
        if alike and one.is_fault == later.is_fault and not any(map(str.isdigit, differing)):
            message = f"asks nearly the same as criterion {one.id!r}, which counts it twice"
            yield "overlap", "warning", message
            return


def _words(text: str) -> frozenset[str]:
    """The words that carry meaning; those of a demand turned round are others."""
    words = _WORD.findall(text.lower())
    singular = (word if len(word) < 4 else word.removesuffix("s") for word in words)
    turned = {"not"} if _NEGATION.search(_normalize_demand(text)) else set()
    return frozenset(word for word in singular if not _STOP.fullmatch(word)) | turned
