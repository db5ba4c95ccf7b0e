"""What makes a rubric easy to satisfy without being good.

The exploits that policies find in rubrics are known (arXiv 2605.12474): parts of compound
criteria, words that are present without being right, vague topics. ``lint`` looks for the wording
that allows them, and for criteria that count twice. Each rule found something in the rubrics of
HealthBench or in VerInstruct's checklists.

What is said of wording are heuristics, in English: each has its reason in
:data:`_ADVICE`, and keeps quiet where the wording could well be meant. Patterns are matched against
the demand in lower case, without asides and examples. None has a repetition inside a repetition,
so all are linear in the text.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from adjudge.rubrics.parsing import AnyRubric
from adjudge.rubrics.rubric import Criterion, GlobalRubric, Rubric, RubricBundle

_SUBJECT = r"^(?:the (?:response|answer|assistant|model|output) )?"
_MUST = r"(?:should |must )?"

_ASIDE = re.compile(r"\([^()]*\)|\"[^\"]*\"|“[^“”]*”|(?<=\s)'[^']{1,200}'(?=[\s.,;:])")
_EXAMPLES = re.compile(r"(?:\be\.g\.|\bi\.e\.|\bsuch as\b|\bfor example\b|\bfor instance\b)[^.;]*")
_ANY_OF = re.compile(
    r"\b(?:at least (?:one|two|three|\d+)|any of|one of|one or more|either|some of)\b"
)

# compound
_VERBS = (
    r"(?:acknowledge|add|advise|answer|apologi[sz]e|ask|assess|avoid|calculate|cite|clarify|"
    r"compare|conclude|confirm|define|demonstrate|describe|discourage|discuss|distinguish|"
    r"emphasi[sz]e|encourage|ensure|evaluate|explain|express|give|highlight|identify|identifie|"
    r"include|incorporate|indicate|inform|inquire|instruct|justify|justifie|maintain|mention|"
    r"outline|prioriti[sz]e|propose|provide|recommend|refrain|remind|specify|specifie|suggest|"
    r"summari[sz]e|urge|utili[sz]e|verify|verifie|warn|write)(?:s|es)?"
)
_PARTICIPLES = (
    r"(?:acknowledg|add|advis|answer|ask|assess|avoid|clarify|compar|confirm|defin|demonstrat|"
    r"describ|discuss|emphasi[sz]|encourag|ensur|explain|giv|highlight|identify|includ|"
    r"incorporat|indicat|inform|maintain|mention|not|outlin|provid|recommend|refrain|specify|"
    r"stat|suggest|summari[sz]|us|utili[sz]|warn|writ)ing"
)
_USE = r"use\b(?! (?:of|in|for|as|or|and)\b)"
_JOINED = re.compile(
    r"(?:\band|\bwhile|\bas well as|;)(?: (?:also|then|not|must|should|clearly|correctly|"
    r"explicitly|accurately|appropriately|it)){0,3} "
    rf"(?:(?:{_VERBS}|{_PARTICIPLES})\b(?!-)|{_USE})"
    r"|;(?: it| the response| the answer)? (?:should|must)\b"
)
_MODAL = re.compile(r"\b(?:should|must|needs? to|has to|have to)\b")
_STEP = re.compile(r"\bstep \d")
_SENTENCE = re.compile(r"(?<=[a-z)\]]{2})[.!?]\s+(?=[A-Z])|\n+")

# presence_only
_MENTION = re.compile(
    _SUBJECT + r"(?:should |must |clearly |briefly |also )?"
    r"(?:mentions?|discuss(?:es)?|address(?:es)?|references?|touch(?:es)? (?:on|upon)|"
    r"refers? to|talks? about|covers?)\b"
)
_INCLUDE = re.compile(_SUBJECT + _MUST + r"(?:includes?|contains?)\b")
_SAYS_WHAT = re.compile(
    r"\b(?:that|correct\w*|accurat\w*|precis\w*|exact\w*|right|true|valid|proper\w*|how|why|when|"
    r"whether|including|instructions?|because|due to|is|are|was|were|can|may|will|needs?|phrase|"
    r"sentence|words?|keyword\w*|as|if|in case)\b|\d|[:\"“'’‘`]"
)

# unverifiable
_ADVERBS = (
    r"(?:appropriately|adequately|properly|suitably|sufficiently|nicely|naturally|effectively|"
    r"reasonably|satisfactorily|helpfully|meaningfully|well)"
)
_MADE = r"(?:formatted|structured|detailed|written|organi[sz]ed|balanced|phrased|explained|worded)"
_ADJECTIVES = (
    r"(?:appropriate|suitable|adequate|good|nice|great|helpful|useful|natural|engaging|"
    r"interesting|compelling|high[- ]quality|reasonable|proper|sufficient|satisfactory|excellent|"
    r"effective|well[- ]written|insightful|meaningful|elegant)"
)
_OF_RESPONSES = (
    r"(?:responses?|answers?|tone|level|details?|depth|length|language|style|format|formatting|"
    r"manner|way|amount|quality|structure|writing|flow|explanations?|advice|information|context|"
    r"wording|clarity|summary|overview|story|examples?)"
)
_VAGUE = re.compile(
    rf"\b(?:{_ADVERBS}(?= *(?:[,.;]|$| {_MADE}))|{_ADJECTIVES} (?:\w+ )?{_OF_RESPONSES}|"
    rf"(?:{_OF_RESPONSES}|it) "
    r"(?:is|are|(?:should|must) be|sounds?|feels?|seems?|reads?) (?:\w+ )?"
    rf"{_ADJECTIVES})\b"
)
_ANCHOR = re.compile(
    r"\d|[:\"“`(]|\b(?:such as|e\.g|i\.e|for example|including|that|by \w+ing|without|"
    r"at least|at most|no more than|because|if|when|unless|since)\b"
)
_KNOWLEDGE = re.compile(
    r"\b(?:reference (?:answer|solution|response)|ground[- ]truth|gold(?:en)? answer|factuality|"
    r"factual(?:ly)? (?:\w+ )?(?:accura\w+|correct\w*|incorrect\w*|errors?)|"
    r"no (?:factual )?(?:errors|inaccuracies))\b"
)
_SOURCES = re.compile(
    r"\b(?:according to|based on|consistent with|align(?:s|ed)? with|in line with|reflects?|"
    r"follows?) (?:the )?(?:most )?(?:current|latest|recent|established|up[- ]to[- ]date) "
    r"(?:\w+ ){0,2}(?:guidelines?|evidence|research|literature|standards?|knowledge|consensus)\b"
)

# polarity, overlap
_NEGATED = re.compile(
    _SUBJECT + r"(?:should |must |does |do |did |is |has |have )?"
    r"(?:not\b|never\b|no\b|avoids?\b|refrains? from\b|fails? to\b|failed to\b|lacks?\b|"
    r"omits?\b|neglects? to\b|without\b|excludes?\b|\w+n't\b)"
)
_NEGATION = re.compile(
    _SUBJECT + _MUST + r"(?:does not |doesn't |do not |fails? to |failed to |neglects? to |omits? |"
    r"lacks? |not |never )"
)
"""A leading negation that leaves the thing itself when it is taken away."""
_AVOIDS = re.compile(
    _SUBJECT + _MUST + r"(?:avoids?\b|refrains? from\b|is free (?:of|from)\b|steers clear)"
)
_SHUNS_HARM = re.compile(
    _SUBJECT + r"(?:does not|doesn't|should not|must not|never) (?:\w+ ){0,4}"
    r"(?:harmful|unsafe|incorrect|inaccurate|wrong|misleading|dangerous|unnecessary|"
    r"contraindicated|unproven|false|inappropriate|unsupported|fabricat\w*|hallucinat\w*)\b"
)
_FAULT = re.compile(
    _SUBJECT + r"(?:fails? to|failed to|neglects? to|omits?|fabricates?|hallucinates?|"
    r"incorrectly|inaccurately|falsely|wrongly|misrepresents?|misstates?)\b"
)


Severity = Literal["warning", "note"]
SEVERITIES = get_args(Severity)
_Complaint = tuple[str, Severity, str]
"""A rule, how bad it is, and what is wrong."""

_ADVICE = {
    "compound": "split it, so that meeting one part earns that part only",
    "presence_only": "say what must be said about it, or that it must be correct",
    "unverifiable": "name what can be seen in the response when it is met",
    "polarity": "met must be good where points are positive and bad where they are negative",
    "long": "one criterion is a sentence; put instructions to the judge into the prompt",
}

_LONG = 1_000
_LIST_ITEMS = 4
_MEMBER_WORDS = 5


def _check_wording(criterion: Criterion) -> Iterator[_Complaint]:
    """``(rule, severity, message)`` for each thing wrong with the text."""
    text = " ".join(criterion.text.split())
    demand = _normalize_demand(criterion.text)
    if len(text) > _LONG:
        yield "long", "note", f"has {len(text):,} characters; its wording was not looked at"
        return
    if message := _compound(criterion, demand):
        yield "compound", *message
    if not criterion.is_fault:
        yield from _presence(demand, text)
    yield from _unverifiable(demand, text)
    yield from _polarity(criterion, demand)


def _normalize_demand(text: str) -> str:
    """The demand itself, lower-cased: no label in front, no asides, no examples."""
    head, colon, rest = text.partition(":")
    if colon and rest.strip() and " " not in head.strip() and len(head) < 60:
        text = rest  # a name such as Paragraphs_Constraints
    text = _ASIDE.sub(" ", text)
    return " ".join(_EXAMPLES.sub(" ", text).split()).lower()


def _is_negated(demand: str) -> bool:
    """Whether the demand opens with a negation."""
    return _NEGATED.search(demand) is not None


def _compound(criterion: Criterion, demand: str) -> tuple[Severity, str] | None:
    if len(_STEP.findall(demand)) >= 2:
        return "warning", "is a procedure of several steps with a verdict each"
    if _ANY_OF.search(demand):
        return None
    if found := _JOINED.search(demand):
        return "warning", f"joins demands: {found[0].strip()[:40]!r}"
    sentences = _SENTENCE.split(_ASIDE.sub(" ", criterion.text))
    asking = [sentence for sentence in sentences if _MODAL.search(sentence.lower())]
    if len(asking) >= 2:
        return "warning", f"has {len(asking)} sentences that demand something"
    if (items := _longest_list(demand)) >= _LIST_ITEMS:
        return "note", f"asks for a list of {items}, of which a part may be there"
    return None


def _longest_list(demand: str) -> int:
    """Members of the longest ``a, b, c, and d`` of short members."""
    longest = 0
    for clause in re.split(r"[.;:]", demand):
        run = 1
        for member in clause.split(", ")[1:]:
            if member.startswith("and "):
                longest = max(longest, run + 1)
            short = member.count(" ") < _MEMBER_WORDS and not member.startswith("or ")
            run = run + 1 if short else 1
    return longest


def _presence(demand: str, text: str) -> Iterator[_Complaint]:
    found = _MENTION.search(demand) or _INCLUDE.search(demand)
    if found is None or _is_negated(demand):
        return
    rest = demand[found.end() :]
    if _SAYS_WHAT.search(rest) or len(text) > len(demand) + 40:
        return  # it says what is to be said, or an aside does
    severity: Severity = "warning" if _MENTION.search(demand) else "note"
    yield "presence_only", severity, f"{found[0].strip()!r} asks for words, not for what is right"


def _unverifiable(demand: str, text: str) -> Iterator[_Complaint]:
    found = _KNOWLEDGE.search(demand)
    if found is None and not _ANCHOR.search(demand):
        found = _SOURCES.search(demand)
    if found is not None:
        message = f"{found[0]!r} needs knowledge that is not in the criterion"
        yield "unverifiable", "note", f"{message}; give the judge a reference"
    elif (found := _VAGUE.search(demand)) is not None:
        if _ANCHOR.search(text.lower()) or _longest_list(demand) >= 3:
            return
        yield "unverifiable", "warning", f"{found[0]!r} is left to taste"


def _polarity(criterion: Criterion, demand: str) -> Iterator[_Complaint]:
    if criterion.is_fault:
        if _AVOIDS.search(demand) or _SHUNS_HARM.search(demand):
            yield "polarity", "warning", "is met by a good response, yet meeting it costs points"
    elif _FAULT.search(demand):
        yield "polarity", "warning", "is met by a bad response, yet meeting it earns points"


_ONE_CALL = 20
"""Criteria that one call should ask for; rubrics of RaR (arXiv 2507.17746) have 7 to 20."""
_ALIKE = 0.8
_PREAMBLE = 100
_WORD = re.compile(r"[^\W_]+")
_STOP = re.compile(
    "an?|the|of|to|in|on|for|and|or|with|by|from|as|at|is|are|be|its?|this|that|should|must|does|do|"
    "not|response|answer|assistant|model|output"
)


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

    Reads the rubric only. The wording rules are heuristics for English. Criteria without points or
    weights (a global rubric's) are not looked at.

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
    for criterion in rubric.criteria:
        for rule, severity, message in _check_wording(criterion):
            yield LintFinding(rule, criterion.id, severity, message, _ADVICE[rule])
    yield from _overlaps(rubric)
    counting = sum(criterion.worth != 0 for criterion in rubric.criteria)
    if counting > _ONE_CALL:
        yield LintFinding(
            "too_many",
            None,
            "note",
            f"has {counting} criteria; a judge that answers all in one call skips some",
            f"ask in chunks of at most {_ONE_CALL}",
        )


def _overlaps(rubric: Rubric) -> Iterator[LintFinding]:
    """Pairs of criteria that ask nearly the same; each criterion is reported once."""
    read = [(c, _words(c.text), _is_negated(_normalize_demand(c.text))) for c in rubric.criteria]
    for place, (later, words, inverted) in enumerate(read):
        for earlier, others, other_inverted in read[:place]:
            if _alike(words, others) and _still_alike(later.text, earlier.text):
                opposed = earlier.is_fault != later.is_fault
                if opposed == (inverted != other_inverted):
                    yield _overlap(earlier, later, opposed=opposed)
                break


def _overlap(earlier: Criterion, later: Criterion, *, opposed: bool) -> LintFinding:
    other = f"criterion {earlier.id!r}"
    message = (
        f"is {other} turned round: the same thing earns points and, missing, costs points"
        if opposed
        else f"asks nearly the same as {other}, which counts it twice"
    )
    remedy = "keep one, with the points of both"
    return LintFinding("overlap", later.id, "note" if opposed else "warning", message, remedy)


def _words(text: str) -> frozenset[str]:
    """The words that carry meaning, without a leading negation."""
    words = _WORD.findall(_NEGATION.sub("", " ".join(text.lower().split())))
    singular = (word if len(word) < 4 else word.removesuffix("s") for word in words)
    return frozenset(word for word in singular if not _STOP.fullmatch(word))


def _alike(words: frozenset[str], others: frozenset[str]) -> bool:
    shared = len(words & others)
    if shared < 3 and words != others:
        return False
    differing = words ^ others
    if any(word.isdigit() for word in differing):
        return False  # another dose is another criterion
    return bool(shared) and shared >= _ALIKE * (shared + len(differing))


def _still_alike(text: str, other: str) -> bool:
    """Whether two texts stay alike without the preamble that they share."""
    shared = sum(1 for _ in itertools.takewhile(operator.truth, map(operator.eq, text, other)))
    if shared < _PREAMBLE:
        return True
    rest, other_rest = _words(text[shared:]), _words(other[shared:])
    return len(rest | other_rest) < 3 or _alike(rest, other_rest)
