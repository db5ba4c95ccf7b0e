"""The sandbox's side of code execution: calls a candidate, reports what it produced.

Shipped into the sandbox as source and run there with nothing but the standard library; outside it
only :func:`encode` is used. It never sees an expected value. Standard input is a JSON object
``{"cases": [...]}``; each case has an ``index`` and one of

- ``function`` with ``args``, ``kwargs``, ``as``: what the call returned, as ``json`` or ``text``;
- ``lefts``: the values of these expressions, with the candidate's names;
- ``test`` with ``secret``: statements that raise when the candidate is wrong.

Per case one line ``[index, "value", tree]``, ``[index, "error", text]`` or ``[index, "passed",
secret]`` goes to standard output, which the candidate's own prints do not reach. Every case starts
from a fresh module.
"""

import builtins
import json
import os
import sys
import types
from typing import Any

__all__ = ["encode"]

CANDIDATE = "candidate.py"
_MAX_TEXT = 300


def encode(value: Any, as_json: bool = False) -> Any:
    """``value`` as a JSON tree that tells lists, tuples, sets, dicts and bytes apart.

    With ``as_json`` a tuple is a list and keys become text, as JSON would have it. Raises
    ``TypeError`` for values of other types, ``RecursionError`` for very deep ones.

    >>> encode((1, {"b": None}))
    ['tuple', 1, ['dict', ['b', None]]]
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) and not as_json else "list"
        return [kind, *[encode(item, as_json) for item in value]]
    if isinstance(value, dict):
        pairs = [
            [_key(key) if as_json else encode(key), encode(item, as_json)]
            for key, item in value.items()
        ]
        return ["dict", *sorted(pairs, key=lambda pair: json.dumps(pair[0]))]
    if isinstance(value, set | frozenset) and not as_json:
        return ["set", *sorted(map(encode, value), key=json.dumps)]
    if isinstance(value, bytes | bytearray) and not as_json:
        return ["bytes", value.hex()]
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise TypeError(f"a key of type {type(key).__name__} cannot be compared")


def _fresh_module(code: types.CodeType) -> dict[str, Any]:
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses look their module up
    exec(code, module.__dict__)  # noqa: S102  (this is what the sandbox is for)
    return module.__dict__


def _target(names: dict[str, Any], function: str) -> Any:
    """The function of that name, or the method of a class ``Solution``."""
    if function not in names and hasattr(names.get("Solution"), function):
        return getattr(names["Solution"](), function)
    if function not in names:
        raise NameError(f"name {function!r} is not defined")
    return names[function]


def _produced(case: dict[str, Any], names: dict[str, Any]) -> Any:
    if "lefts" in case:
        return encode([eval(left, names) for left in case["lefts"]])  # noqa: S307
    value = _target(names, case["function"])(*case["args"], **case["kwargs"])
    return str(value) if case["as"] == "text" else encode(value, as_json=True)


def _line(*parts: Any) -> bytes:
    return json.dumps(parts).encode() + b"\n"


def _attempt(case: dict[str, Any], code: types.CodeType) -> bytes:
    """The line for one case. The secret is in no line but the one that says ``passed``."""
    index = case["index"]
    passed = _line(index, "passed", case.pop("secret", ""))
    try:
        names = _fresh_module(code)
        if "test" not in case:
            return _line(index, "value", _produced(case, names))
        exec(compile(case["test"], "test", "exec"), names)  # noqa: S102
    except BaseException as error:  # noqa: BLE001  (sys.exit included: whatever it did, it failed)
        return _line(index, "error", f"{type(error).__name__}: {error}"[:_MAX_TEXT])
    return passed


def main() -> None:
    """Answer the cases on standard input, one line each."""
    cases = json.load(sys.stdin)["cases"]
    channel, write = os.dup(1), os.write
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    with open(CANDIDATE, "rb") as file:  # noqa: PTH123  (pathlib would cost a tenth of the start)
        code = compile(file.read(), CANDIDATE, "exec")
    for case in cases:
        line = memoryview(_attempt(case, code))
        while line:
            line = line[write(channel, line) :]
    os._exit(0)  # threads that the candidate left behind must not hold the process


if __name__ == "__main__":
    main()
