"""Plain values and errors as JSON trees: what passes between a candidate, its tests and a grader.

Shipped into the sandboxes as a part of their programs. So it needs the standard library only, and
little of it: ``json`` and ``typing`` import ``re``, which takes as long as the interpreter's start.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "CANDIDATE_FILE",
    "CASES_FILE",
    "FIXED_TYPES",
    "MAX_TEXT",
    "PLAIN_TYPES",
    "STANDARD_TYPES",
    "decode_error",
    "decode_tree",
    "dumps",
    "encode_error",
    "encode_tree",
    "loads",
    "update_value",
    "write_line",
]

CANDIDATE_FILE, CASES_FILE = "candidate.py", "cases.json"
"""The files of the two programs: the code to be judged, and the tests."""

MAX_TEXT = 300
"""Longest text of an error or a verdict."""

FIXED_TYPES: tuple[Any, ...] = (type(None), bool, int, float, complex, str, bytes, range)
PLAIN_TYPES: tuple[Any, ...] = (*FIXED_TYPES, list, tuple, dict, set, frozenset)

# Values of the standard library and what makes them anew; of naive times only.
STANDARD_TYPES: dict[str, Callable[[Any], list[Any] | None]] = {
    "builtins.bytearray": lambda value: [bytes(value)],
    "collections.Counter": lambda value: [dict(value)],
    "collections.OrderedDict": lambda value: [list(value.items())],
    "collections.deque": lambda value: [list(value), value.maxlen],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.datetime": lambda value: (
        None if value.tzinfo else [*value.timetuple()[:6], value.microsecond]
    ),
    "datetime.time": lambda value: (
        None if value.tzinfo else [value.hour, value.minute, value.second, value.microsecond]
    ),
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
}
_SCALARS = (type(None), bool, int, float, str)
_LONG_INT = 10_000
"""Bits. Python refuses to write very long integers in decimal; these travel in hexadecimal."""


def encode_tree(value: Any, as_json: bool = False, live: Callable[[Any], Any] | None = None) -> Any:  # noqa: PLR0911  (a kind each)
    """``value`` as a JSON tree that tells lists, tuples, sets, dicts and bytes apart.

    With ``as_json`` tuples and ranges are lists and keys become text, as JSON would have it.
    ``live`` gives the tree of every value, unless its type is exactly one of ``PLAIN_TYPES`` or
    a value type of the standard library such as ``Decimal``, and dicts keep their order; without
    it the trees of equal values are equal but for numbers, and other types raise ``TypeError``.
    Very deep values raise ``RecursionError``.

    >>> encode_tree((1, {"b": None}))
    ['tuple', 1, ['dict', ['b', None]]]
    """
    if live is not None:
        if type(value) not in PLAIN_TYPES:
            name = f"{type(value).__module__}.{type(value).__name__}"
            parts = STANDARD_TYPES[name](value) if name in STANDARD_TYPES else None
            return live(value) if parts is None else ["new", name, encode_tree(parts, False, live)]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
    if type(value) is int and value.bit_length() > _LONG_INT:
        return ["int", hex(value)]
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, range) and as_json:
        value = list(value)
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) and not as_json else "list"
        return [kind, *[encode_tree(item, as_json, live) for item in value]]
    if isinstance(value, dict):
        pairs = [
            [
                _key(key) if as_json else encode_tree(key, False, live),
                encode_tree(item, as_json, live),
            ]
            for key, item in value.items()
        ]
        return ["dict", *(pairs if live else sorted(pairs, key=lambda pair: dumps(pair[0])))]
    if isinstance(value, set | frozenset) and not as_json:
        kind = "frozenset" if live and isinstance(value, frozenset) else "set"
        return [kind, *sorted([encode_tree(item, False, live) for item in value], key=dumps)]
    if isinstance(value, bytes | bytearray) and not as_json:
        return ["bytes", value.hex()]
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, _SCALARS):
        return dumps(key)
    raise TypeError(f"a key of type {type(key).__name__} cannot be compared")


def decode_tree(tree: Any, live: Callable[..., Any] | None = None) -> Any:  # noqa: PLR0911  (a kind each)
    """The value of a tree, built anew from built-in types only.

    ``live`` is called with the parts of what is not plain. Raises ``ValueError``, ``TypeError`` or
    ``RecursionError`` for what :func:`encode_tree` does not write.

    >>> decode_tree(["tuple", 1, ["dict", ["b", None]]])
    (1, {'b': None})
    """
    if isinstance(tree, _SCALARS):
        return tree
    if not isinstance(tree, list):
        raise ValueError("a tree is made of lists")  # noqa: TRY004  (hostile, not mistyped)
    kind, *items = tree
    if kind == "dict":
        return {decode_tree(key, live): decode_tree(value, live) for key, value in items}
    if kind in ("list", "tuple", "set", "frozenset"):
        values = [decode_tree(item, live) for item in items]
        build = {"tuple": tuple, "set": set, "frozenset": frozenset}.get(kind)
        return build(values) if build else values
    if kind in ("int", "bytes"):
        (digits,) = items
        return int(digits, 16) if kind == "int" else bytes.fromhex(digits)
    if kind == "complex":
        return complex(*items)
    if kind == "range":
        return range(*items)
    if kind == "new":
        name, parts = items
        if name not in STANDARD_TYPES:
            raise ValueError("no value of the standard library")
        module, _, kind = name.partition(".")
        return getattr(__import__(module), kind)(*decode_tree(parts, live))
    if live is None:
        raise ValueError("a value that is not plain")
    return live(*tree)


def _codec() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """JSON's writer and reader, without importing ``json`` where that is possible."""
    try:
        import _json  # noqa: PLC0415

        class Settings:
            strict, object_hook, object_pairs_hook = True, None, None
            parse_float, parse_int, parse_constant = float, int, float

        scan = _json.make_scanner(Settings)  # type: ignore[arg-type]
        write = _json.make_encoder(
            None, repr, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True
        )
        if scan("[-1.5, NaN]", 0)[1] == 11 and "".join(write(["é"], 0)) == '["\\u00e9"]':
            return lambda tree: "".join(write(tree, 0)), lambda text: _all_of(text, *scan(text, 0))
    except (ImportError, AttributeError, TypeError):
        pass
    import json  # noqa: PLC0415

    return json.dumps, json.loads


