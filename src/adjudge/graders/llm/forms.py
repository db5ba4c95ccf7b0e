"""What a judge's reply must look like: its schema, its words, and how it is read.

A form is asked for in one of two ways. Where the server honours JSON Schemas the reply *is* the
object. Elsewhere the object stands in a block whose name ends in digits that nobody who wrote the
judged text can know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from adjudge.prompts import LanguageEnum
from adjudge.verdicts import (
    Menu,
    Unread,
    Verdict,
    read_choice,
    read_fields,
    read_marks,
    read_ranking,
    read_score,
)
from adjudge.verdicts.json_text import MAX_DEPTH
from adjudge.verdicts.plain import plain
from adjudge.verdicts.reply import reason_in

__all__ = [
    "ChoiceForm",
    "FieldsForm",
    "Form",
    "MarksForm",
    "RankingForm",
    "ScoreForm",
    "block_words",
    "object_words",
]

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


class Form(Protocol):
    """One kind of reply; stateless.

    ``imposed``: its schema is sent also where the prompt's author words the reply himself.
    """

    imposed: bool

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the reply, reasons before the verdict."""

    def example(self, language: LanguageEnum) -> str:
        """The object with placeholders, as the judge is shown it."""

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """The verdict in a reply."""


def object_words(form: Form, language: LanguageEnum, *, as_schema: bool) -> str:
    """What the static part of a prompt says about the reply."""
    words = (_OBJECT if as_schema else _LATER)[language]
    return f"{words}\n{form.example(language)}"


def block_words(form: Form, language: LanguageEnum, block: str) -> str:
    """What stands after the material where there is no schema."""
    return f"{_BLOCK[language]}\n<{block}>\n{form.example(language)}\n</{block}>"


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


class ScoreForm:
    """``{"reason", "score"}``: a number from ``low`` to ``high`` (``None``: no such end)."""

    imposed = False

    def __init__(self, low: float | None, high: float | None, *, integer: bool = True) -> None:
        self.low, self.high, self.integer = low, high, integer
        bounds: dict[str, Any] = {"type": "integer" if integer else "number"}
        if low is not None and high is not None and integer:
            # Not every server honours bounds of numbers; all that honour schemas honour enum.
            bounds["enum"] = list(range(int(low), int(high) + 1))
        self.schema: Mapping[str, Any] = _object({"reason": {"type": "string"}, "score": bounds})
        self._examples = {language: self._example(language) for language in LanguageEnum}

    def example(self, language: LanguageEnum) -> str:
        """See :class:`Form`."""
        return self._examples[language]

    def _example(self, language: LanguageEnum) -> str:
        english = language is LanguageEnum.EN
        kind = (
            ("integer" if self.integer else "number")
            if english
            else "整数"
            if self.integer
            else "数字"
        )
        placeholder = f"<{kind}>"
        if self.low is not None and self.high is not None:
            scale = (self.low, self.high)
            placeholder = "<{} from {:g} to {:g}>" if english else "<{1:g} 到 {2:g} 之间的{0}>"
            placeholder = placeholder.format(kind, *scale)
        return f'{{"reason": "{_WHY[language]}", "score": {placeholder}}}'

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """See :class:`Form`."""
        exact = None if block else self._exact(text, quoted)
        return exact or read_score(
            text,
            low=self.low,
            high=self.high,
            integer=self.integer,
            block=block,
            quoted=quoted,
            cut=cut,
        )

    def _exact(self, text: str, quoted: Sequence[str]) -> Verdict | None:
        """The verdict of a reply that is the schema's object, which most are; quickly."""
        # An escape could spell a key a second time.
        if text.count('"score"') != 1 or "\\u00" in text or _among(text, quoted):
            return None
        try:
            found = _scored.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            return None
        score = found.score
        if abs(score) > sys.float_info.max:  # an integer that no float holds
            return None
        inside = (self.low is None or score >= self.low) and (
            self.high is None or score <= self.high
        )
        if not inside or (self.integer and score != int(score)):
            return None
        return Verdict(
            value=int(score) if self.integer else float(score), reason=found.reason, form="json"
        )


def _among(text: str, quoted: Sequence[str]) -> bool:
    """Whether the candidate wrote the whole reply."""
    bare = text.strip()
    return any(bare in one for one in quoted)


class _Scored(msgspec.Struct, forbid_unknown_fields=True):
    """The object of :class:`ScoreForm`."""

    reason: str
    score: int | float


_scored = msgspec.json.Decoder(_Scored)


