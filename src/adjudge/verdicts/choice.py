"""Reading a choice from a menu: labels, lines, and what sentences say of the things compared.

Where a text names what the menu offers, it is rewritten with signs that patterns of phrases can be
written in. A sentence says something for a mention, against it, or that there is a tie, more or
less firmly. What is asked, supposed, denied or reported of somebody else says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.verdicts import wording
from adjudge.verdicts.notation import LABEL_NOT_IN_MENU, TIE_NOT_ALLOWED, Menu
from adjudge.verdicts.reply import (
    MAX_MATCHES,
    NO_VERDICT,
    ReplyText,
    TooManyMatchesError,
    VerdictMatch,
    apply_reader,
    missing_verdict,
    select_verdict,
)
from adjudge.verdicts.strict import UnreadableReply, Verdict

FIRST_SIGN = 0xE000
"""A mention of label *i* is ``FIRST_SIGN + i``, then :data:`FILL_SIGN` up to its length."""
FILL_SIGN = "\x01"

_NOTHING = "\x00"  # stands in no plain text
# After "A", or "answer a", words that show that it is a name and no article.
_VERBS = (
    r"(?:is|isn't|was|wins|won|beats|over|and|or|nor|vs|versus|seems?|appears|looks|than|to|has|does|"
    r"would|because|since|as|by|provides|gives|offers|follows|answers|but|while|outperforms|better|"
    r"more|on|in|with|for|also|fails|lacks|contains|includes|addresses|should|deserves)\b"
)
# After any other word a capital letter is part of a name: "Plan B", "vitamin A".
_NAMING = re.compile(
    r"(?<![A-Za-z])(?!(?:i|so|that|then|thus|hence|therefore|overall|and|or|nor|but|yet|both|either|"
    r"neither|only|not|is|was|be|are|isn|than|over|to|for|of|by|in|on|with|as|from|like|unlike|against|"
    r"between|versus|vs|because|since|while|whereas|although|though|if|when|whether|where|which|choose|"
    r"chose|chosen|choosing|pick|picked|prefer|preferred|prefers|favou?r|select|selected|find|think|"
    r"believe|say|consider|declare|recommend|goe?s?|vote|lean|towards?|winner|verdict|preference|better|"
    r"best|conclude|judge|rate|rank|makes?|gives?|beats|outperforms|surpasses|compared|however|"
    r"also|still|even|means?|call|final|choice|decision|result|eliminate|reject|[a-z]+ly)\s)"
    r"[a-z]+[ \t]{1,3}\Z",
    re.IGNORECASE,
)
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_EMPHASIS = str.maketrans("*`", "  ")


def mentioned_label(menu: Menu, sign: str) -> str:
    """The label that a mention's first character stands for."""
    return menu.labels[ord(sign) - FIRST_SIGN]


def mark_mentions(menu: Menu, text: str) -> str:
    """``text``, equally long and in small letters, with mentions of labels as signs.

    Mentions are a noun and a name ("Response B", "Output (b)", "回答B"), a place ("the second
    answer"), a name in brackets, a capital letter of its own. Of other menus: the names as words.
    Emphasis becomes blanks.
    """
    text = text.translate(_EMPHASIS)
    signs = {label: chr(FIRST_SIGN + number) for number, label in enumerate(menu.labels)}

    known: dict[tuple[str | None, str], str] = {}

    def sign(found: re.Match[str]) -> str:
        start = found.start()
        if found.lastgroup == "bare" and _NAMING.search(text, max(0, start - 24), start):
            return found[0]
        key = found.lastgroup, found[0]
        if (made := known.get(key)) is None:
            label = menu.label(found[found.lastgroup or 0])
            made = signs[label] + FILL_SIGN * (len(key[1]) - 1) if label in signs else key[1]
            known[key] = made
        return made

    return _pattern(menu).sub(sign, text).translate(_LOWER)


