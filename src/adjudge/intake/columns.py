"""What columns beside the texts mean, in every door: the reference, a reward, how a turn ended."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from adjudge.errors import Fields, Metadata, RolloutError
from adjudge.text import encode_json, printable
from adjudge.types import MISSING

REFERENCE_COLUMNS = (
    *("reference", "ground_truth", "reference_answer", "expected_answer", "gold", "answer"),
    *("solution", "target", "expected", "label", "expected_output", "expectedOutput"),
    *("correct_answer", "true_answer", "gold_answer", "gt", "ideal", "ideal_answer"),
    "targets",
)
"""The columns that may be the ``reference``: the first of them that a row has."""

_COLUMNS = frozenset(REFERENCE_COLUMNS)
_OTHERS = _COLUMNS - {"reference"}


_WORD_START, _NO_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])"), re.compile(r"[^\w.]+")


def usual_name(column: str) -> str:
    """A column's name as programs write it: ``model_answer`` for ``Model Answer?``."""
    return _NO_WORD.sub(" ", _WORD_START.sub(" ", str(column))).strip().replace(" ", "_").lower()


_TRUTH_OF_TABLES = ("True", "False", "TRUE", "FALSE")
"""Truth values as pandas and spreadsheets write them."""


def is_nothing(value: object) -> bool:
    """Whether a value counts as missing: null, a table's NaN, an empty text, a list of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_gap, value))
    return _is_gap(value)


def _is_gap(value: object) -> bool:
    if value is None or value is MISSING:
        return True
    if isinstance(value, str | list | tuple | dict):
        return not value
    return isinstance(value, float) and math.isnan(value)


def find_reference(columns: Fields) -> str | None:
    """The name of the column that is the row's reference.

    ``label`` counts only as text: as a number or a truth value it is a class or a verdict. A
    ``reference`` that is :data:`~adjudge.types.MISSING` was chosen by the user and is not there:
    no other column replaces it.
    """
    for name in REFERENCE_COLUMNS:
        if name in columns:
            value = columns[name]
            if value is MISSING:
                return None
            if not is_nothing(value) and not (name == "label" and _is_class(value)):
                return name
    return None


def _is_class(value: object) -> bool:
    return not isinstance(value, str) or value in _TRUTH_OF_TABLES


class ReferenceChoice:
    """Sets the ``reference`` of rows, and says once which column was passed over for which.

    ``chosen``: the columns that were the reference of a row.
    """

    def __init__(self, say: Callable[[str], None], remedy: str) -> None:
        self._say, self._remedy = say, remedy
        self._seen: set[tuple[str, str]] = set()
        self.chosen: dict[str, None] = {}

    def set(self, columns: Metadata, *, fixed: bool = False) -> None:
        """Put the row's reference into its ``columns``; ``fixed``: the user named its column."""
        if fixed or _OTHERS.isdisjoint(columns):  # as in most rows
            value = columns.get("reference", MISSING)
            if value is not MISSING and not (value.__class__ is str and value):
                # A column of rows of another task stays known.
                columns["reference"] = None if is_nothing(value) else value
            return
        present = [name for name in columns if name in _COLUMNS]
        chosen = find_reference(columns)
        if chosen is None:
            if "reference" in columns or any(name != "label" for name in present):
                columns["reference"] = None
            return
        value = columns[chosen]
        columns["reference"] = value
        self.chosen[chosen] = None
        for other in present:
            if other not in (chosen, "reference") and (chosen, other) not in self._seen:
                self._check_other(chosen, other, value, columns[other])

    def _check_other(self, chosen: str, other: str, value: object, passed: object) -> None:
        if is_nothing(passed) or (other == "label" and _is_class(passed)):
            return
        with suppress(ValueError, TypeError):  # an array of several has no one truth
            if passed == value:
                return
        self._seen.add((chosen, other))
        self._say(
            f"reference: is the column {chosen!r}; {other!r} is another, which is passed over. "
            f"{self._remedy.format(other)}"
        )


_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII)
_TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
_LONGEST_NUMBER = 400  # the largest float has 309 digits


def is_not_finite_text(value: object) -> bool:
    """Whether a cell of a table is NaN or Infinity, as programs write a number that is missing."""
    return isinstance(value, str) and _NOT_FINITE.fullmatch(value) is not None


def read_env_reward(value: object) -> float | None:
    """The environment's reward as a number, ``None`` where a row has none.

    A table's cell may be text: a number or a truth value. Raises :class:`RolloutError` for what is
    no number.
    """
    if value is None or (value.__class__ is float and math.isfinite(value)):
        return value  # as most are
    number: object = _read_text(value) if isinstance(value, str) else value
    with suppress(OverflowError, ValueError, TypeError):
        if hasattr(number, "__float__"):  # of any library
            found = float(number)
            if not math.isinf(found):
                return None if math.isnan(found) else found
    raise RolloutError(f"'env_reward' must be a finite number, got {describe_value(value)}")