def _all_of(text: str, tree: Any, end: int) -> Any:
    if end != len(text):
        raise ValueError("there is more than one tree")
    return tree


dumps, loads = _codec()


def write_line(channel: int, tree: Any, write: Callable[..., int] = os.write) -> None:
    """Put a tree on a line of its own; raises ``ValueError`` or ``RecursionError`` before any."""
    rest = memoryview(dumps(tree).encode() + b"\n")
    while rest:
        rest = rest[write(channel, rest) :]


def encode_error(error: BaseException, live: Callable[[Any], Any]) -> list[Any]:
    """``"error"``, its text, the names of its classes and the tree of its arguments."""
    kinds = type(error).__mro__
    try:
        arguments = encode_tree(list(error.args), False, live)
    except BaseException:  # noqa: BLE001  (an argument that cannot be read leaves the text)
        arguments = ["list", str(error)]
    text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
    modules = [f"{kind.__module__}." for kind in kinds]
    names = [
        kind.__name__ if module == "builtins." else f"{module}{kind.__name__}"
        for module, kind in zip(modules, kinds, strict=True)
    ]
    return ["error", text, names, arguments]


_EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def decode_error(text: str, names: Any, arguments: Any) -> BaseException:
    """The nearest exception of Python or its library to the one that the candidate raised."""
    for name in names:
        kind = _EXCEPTIONS.get(name)
        try:
            if kind is not None:
                return kind(*arguments)
            if theirs := _library_exception(name):
                # Without __init__, which may take more than error.args has.
                return theirs.__new__(theirs, *arguments)
        except Exception:  # noqa: BLE001, S112  (some take other arguments than these)
            continue
    return RuntimeError(str(text))


def _library_exception(name: str) -> type[Exception] | None:
    """The class of a module that the test has imported; what it can catch is there.

    Not of ``unittest``, which takes ``SkipTest`` for no failure.
    """
    module, _, name = name.rpartition(".")
    package = module.partition(".")[0].removeprefix("_")
    if package not in sys.stdlib_module_names or package == "unittest":
        return None
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


_CHANGEABLE = frozenset(
    {"Counter", "OrderedDict", "bytearray", "deque", "dict", "list", "set", "tuple"}
)


def update_value(old: Any, new: Any) -> None:
    """Give a list, dict, set or deque of the test what a call left in it."""
    kind = type(old).__name__
    if kind in _CHANGEABLE and type(old) is not type(new):
        raise TypeError("an argument has another type")
    if kind in ("list", "bytearray"):
        old[:] = new
    elif kind in ("dict", "set", "Counter", "OrderedDict"):
        old.clear()
        old.update(new)
    elif kind == "deque":
        old.clear()
        old.extend(new)
    elif kind == "tuple":
        for one, other in zip(old, new, strict=True):
            update_value(one, other)