@lru_cache(maxsize=64)
def _pattern(menu: Menu) -> re.Pattern[str]:
    if not menu.compared:
        return re.compile(
            rf"(?<![A-Za-z0-9_'])(?P<word>{menu.name_pattern})(?![A-Za-z0-9_'])", re.IGNORECASE
        )
    short = {name for names in menu.names.values() for name in names if len(name) == 1}
    lower = "".join(sorted(sign for sign in short if sign.isascii() and sign.isalpha())) or "\x00"
    digits = "".join(sorted(sign for sign in short if sign.isascii() and sign.isdigit())) or "\x00"
    upper = lower.upper()
    words = {name for names in menu.names.values() for name in names} - set(lower) - set(digits)
    nouns = _cased(menu.nouns)
    article = rf"(?![ ]+(?!{_VERBS})[a-z])"
    return re.compile(
        rf"(?<![A-Za-z])(?:(?:{nouns})s?\s{{0,2}}(?:[Nn]umber|[Nn]o\.?|#)?\s{{0,2}}(?:"
        # Output (b), Output "B", Response [A]
        rf"[(\[\"']{{1,2}}\s?(?P<wrapped>[{upper}{lower}{digits}])\s?[)\]\"']{{1,2}}"
        # Output B, Answer 2, output b
        rf"|(?P<plain>[{upper}{digits}]|(?!a)[{lower}]|(?=a)[{lower}]{article})"
        r"(?![A-Za-z0-9_]|[.,][0-9]|'[a-rt-z]))"
        # the second answer, the first one, 第二个回答, 回答一
        rf"|(?P<place>{_cased(words) or _NOTHING})\s(?:{nouns}|one)(?![A-Za-z])"
        rf"|(?P<nth>第[一二三四五])(?:个|份|条|篇)?(?:{nouns})?"
        rf"|(?:{_chinese(menu)})\s?(?P<number>[一二三四五甲乙])"
        # (b), [B]
        rf"|(?<![0-9_])[(\[\"']\s?(?P<bracket>[{upper}{lower}])\s?[)\]\"'](?![A-Za-z0-9_])"
        # B
        rf"|(?<![0-9_'.(\[-])(?P<bare>(?![AI])[{upper}]|(?=[AI])[{upper}]{article})"
        r"(?![A-Za-z0-9_'(\[-]|\.[A-Za-z]))"
    )


def _cased(words: Iterable[str]) -> str:
    """Alternatives for ``words`` in the three usual cases, which is quicker than ignoring case."""
    spelled = {form for word in words for form in (word.lower(), word.capitalize(), word.upper())}
    return "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))


def _chinese(menu: Menu) -> str:
    return "|".join(noun for noun in menu.nouns if not noun.isascii()) or _NOTHING


FIRST_SENTENCE, NO_SENTENCE, OWN_LINE = 0, -1, -2
_LOOK = 240
_LONGEST = 4_000
_MOST = 4_000
_NO_WORDS = " \n\t\x00\x01>`#*|_-=.:\"'()[]"
_SIGN = re.compile("[\ue000-\ue0ff]")


class Firmness(IntEnum):
    """How firmly something is said; more outweighs less."""

    HINT = 1
    """A conclusion in part ("therefore it is better in detail"); a plain tie."""
    SAID = 2
    """A plain sentence: "Output (b) is better"."""
    CONCLUDED = 3
    """After "therefore", "overall", "in conclusion", or alone on a line."""
    FINAL = 4
    """Behind a label: "Verdict: B", "final answer: B"."""


class StatementKind(IntEnum):
    """What a statement says of its mention."""

    FOR = 1
    AGAINST = 2
    TIE = 3


class Statement(NamedTuple):
    """``text[start:end]`` says ``kind`` of the mention ``sign``, which is "" for a tie.

    ``sentence``: the number of its sentence from 0; ``OWN_LINE`` for a line of its own, -1 behind a
    label. ``words``: the judge's own words for it, which are the sentence of a conclusion.
    """

    start: int
    end: int
    kind: StatementKind
    sign: str
    firmness: Firmness
    sentence: int
    words: tuple[int, int] | None = None


_PATTERNS = (
    (StatementKind.FOR, (*wording.PREFERRED_PATTERNS, *wording.CHOICE_PATTERNS)),
    (StatementKind.AGAINST, tuple(wording.REJECTED_PATTERNS)),
)