def _read_text(value: str) -> float | None:
    """The number that a text is, NaN for Infinity, too; ``None`` for another text."""
    if len(value) > _LONGEST_NUMBER:
        return None
    text = value.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    return math.nan if _NOT_FINITE.fullmatch(text) else _TRUTH.get(text)  # null in a JSON file, too


def is_reward(value: object) -> bool:
    """Whether a value can be a reward: null, a number, a truth value, or the text of one."""
    if value is None or value.__class__ is float or value.__class__ is int:
        return True
    if value.__class__ is str:
        return _read_text(value) is not None
    with suppress(RolloutError):
        read_env_reward(value)
        return True
    return False


_OWN_REWARDS = ("env_reward", "reward")
_SCORES = (
    *("score", "outcome", "success", "passed", "correct", "is_correct", "resolved"),
    *("is_resolved", "accuracy", "acc", "label"),
)
REWARD_COLUMNS = (*_OWN_REWARDS, *_SCORES)
"""The usual names of the environment's reward."""
_VERDICT = re.compile(
    "(^|_)correct(ness)?(_|$)|(^|_)(pass(ed)?|success(ful)?|solved|resolved|match)$|^follow(ed)?_"
)
"""Words in the names of truth values that say whether a response is right."""
_NUMBERS = (*_OWN_REWARDS, "score", "rewards", "scores")
"""Names of columns that hold numbers, so that an object, a list or another text is strange."""

_STATISTIC = re.compile(
    "(^|[^a-z])(std|mean|max|min|baseline|weight|scale|id|index|count)([^a-z]|$)"
)
"""Words in the names of what is said of rewards: ``reward_std``, ``mean_reward``."""


class RewardColumns(NamedTuple):
    """Where the reward of rows is.

    ``column`` has it, if one does. ``others`` may be meant in its place: columns, or places in the
    column. ``unread``: a column by the name of a reward that has ``value``, which is no number.
    ``beside``: numbers of ``reward`` stand beside ``env_reward``.
    """

    column: str | None = None
    others: tuple[str, ...] = ()
    unread: str | None = None
    value: str = ""
    beside: bool = False

    @property
    def sentence(self) -> str:
        """What is said of them to people; nothing where there was nothing to choose."""
        said, names = [], ", ".join(map(repr, self.others))[:300]
        if self.unread is not None:
            said.append(f"{self.unread!r} has a value that is no number (found {self.value})")
        if self.column is not None and self.others:
            said.append(f"the column {self.column!r} is taken, and {names} is passed over")
        elif self.others:
            said.append(f"no column is taken, since it may be {names}")
        if not said:
            return ""
        remedy = "Write a number there, or null"
        if self.column is not None and self.others:
            remedy = "Where another is meant, name it: -m env_reward=COLUMN"
        elif self.others:
            name = shlex.quote(printable(self.others[0]))
            such = ", such as" if len(self.others) > 1 else ":"
            remedy = f"Name the one to use{such} -m env_reward={name}"
        return f"reward: {'; '.join(said)}. {remedy}"


def find_reward(rows: Sequence[Fields], beside: Collection[str] | None = None) -> RewardColumns:
    """Which column of ``rows`` is the reward, whatever numbers are beside it.

    It is ``env_reward`` or ``reward``; else the one number with "reward" in its name; else the
    first of the usual names of scores; else the one truth value with such a word in its name.
    ``beside``: the rows are of a trainer's dump, where each number but these may be the reward of
    a function, so that one is the reward if it is alone.
    Where several may be the reward, none is.
    """
    values: dict[str, list[object]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None or beside is not None:  # a dump has null for a missing reward
                values.setdefault(name, []).append(value)
    names = {usual_name(name): name for name in reversed(values)}
    numbers = [
        name
        for low, name in reversed(names.items())
        if (any if "reward" in low or low == "score" else all)(map(is_reward, values[name]))
        and not (str(name).startswith("judge/") or ("reward" in low and _STATISTIC.search(low)))
    ]
    own = [names[low] for low in _OWN_REWARDS if low in names][:1]
    first, verdicts = [name for name in numbers if "reward" in name.lower()], list[str]()
    if beside is None:
        rest = [names[low] for low in _SCORES if names.get(low) in numbers]
        if "label" in names and not all(map(_is_truth, values[names["label"]])):
            rest = [name for name in rest if name != names["label"]]  # a number is a class
        verdicts = [n for low, n in names.items() if not rest and _is_verdict(low, values[n])]
        rest = rest or verdicts
    else:  # a text is data, though it may be a number
        rest = [one for one in numbers if one not in beside and not isinstance(values[one][0], str)]
        rest = [one for one in rest if one not in first]
    likely = own or first or rest
    if len(likely) == 1 or (beside is None and not first + verdicts):
        column = next((one for one in likely if one in numbers), None)
    else:
        column = None
    if column in own:  # what is named so beside it is a part
        first, rest = [], rest if beside is None else []
    others = [one for one in (*first, *rest) if column is None or _differ(rows, one, column)]
    strange = {
        name: next(value for value in values[name] if not is_reward(value))
        for name in (names[low] for low in _NUMBERS if low in names)
        if column in (None, name) and not all(map(is_reward, values[name]))
    }
    parts = [part for name, value in strange.items() for part in _list_parts(name, value)]
    unread = next(iter(strange.items()), (None, None))
    found = "" if unread[0] is None else describe_value(unread[1])
    has_both = "env_reward" in values and any(map(is_reward, values.get("reward", ())))
    return RewardColumns(column, (*parts, *others), unread[0], found, has_both)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value in _TRUTH_OF_TABLES)