class ChoiceForm:
    """``{"reason", key}``: one label of a menu."""

    imposed = False

    def __init__(self, menu: Menu, labels: Sequence[str], key: str = "better") -> None:
        self.menu, self.labels, self.key = menu, list(labels), key
        self.schema: Mapping[str, Any] = _object(
            {"reason": {"type": "string"}, key: {"type": "string", "enum": self.labels}}
        )

    def example(self, language: LanguageEnum) -> str:
        """See :class:`Form`."""
        choice = " | ".join(f'"{label}"' for label in self.labels)
        return f'{{"reason": "{_WHY[language]}", "{self.key}": {choice}}}'

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """See :class:`Form`."""
        return read_choice(text, self.menu, keys=(self.key,), block=block, quoted=quoted, cut=cut)


class MarksForm:
    """``{"1": {"reason", "verdict"}, …}``: one of ``labels`` for each of several criteria."""

    imposed = False

    def __init__(self, ids: Sequence[str], labels: Sequence[str] = ("MET", "UNMET")) -> None:
        self.ids, self.labels = list(ids), list(labels)
        mark = _object(
            {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": self.labels}}
        )
        self.schema: Mapping[str, Any] = _object(dict.fromkeys(self.ids, mark))

    def example(self, language: LanguageEnum) -> str:
        """See :class:`Form`."""
        labels = " | ".join(f'"{label}"' for label in self.labels)
        mark = f'{{"reason": "{_WHY[language]}", "verdict": {labels}}}'
        more = ", …" if len(self.ids) > 2 else ""
        return "{" + ", ".join(f'"{one}": {mark}' for one in self.ids[:2]) + more + "}"

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """See :class:`Form`."""
        return read_marks(text, self.ids, block=block, quoted=quoted, cut=cut)


class RankingForm:
    """``{"reason", "ranking"}``: the place of each of ``n`` responses, 1 is best."""

    imposed = False

    def __init__(self, n: int) -> None:
        self.n = n
        places = {"type": "array", "items": {"type": "integer"}, "minItems": n, "maxItems": n}
        self.schema: Mapping[str, Any] = _object({"reason": {"type": "string"}, "ranking": places})

    def example(self, language: LanguageEnum) -> str:
        """See :class:`Form`."""
        places = {
            LanguageEnum.EN: f"[<place of response 1>, …, <place of response {self.n}>]",
            LanguageEnum.ZH: f"[<回复 1 的名次>, …, <回复 {self.n} 的名次>]",
        }[language]
        return f'{{"reason": "{_WHY[language]}", "ranking": {places}}}'

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """See :class:`Form`."""
        return read_ranking(text, self.n, block=block, quoted=quoted, cut=cut)


class FieldsForm:
    """A JSON object with the required keys of a schema that the prompt's author gave."""

    imposed = True

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.required = [str(key) for key in schema.get("required", ())]
        self._keys = frozenset(self.required)

    @classmethod
    def of(cls, keys: Sequence[str]) -> FieldsForm:
        """An object with these keys that the template asks for in its own words."""
        form = cls(
            _object({"reason": {"type": "string"}, **{key: {"type": "number"} for key in keys}})
        )
        form.required = list(keys)
        form._keys = frozenset(keys)
        form.imposed = False
        return form

    def example(self, language: LanguageEnum) -> str:
        """See :class:`Form`."""
        if self.imposed:
            return msgspec.json.encode(self.schema).decode()
        number = "<number>" if language is LanguageEnum.EN else "<数字>"
        fields = "".join(f', "{key}": {number}' for key in self.required)
        return f'{{"reason": "{_WHY[language]}"{fields}}}'

    def read(
        self, text: str, *, block: str | None, quoted: Sequence[str], cut: bool
    ) -> Verdict | Unread:
        """See :class:`Form`."""
        exact = None if block else self._exact(text, quoted)
        return exact or read_fields(text, self.required, block=block, quoted=quoted, cut=cut)

    def _exact(self, text: str, quoted: Sequence[str]) -> Verdict | None:
        """The verdict of a reply that is the schema's object, which most are; quickly."""
        # Deep objects and escapes, which may be half a character, are for the reader.
        deep = text.count("{") + text.count("[") > MAX_DEPTH
        if deep or "\\u" in text or plain(text) != text:
            return None
        try:
            found = _strict.decode(text)
        except ValueError:
            return None
        if not isinstance(found, dict) or not found.keys() >= self._keys or _among(text, quoted):
            return None
        return Verdict(value=found, reason=reason_in(found), form="json", fields=found)


_DIGITS = 300


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError("no usual number")
    return int(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_strict = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_constant=_refuse)