def find_statements(text: str) -> Iterator[Statement]:
    """All that the sentences of ``text`` say about its mentions, in no particular order.

    Raises :class:`TooManyMatchesError` when there are more than 4,000.
    """
    for number, found in enumerate(wording.SENTENCE_PATTERN.finditer(text)):
        sentence = found[0]
        if not sentence.strip(_NO_WORDS):
            continue
        if number > _MOST:
            raise TooManyMatchesError
        if len(sentence) > _LONGEST or sentence.rstrip().endswith(("?", "？")):
            continue
        said = list(_chosen(sentence)) if _SIGN.search(sentence) else []
        whole = (found.end() - len(sentence.lstrip()), found.start() + len(sentence.rstrip()))
        for one in said or _ties(sentence):
            span = one.start + found.start(), one.end + found.start()
            words = span if one.firmness is Firmness.SAID else whole
            yield one._replace(start=span[0], end=span[1], sentence=number, words=words)


def find_labelled_verdicts(text: str, *, headings: bool) -> Iterator[Statement]:
    """Verdicts behind a label, and mentions that have a line to themselves.

    ``headings``: such lines may be headings, so that different ones say nothing.
    """
    for found in wording.VERDICT_LABEL.finditer(text):
        yield _statement(found, Firmness.FINAL, NO_SENTENCE, start=found.start("word"))
    lines = list(wording.VERDICT_LINE.finditer(text))
    if not headings or len({found["x"] for found in lines}) == 1:
        yield from (_statement(found, Firmness.CONCLUDED, OWN_LINE) for found in lines)


def _statement(
    found: re.Match[str], firmness: Firmness, sentence: int, start: int | None = None
) -> Statement:
    kind = StatementKind.TIE if found["tie"] else StatementKind.FOR
    begin = found.start() if start is None else start
    return Statement(begin, found.end(), kind, found["x"] or "", firmness, sentence)


def _concluded(sentence: str) -> int:
    """From where on ``sentence`` concludes; its end for one that does not."""
    marker = wording.CONCLUSION_WORDS.search(sentence)
    return len(sentence) if marker is None else marker.start()


def _chosen(sentence: str) -> Iterator[Statement]:
    """What ``sentence`` says for or against one mention."""
    if wording.PREFERENCE_HINT.search(sentence) is None:
        return
    concluded = _concluded(sentence)
    for kind, patterns in _PATTERNS:
        for pattern in patterns:
            for found in pattern.finditer(sentence):
                if _stands(sentence, found, chosen=pattern in wording.CHOICE_PATTERNS):
                    firmness = _firmness(sentence, found, concluded)
                    if firmness is not None:
                        yield Statement(*found.span(), kind, found["x"], firmness, 0)


def _firmness(sentence: str, found: re.Match[str], concluded: int) -> Firmness | None:
    before = sentence[max(0, found.start() - _LOOK) : found.start()]
    partly = wording.LIMITATION_AFTER.match(
        sentence, found.end()
    ) or wording.LIMITATION_BEFORE.search(before)
    if found.end() > concluded:
        return Firmness.HINT if partly else Firmness.CONCLUDED
    return None if partly else Firmness.SAID


def _ties(sentence: str) -> Iterator[Statement]:
    """What a sentence that chooses nothing says of a tie."""
    concluded = _concluded(sentence)
    for found in wording.TIE_STATEMENT.finditer(sentence):
        firmness = Firmness.CONCLUDED if found.end() > concluded else Firmness.HINT
        yield Statement(*found.span(), StatementKind.TIE, "", firmness, 0)


def _stands(sentence: str, found: re.Match[str], *, chosen: bool = False) -> bool:
    """Whether the match is the judge's own, unconditional and affirmative statement."""
    if (
        wording.NEGATION_WORDS.search(found[0])
        or wording.COUNTERFACTUAL_WORDS.search(found[0])
        or wording.CONDITION_AFTER.match(sentence, found.end())
    ):
        return False
    before = sentence[max(0, found.start() - _LOOK) : found.start()]
    if wording.SUPPOSITION_OPENING.match(before) or wording.LIST_BEFORE.search(before):
        return False
    if _SIGN.match(found[0]) and wording.COMPARISON_BEFORE.search(before[-16:]):
        return False
    clause = before[_last_end(wording.CLAUSE_BREAK, before) :]
    if wording.SUPPOSITION_WORDS.search(clause) or wording.NEGATION_WORDS.search(clause):
        return False
    report = wording.REPORTED_SPEECH.search(clause)
    if report is not None and not wording.FIRST_PERSON.search(clause, 0, report.start()):
        return False
    return not chosen or wording.JUDGE_SUBJECT.search(clause) is not None


