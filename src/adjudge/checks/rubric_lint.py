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
from itertools import takewhile
from typing import Literal, get_args

import msgspec

from adjudge.rubrics import AnyRubric
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
_MENTION = re.compile(
    _SUBJECT + r"(?:clearly |briefly |also )?(?:(?:mention|discuss|address|reference|cover|include|"
    r"contain)(?:s|es)?|refers? to|touch(?:es)? (?:on|upon)|talks? about)\b"
)
_SAYS_WHAT = re.compile(
    r"\b(?:that|correct\w*|accurat\w*|precis\w*|exact\w*|right|true|valid|proper\w*|how|why|when|"
    r"whether|including|instructions?|because|due to|is|are|was|were|can|may|will|needs?|phrase|"
    r"sentence|words?|keyword\w*|as|if|in case)\b|\d|[:\"“'’‘`]"
)
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
_ADVICE = {
    "compound": "split it, so that meeting one part earns that part only",
    "presence_only": "say what must be said about it, or that it must be correct",
    "unverifiable": "name what can be seen in the response when it is met",
    "polarity": "met must be good where points are positive and bad where they are negative",
    "long": "one criterion is a sentence; put instructions to the judge into the prompt",
    "overlap": "keep one, with the points of both",
}
_LONG = 1_000
_LIST_ITEMS = 4
_MEMBER_WORDS = 5
_ONE_CALL = 20
"""Criteria that one call should ask for; rubrics of RaR (arXiv 2507.17746) have 7 to 20."""
_ALIKE = 0.8
_PREAMBLE = 100
_Complaint = tuple[str, Severity, str]
"""A rule, how bad it is, and what is wrong."""


class LintFinding(msgspec.Struct, frozen=True):
    """One thing that ``lint`` found.

    ``criterion``: the id of the criterion, ``None`` for the rubric as a whole. ``part``: which
    rubric of a bundle it is about. ``severity``: ``warning`` is likely to be exploited or
    misjudged, ``note`` may be meant.
    """

    rule: str
    criterion: str | None
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
        msgspec.structs.replace(finding, part=name)
        for name, part in list_parts(rubric)
        if isinstance(part, Rubric)
        for finding in _findings(part)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def list_parts(rubric: AnyRubric) -> list[tuple[str, Rubric | GlobalRubric]]:
    """The rubrics of a bundle with their names; a rubric alone has the name ``""``."""
    if not isinstance(rubric, RubricBundle):
        return [("", rubric)]
    named = [(name, getattr(rubric, name)) for name in ("global_rubric", "outcome", "events")]
    return [(name, part) for name, part in named if part is not None]


def _findings(rubric: Rubric) -> Iterator[LintFinding]:
    for place, criterion in enumerate(rubric.criteria):
        for rule, severity, message in _check_wording(criterion):
            yield LintFinding(rule, criterion.id, severity, message, _ADVICE[rule])
        for rule, severity, message in _check_overlap(criterion, rubric.criteria[:place]):
            yield LintFinding(rule, criterion.id, severity, message, _ADVICE[rule])
    if (counting := sum(criterion.worth != 0 for criterion in rubric.criteria)) > _ONE_CALL:
        message = f"has {counting} criteria; a judge that answers all in one call skips some"
        advice = f"ask in chunks of at most {_ONE_CALL}"
        yield LintFinding("too_many", None, "note", message, advice)