def _is_verdict(name: str, values: Sequence[object]) -> bool:
    return _VERDICT.search(name) is not None and all(map(_is_truth, values))


def _list_parts(name: str, value: object) -> list[str]:
    """The places of the numbers in an object, or of the one number in a list."""
    parts = dict(value) if isinstance(value, Mapping) else {}
    if isinstance(value, list | tuple) and len(value) == 1:
        parts = {"0": value[0]}
    return [
        f"{name}.{key}"
        for key, part in parts.items()
        if part is not None and not isinstance(part, str) and is_reward(part)
    ]


def _differ(rows: Sequence[Fields], one: str, other: str) -> bool:
    """Whether two columns have different numbers in a row."""
    pairs = ((row.get(one), row.get(other)) for row in rows)
    return any(
        None not in pair and all(map(is_reward, pair)) and len({*map(read_env_reward, pair)}) > 1
        for pair in pairs
    )


def describe_value(value: object) -> str:
    """A value's type and beginning, for an error."""
    try:
        return f"{type(value).__name__}: {value!r:.60}"
    except (ValueError, RecursionError):  # an integer too long to print; too deep
        return type(value).__name__


def find_finish_reason(ids: Sequence[int], ends: Collection[int], limit: int | None) -> str | None:
    """``stop`` or ``length`` for a response of these tokens; ``None`` where nothing tells.

    ``ends``: all tokens that end a turn. ``limit``: how many tokens the run lets a response have;
    a shorter one ended by itself, perhaps at a text that stops.
    """
    if len(ids) == 0:
        return None
    if int(ids[-1]) in ends:
        return "stop"
    if limit is None:
        return None
    return "length" if len(ids) >= limit else "stop"


def encode_value(value: object) -> str:
    """``value`` as JSON; raises :class:`RolloutError` for what JSON cannot hold."""
    with suppress(TypeError, ValueError, RecursionError):
        try:
            return encode_json(value).decode()
        except OverflowError:  # an integer of more than 64 bits
            return json.dumps(value)
    raise RolloutError("a value is nested too deeply, or no JSON data")


def decode_value(value: object, where: str) -> object:
    """What a text of JSON holds, any other value as it is; raises :class:`RolloutError`."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise RolloutError(f"{where}: is text but not JSON: {error}") from None


def as_object(value: object) -> Fields:
    """``value`` if it is a JSON object, else an empty one."""
    return value if value and isinstance(value, dict | Mapping) else {}


def as_id(value: object) -> str | None:
    """A text or a whole number as the name of a task, a request or a call."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}" if abs(value) < 1 << 64 else None  # a longer one may not be printed
    return value if isinstance(value, str) and value else None


def first_of(values: object, keys: Sequence[str]) -> object:
    """The first of an object's ``keys`` that is there and not null."""
    given, one = as_object(values), None
    for key in keys:
        if (one := given.get(key)) is not None:
            break
    return one


def list_keys(value: Fields) -> str:
    """The keys of an object, for an error."""
    return printable(f"keys {', '.join(map(str, value))}")[:120]


_PLAIN_TYPES = {str, int, float, bool, type(None)}


def without_arrays(value: object) -> object:
    """A value with lists and Python's own numbers in place of the arrays of any library."""
    if hasattr(value, "tolist"):
        made: object = value.tolist()
        if getattr(getattr(value, "dtype", None), "hasobject", True) is False:
            return made  # an image has a million of numbers
        value = made
    if isinstance(value, list | tuple):
        if {*map(type, value)} <= _PLAIN_TYPES:
            return value if isinstance(value, list) else list(value)
        return [without_arrays(one) for one in value]
    if isinstance(value, dict) and not {*map(type, value.values())} <= _PLAIN_TYPES:
        return {name: without_arrays(one) for name, one in value.items()}
    return value