def _last_end(pattern: re.Pattern[str], text: str) -> int:
    end = 0
    for found in pattern.finditer(text):
        end = found.end()
    return end


CHOICE_KEYS = (
    "verdict", "better", "winner", "choice", "answer", "preference", "preferred", "label",
    "decision", "final_verdict", "final_answer", "better_response", "better_answer",
    "better_output", "judgment", "judgement", "result", "选择", "结论", "答案", "裁决", "获胜者",
)  # fmt: skip
_TAGS = "better|verdict|answer|choice|winner|decision|final_answer|result"
_LONGEST_VALUE = 4_000


def read_choice(
    text: str,
    menu: Menu,
    *,
    keys: Sequence[str] = CHOICE_KEYS,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The one label of ``menu`` that a judge's reply chooses.

    Looked for, in this order: inside the tagged ``block`` that our prompt asked for; JSON with one
    of ``keys``, ``<better>A</better>`` and ``[[A]]``, which must agree; the
    whole reply; then what its sentences say. There a label ("Verdict: B") outweighs a conclusion
    ("Therefore, Output (b) is better"), and that a plain statement ("Response A is worse, so I pick
    B"); what is equally firm must agree, and nothing firm may follow that says otherwise. "Better"
    in one respect, questions, conditions, denials and reports of what others say choose nothing.
    "Both", "neither" and ties are the menu's tie where it has one and no verdict otherwise.

    ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is one of the menu's labels; else an
    :class:`UnreadableReply`. Raises nothing.

    >>> pair = Menu.pair()
    >>> read_choice("Response A is worse, so I pick B.", pair).value
    'B'
    >>> read_choice("A is better here but B is better there.", pair).why
    'several verdicts that differ'
    """
    return apply_reader(
        ReplyText(text, quoted, cut=cut), partial(_read, menu=menu, keys=tuple(keys))
    )


def _read(reply: ReplyText, menu: Menu, keys: tuple[str, ...]) -> Verdict | UnreadableReply:
    marked = reply.find_keyed_verdicts(keys, _TAGS, partial(_label_of, menu))
    settled = select_verdict(reply, list(islice(marked, MAX_MATCHES + 1)))
    if settled is None:
        if reply.json_values.unclosed:
            return missing_verdict(reply)
        settled = _match_whole_reply(reply, menu) or _weigh(reply, _read_statements(reply, menu))
    elif isinstance(settled, VerdictMatch) and not reply.is_only_json:
        said = [
            one.found
            for one in _read_statements(reply, menu)
            if one.own
            and one.firmness
            >= (Firmness.SAID if one.found.start >= settled.end else Firmness.FINAL)
        ]
        if any(one.value != settled.value for one in said):
            return UnreadableReply(why="several verdicts that differ")
    if not isinstance(settled, VerdictMatch):
        return settled or missing_verdict(reply)
    if settled.value == LABEL_NOT_IN_MENU:
        return UnreadableReply(
            kind=ErrorKind.OUT_OF_RANGE, why="a choice that the menu does not offer"
        )
    if settled.value == TIE_NOT_ALLOWED:
        return UnreadableReply(why="a tie or both, which the menu does not offer")
    return reply.make_verdict(settled, settled.value)


def _label_of(menu: Menu, value: Any) -> Any:
    """The label that a JSON value, or the text of a mark, stands for."""
    if isinstance(value, bool):
        return menu.match(str(value)) or menu.match("yes" if value else "no") or NO_VERDICT
    if not isinstance(value, int | str) or len(str(value)) > _LONGEST_VALUE:
        return NO_VERDICT
    if (label := menu.match(str(value))) is not None:
        return label
    inner = ReplyText(str(value))
    said = _weigh(inner, _read_statements(inner, menu))
    return said.value if isinstance(said, VerdictMatch) else NO_VERDICT


def _match_whole_reply(reply: ReplyText, menu: Menu) -> VerdictMatch | None:
    """The whole reply as a name."""
    if len(reply.text) > 200 or reply.cut or reply.normalized.startswith(">"):
        return None
    label = menu.match(reply.normalized)
    return None if label is None else VerdictMatch(0, len(reply.text), label, "bare")


class _ChoiceStatement(NamedTuple):
    """What one statement chooses, how firmly; ``tie``: nothing; ``own``: not as a quotation."""

    found: VerdictMatch
    firmness: Firmness
    tie: bool
    sentence: int
    own: bool


def _read_statements(reply: ReplyText, menu: Menu) -> list[_ChoiceStatement]:
    """What the reply's labels, lines and sentences choose, in the reply's order."""
    text = _without_quotations(mark_mentions(menu, reply.prose))
    found = list(islice(find_labelled_verdicts(text, headings=menu.compared), 4 * MAX_MATCHES))
    if menu.compared:
        found += islice(find_statements(text), 4 * MAX_MATCHES)
    else:
        found += islice(_leading(text), 1)
    made: list[_ChoiceStatement] = []
    for one in sorted(found):
        value = _value(one, menu)
        if (
            value is not None
            and reply.is_complete(one.start, one.end, firm=one.firmness >= Firmness.CONCLUDED)
            and reply.is_affirmed(one.start)
        ):
            form = "bare" if one.sentence == OWN_LINE else "phrase"
            place = VerdictMatch(one.start, one.end, value, form)
            own = reply.is_own_text(*(one.words or (one.start, one.end)))
            made.append(
                _ChoiceStatement(
                    place, one.firmness, one.kind is StatementKind.TIE, one.sentence, own
                )
            )
    return made


def _value(one: Statement, menu: Menu) -> str | None:
    if one.kind is StatementKind.TIE:
        return TIE_NOT_ALLOWED if menu.tie is None else menu.tie
    label = mentioned_label(menu, one.sign)
    return menu.other(label) if one.kind is StatementKind.AGAINST else label


def _weigh(reply: ReplyText, said: list[_ChoiceStatement]) -> VerdictMatch | UnreadableReply | None:
    """The firmest statements' choice, if they agree and none that follows says otherwise.

    One that may be a quotation chooses nothing, but it can contradict.
    """
    said = _without_overcome_ties(said)
    firmest = max((one.firmness for one in said if one.own), default=None)
    if firmest is None:
        return None
    first = [one.found for one in said if one.firmness >= firmest]
    chosen = [one.found for one in said if one.own and one.firmness is firmest][-1]
    # A reply that begins or ends with another plain verdict has two.
    beside = [
        one.found
        for one in said
        if one.firmness >= Firmness.SAID
        and one.found.form != "bare"
        and (one.found.start > chosen.end or one.sentence == FIRST_SENTENCE)
    ]
    if any(one.value != chosen.value for one in (*first, *beside)):
        return UnreadableReply(why="several verdicts that differ")
    if reply.is_retracted(chosen.end):
        return UnreadableReply(why="words behind the verdict take it back")
    return chosen


def _without_overcome_ties(said: list[_ChoiceStatement]) -> list[_ChoiceStatement]:
    """``said`` less the ties after which a choice is concluded all the same."""
    last = max(
        (s.found.start for s in said if not s.tie and s.firmness >= Firmness.CONCLUDED), default=-1
    )
    return [s for s in said if not s.tie or s.found.start > last or s.firmness is Firmness.FINAL]


_QUOTATION = re.compile(r'"[^"\n]{2,400}"')
_LEADING = re.compile(
    "[\\s#>\"'(\\[-]{0,8}(?P<x>[\ue000-\ue0ff])\x01*[\\s\"')\\]]{0,4}(?=[.,;:!。，；！\n(-]|$)"
)


def _without_quotations(text: str) -> str:
    """Blanks in place of what stands in quotation marks, unless that is a mention or a line."""

    def blank(found: re.Match[str]) -> str:
        inner = found[0][1:-1].strip()
        line = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", found.end())
        around = text[line : found.start()] + text[found.end() : end if end >= 0 else len(text)]
        if not inner.strip("\x01 .")[1:] or not around.strip(" .*#"):
            return found[0]
        return '"' + " " * (len(found[0]) - 2) + '"'

    return _QUOTATION.sub(blank, text) if '"' in text else text


def _leading(text: str) -> Iterator[Statement]:
    """A name with which the reply begins: "Yes, because …"; no other name in its sentence."""
    found = _LEADING.match(text)
    if found is not None and len({*_SIGN.findall(_ENDS.split(text, maxsplit=1)[0])}) < 2:
        yield Statement(0, found.end(), StatementKind.FOR, found["x"], Firmness.CONCLUDED, -3)


_ENDS = re.compile(r"[.。!！?\n]")