def _check_wording(criterion: Criterion) -> Iterator[_Complaint]:
    """What is wrong with the text."""
    demand, text = _normalize_demand(criterion.text), " ".join(criterion.text.split())
    if len(text) > _LONG:
        yield "long", "note", f"has {len(text):,} characters; its wording was not looked at"
        return
    yield from _check_compound(criterion, demand)
    if (fault := _FAULT if not criterion.is_fault else _SHUNS).search(demand):
        good, costs = ("bad", "earns") if fault is _FAULT else ("good", "costs")
        yield "polarity", "warning", f"is met by a {good} response, yet meeting it {costs} points"
    found = None if criterion.is_fault or _NEGATION.search(demand) else _MENTION.search(demand)
    if found and not _SAYS_WHAT.search(demand[found.end() :]) and len(text) <= len(demand) + 40:
        severity: Severity = "note" if found[0].split()[-1][:4] in ("incl", "cont") else "warning"
        message = f"{found[0].strip()!r} asks for words, not for what is right"
        yield "presence_only", severity, message
    if (found := _KNOWLEDGE.search(demand)) is not None:
        message = f"{found[0]!r} needs knowledge that is not in the criterion; give a reference"
        yield "unverifiable", "note", message
    elif (found := _VAGUE.search(demand)) and not _ANCHOR.search(text.lower()):
        yield "unverifiable", "warning", f"{found[0]!r} is left to taste"


def _normalize_demand(text: str) -> str:
    """The demand itself, lower-cased: no label in front, no asides, no examples."""
    head, colon, rest = text.partition(":")
    if colon and rest.strip() and " " not in head.strip() and len(head) < 60:
        text = rest  # a name such as Paragraphs_Constraints
    return " ".join(_EXAMPLES.sub(" ", _ASIDE.sub(" ", text)).split()).lower()


def _check_compound(criterion: Criterion, demand: str) -> Iterator[_Complaint]:
    sentences = _SENTENCE.split(_ASIDE.sub(" ", criterion.text))
    asking = sum(_MODAL.search(sentence.lower()) is not None for sentence in sentences)
    longest = _longest_list(demand)
    if len(re.findall(r"\bstep \d", demand)) >= 2:
        yield "compound", "warning", "is a procedure of several steps with a verdict each"
    elif _ANY_OF.search(demand):
        return
    elif found := _JOINED.search(demand):
        yield "compound", "warning", f"joins demands: {found[0].strip()[:40]!r}"
    elif asking >= 2:
        yield "compound", "warning", f"has {asking} sentences that demand something"
    elif longest >= _LIST_ITEMS:
        yield "compound", "note", f"asks for a list of {longest}, of which a part may be there"


def _longest_list(demand: str) -> int:
    """Members of the longest ``a, b, c, and d`` of short members."""
    longest, run = 0, 1
    for member in re.split(r", |(?<=[.;:])", demand):
        longest = max(longest, (run + 1) * member.startswith("and "))
        is_short = member.count(" ") < _MEMBER_WORDS and not member.startswith("or ")
        run = run + 1 if is_short and not member.endswith((".", ";", ":")) else 1
    return longest


def _check_overlap(later: Criterion, earlier: tuple[Criterion, ...]) -> Iterator[_Complaint]:
    """An earlier criterion that asks nearly the same, or its reverse; the first one only."""
    for one in earlier:
        pairs = zip(one.text, later.text, strict=False)
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        start = start if start >= _PREAMBLE else 0
        words, others = (_words(text[start:]) for text in (one.text, later.text))
        differing = words ^ others
        shared = len(words & others)
        alike = shared >= _ALIKE * (shared + len(differing)) and (shared > 2 or not differing)
        if not alike or any(word.isdigit() for word in differing):  # another dose is another one
            continue
        turned = bool(_NEGATION.search(_normalize_demand(one.text))) != bool(
            _NEGATION.search(_normalize_demand(later.text))
        )
        if turned != (one.is_fault != later.is_fault):
            continue  # opposites, or a demand beside its ban
        other = f"criterion {one.id!r}"
        if turned:
            yield "overlap", "note", f"is {other} turned round, so the same thing counts twice"
        else:
            yield "overlap", "warning", f"asks nearly the same as {other}, which counts it twice"
        return


def _words(text: str) -> frozenset[str]:
    """The words that carry meaning, without a leading negation."""
    words = _WORD.findall(_NEGATION.sub("", " ".join(text.lower().split())))
    singular = (word if len(word) < 4 else word.removesuffix("s") for word in words)
    return frozenset(word for word in singular if not _STOP.fullmatch(word))
