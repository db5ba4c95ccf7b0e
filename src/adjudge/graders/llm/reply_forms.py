"""What a judge's reply must look like: its schema, its words, and how it is read.

A form is asked for in one of two ways. Where the server honours JSON Schemas the reply *is* the
object. Elsewhere the object is in a block with a name that ends in digits, which the author of the
judged text cannot know. Replies that a template's author words himself are free text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from adjudge import verdicts
from adjudge.errors import Fields, Metadata
from adjudge.prompts import LanguageEnum
from adjudge.verdicts import NumberScale, Reading, UnreadableReply, Verdict, extract_reason
from adjudge.verdicts.strict import Ending, find_key_fault, parse_number, read_ending

_WHY = {
    LanguageEnum.EN: "<your reasons, in a few sentences>",
    LanguageEnum.ZH: "<简要理由>",
}
_OBJECT = {
    LanguageEnum.EN: "Reply with one JSON object and nothing else, in this form:",
    LanguageEnum.ZH: "只输出一个如下形式的 JSON 对象，不要输出其他内容：",
}
_LATER = {
    LanguageEnum.EN: "Your verdict is one JSON object in this form:",
    LanguageEnum.ZH: "你的评判结论是一个如下形式的 JSON 对象：",
}
_BLOCK = {
    LanguageEnum.EN: "End your reply with your verdict in this block, exactly once:",
    LanguageEnum.ZH: "在回复的最后，用下面的标记给出你的评判结论，且只出现一次：",
}


class JudgeReplyForm(ABC):
    """One kind of reply that a prompt of ours asks for; stateless.

    ``schema``: the JSON Schema of the reply, reasons before the verdict. ``required``: the keys
    that the object must have in a reply that a template's author words himself. ``takes_brackets``:
    ``[[1]]`` in place of the object is a verdict, too: the form of a judge's own training.
    """

    schema: Fields
    required: Sequence[str] = ()
    takes_brackets = False

    @abstractmethod
    def example(self, language: LanguageEnum) -> str:
        """The object with placeholders, as the judge is shown it."""

    @abstractmethod
    def verdict_of(self, found: Metadata) -> Reading:
        """The verdict in the object that was asked for; nothing else is one."""

    def read(self, text: str, *, quoted: Sequence[str], cut: bool) -> Reading:
        """The verdict in a reply of no form of ours."""
        read = verdicts.read_fields(text, self.required, quoted=quoted, cut=cut)
        return self.verdict_of(read.value) if isinstance(read, Verdict) else read


def describe_object(form: JudgeReplyForm, language: LanguageEnum, *, as_schema: bool) -> str:
    """What the static part of a prompt says about the reply."""
    words = (_OBJECT if as_schema else _LATER)[language]
    return f"{words}\n{form.example(language)}"


def describe_block(form: JudgeReplyForm, language: LanguageEnum, block: str) -> str:
    """The text after the material where there is no schema."""
    return f"{_BLOCK[language]}\n<{block}>\n{form.example(language)}\n</{block}>"


def build_object_schema(properties: Fields) -> Metadata:
    """The JSON Schema of an object that has exactly ``properties``."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


class KeyForm(JudgeReplyForm):
    """``{"reason", key}``: the base of forms with the verdict under one key.

    Derive, and define the verdict: :meth:`placeholder` and :meth:`value_of`. ``ending``: where
    the verdict is in replies that a template's author words himself.
    """

    def __init__(self, key: str, value_schema: Fields, ending: Ending | None = None) -> None:
        self.key, self.ending, self.required = key, ending, [key]
        self.schema = build_object_schema({"reason": {"type": "string"}, key: value_schema})

    @abstractmethod
    def placeholder(self, language: LanguageEnum) -> str:
        """The text in place of the value in the example."""

    @abstractmethod
    def value_of(self, given: object) -> object:
        """The verdict's value; an :class:`UnreadableReply` where ``given`` is invalid."""

    def value_in(self, words: str) -> object:
        """The value that words of a template's own form say; as :meth:`value_of`."""
        return self.value_of(words)

    def example(self, language: LanguageEnum) -> str:
        """See :class:`JudgeReplyForm`."""
        return f'{{"reason": "{_WHY[language]}", "{self.key}": {self.placeholder(language)}}}'

    def verdict_of(self, found: Metadata) -> Reading:
        """See :class:`JudgeReplyForm`."""
        if (wrong := find_key_fault(found, self.key)) is not None:
            return wrong
        value = self.value_of(found[self.key])
        if isinstance(value, UnreadableReply):
            return value
        return Verdict(value=value, reason=extract_reason(found), form="json")

    def read(self, text: str, *, quoted: Sequence[str], cut: bool) -> Reading:
        """See :class:`JudgeReplyForm`."""
        if self.ending is None:
            return self.read_free(text, quoted=quoted, cut=cut)
        written = read_ending(text, self.ending, quoted=quoted, cut=cut)
        value = written if isinstance(written, UnreadableReply) else self.value_in(written)
        if isinstance(value, UnreadableReply):
            return value
        return Verdict(value=value, reason=text.strip(), form="ending")

    def read_free(self, text: str, *, quoted: Sequence[str], cut: bool) -> Reading:
        """The verdict where no place was declared: the form's object."""
        return super().read(text, quoted=quoted, cut=cut)


class ScoreForm(KeyForm):
    """``{"reason", "score"}``: a number from ``low`` to ``high`` (``None``: no such end)."""

    def __init__(
        self,
        low: float | None,
        high: float | None,
        *,
        integer: bool = True,
        ending: Ending | None = None,
        takes_brackets: bool = False,
    ) -> None:
        self._scale, self.takes_brackets = NumberScale(low, high, integer), takes_brackets
        bounds: Metadata = {"type": "integer" if integer else "number"}
        if low is not None and high is not None:
            # Not every server honours bounds of numbers; all that honour schemas honour enum.
            bounds |= _list_points(low, high, integer=integer)
        super().__init__("score", bounds, ending)

    def placeholder(self, language: LanguageEnum) -> str:
        """See :class:`KeyForm`."""
        low, high, integer = self._scale
        english = language is LanguageEnum.EN
        kind = ("integer", "number") if english else ("整数", "数字")
        if low is None or high is None:
            return f"<{kind[not integer]}>"
        words = "<{} from {:g} to {:g}>" if english else "<{1:g} 到 {2:g} 之间的{0}>"
        return words.format(kind[not integer], low, high)

    def value_of(self, given: object) -> float | UnreadableReply:
        """See :class:`KeyForm`."""
        score = parse_number(given, self._scale)
        return int(score) if self._scale.integer and isinstance(score, float) else score

    def value_in(self, words: str) -> float | UnreadableReply:
        """See :class:`KeyForm`."""
        return self.value_of(verdicts.parse_score(words, self._scale))

    def read_free(self, text: str, *, quoted: Sequence[str], cut: bool) -> Reading:
        """See :class:`KeyForm`."""
        return verdicts.read_score(text, **self._scale._asdict(), quoted=quoted, cut=cut)


def _list_points(low: float, high: float, *, integer: bool) -> dict[str, list[int | float]]:
    """``enum``: all integers, or both ends and steps of 1, 0.1, 0.01, … between; or nothing.

    The steps are the smallest that make at most ``_MOST_STEPS`` of them; a range that is too wide
    for steps of 1 has no list.
    """
    if integer:
        return {"enum": list(range(int(low), int(high) + 1))}
    if not 0 < high - low <= _MOST_STEPS:
        return {}
    digits = max(0, math.floor(math.log10(_MOST_STEPS / (high - low))))
    count = math.ceil((high - low) * 10**digits)
    inner = {round(low + step * 10.0**-digits, digits) for step in range(1, count + 1)}
    points = [low, *sorted(point for point in inner if low < point < high), high]
    return {"enum": [int(point) if point == int(point) else point for point in points]}


_MOST_STEPS = 250
"""OpenAI's limit for a list of values without a limit on their characters."""


class ChoiceForm(KeyForm):
    """``{"reason", "better"}``: one of ``labels``."""

    def __init__(self, labels: Sequence[str], *, ending: Ending | None = None) -> None:
        self.labels = list(labels)
        self._by_name = {label.casefold(): label for label in labels}
        super().__init__("better", {"type": "string", "enum": self.labels}, ending)

    def placeholder(self, language: LanguageEnum) -> str:  # noqa: ARG002  (labels are not translated)
        """See :class:`KeyForm`."""
        return " | ".join(f'"{label}"' for label in self.labels)

    def value_of(self, given: object) -> object:
        """See :class:`KeyForm`."""
        return self._by_name.get(str(given).strip().casefold()) or _NO_LABEL

    def value_in(self, words: str) -> object:
        """See :class:`KeyForm`."""
        return verdicts.find_label(words, self.labels) or _NO_LABEL

    def read_free(self, text: str, *, quoted: Sequence[str], cut: bool) -> Reading:
        """See :class:`KeyForm`."""
        return verdicts.read_choice(text, self.labels, quoted=quoted, cut=cut)


_NO_LABEL = UnreadableReply(why="the place for the verdict holds none of the labels")


_MARKS = {"MET": True, "UNMET": False, "N/A": None}


class MarksForm(JudgeReplyForm):
    """``{"1": {"reason", "verdict"}, …}``: a mark for each of several criteria, by its number.

    ``na_allowed``: for each criterion, whether it may also be ``N/A``.
    """

    def __init__(self, na_allowed: Sequence[bool]) -> None:
        self._marks = {
            str(number): {name: one for name, one in _MARKS.items() if na or one is not None}
            for number, na in enumerate(na_allowed, 1)
        }
        reason = {"type": "string"}
        self.schema = build_object_schema(
            {
                one: build_object_schema({"reason": reason, "verdict": {**reason, "enum": [*of]}})
                for one, of in self._marks.items()
            }
        )

    def example(self, language: LanguageEnum) -> str:
        """See :class:`JudgeReplyForm`."""
        mark = f'{{"reason": "{_WHY[language]}", "verdict": "MET" | "UNMET"}}'
        more = ", …" if len(self._marks) > 2 else ""
        return "{" + ", ".join(f'"{one}": {mark}' for one in [*self._marks][:2]) + more + "}"

    def verdict_of(self, found: Metadata) -> Reading:
        """The marks by id as ``value``: true, false, ``None`` for ``N/A``.

        Ids without a mark, or with a mark that is not a label, are absent. ``fields["reasons"]``
        has the reasons by id.
        """
        if found.keys() - self._marks.keys():
            return UnreadableReply(why="a mark for a number that no criterion has")
        marks: dict[str, bool | None] = {}
        reasons: dict[str, str] = {}
        for one, given in found.items():
            mark = given
            if isinstance(given, dict) and find_key_fault(given, "verdict") is None:
                mark, reasons[one] = given["verdict"], extract_reason(given)
            word = mark.strip().upper() if isinstance(mark, str) else None
            if word in self._marks[one]:
                marks[one] = self._marks[one][word]
        if not marks:
            return UnreadableReply(why="no criterion has one of the labels")
        return Verdict(value=marks, form="json", fields={"reasons": reasons})


class FieldsForm(JudgeReplyForm):
    """A JSON object with the required keys of a schema that the prompt's author gave."""

    def __init__(self, schema: Fields) -> None:
        self.schema = schema
        self.required = [str(key) for key in schema.get("required", ())]

    def example(self, language: LanguageEnum) -> str:  # noqa: ARG002  (a schema has no language)
        """See :class:`JudgeReplyForm`."""
        return msgspec.json.encode(self.schema).decode()

    def verdict_of(self, found: Metadata) -> Reading:
        """See :class:`JudgeReplyForm`; the object may have keys beside the required ones."""
        if any(key not in found for key in self.required):
            return UnreadableReply(why="the object lacks a key that was asked for")
        return Verdict(value=found, reason=extract_reason(found), form="json", fields=found)


class KeysForm(FieldsForm):
    """``{"reason", key, …}``: a number under each of ``keys``; the verdict is their mean."""

    def __init__(self, keys: Sequence[str]) -> None:
        number = {"type": "number"}
        reason = {"type": "string"}
        super().__init__(build_object_schema({"reason": reason, **dict.fromkeys(keys, number)}))
        self.required = list(keys)

    def example(self, language: LanguageEnum) -> str:
        """See :class:`JudgeReplyForm`."""
        number = "<number>" if language is LanguageEnum.EN else "<数字>"
        fields = "".join(f', "{key}": {number}' for key in self.required)
        return f'{{"reason": "{_WHY[language]}"{fields}}}'

    def verdict_of(self, found: Metadata) -> Reading:
        """See :class:`JudgeReplyForm`."""
        whole = super().verdict_of(found)
        if isinstance(whole, UnreadableReply):
            return whole
        numbers = [parse_number(found[key], NumberScale()) for key in self.required]
        if wrong := next((one for one in numbers if isinstance(one, UnreadableReply)), None):
            return wrong
        mean = sum(one / len(numbers) for one in numbers if not isinstance(one, UnreadableReply))
        return msgspec.structs.replace(whole, value=mean)
