"""The candidate's program: loads the code to be judged and answers what it is asked.

Runs in a sandbox, after the text of ``values``. It never sees an expected value, and what it
answers is only ever a value: a candidate that takes its whole process over can answer wrongly, no
more. Standard input holds requests, a line of JSON each: ``[number, operation, ...]``.

- ``call``: a list of ``[function, args, kwargs]`` and the form (``json``, ``exact``, ``text``) of
  the values, from a fresh module.
- ``test``: statements and a secret, from a fresh module. Only for tests that must run beside the
  code; the secret is in no reply but that of a test that did not raise.
- ``fresh``: a fresh module. ``do``: one of ``OPERATIONS`` with its arguments, for a test that runs
  in another sandbox. Objects that are not plain stay here; the reply holds their numbers.

Each gets one line: ``[number, "value", tree]``, with the arguments where a call has changed them,
or ``[number, "error", text, names of the classes, arguments]``. Replies go to the descriptor that
the command line names, else to standard output, which the candidate's own prints do not reach.
"""

from __future__ import annotations

import _operator
import builtins
import os
import sys

from adjudge.graders.code.values import (
    CANDIDATE_FILE,
    FIXED_TYPES,
    decode_tree,
    dumps,
    encode_error,
    encode_tree,
    loads,
    write_line,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

__all__ = ["serve_requests"]

_BASES: tuple[Any, ...] = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)

_names: dict[str, Any] = {}
_objects: list[Any] = []
_numbers: dict[int, int] = {}


def _fresh(code: CodeType) -> None:
    global _names  # noqa: PLW0603  (one candidate a process)
    module = type(sys)("candidate")
    sys.modules["candidate"] = module  # dataclasses look their module up
    _names = module.__dict__
    _objects.clear()
    _numbers.clear()
    exec(code, _names)  # noqa: S102  (this is what the sandbox is for)


def _target(name: str) -> Any:
    """The function of that name, or the method of a class ``Solution``."""
    if name in _names:
        return _names[name]
    if hasattr(_names.get("Solution"), name):
        return getattr(_names["Solution"](), name)
    raise NameError(f"name {name!r} is not defined")


def _called(calls: list[Any], form: str) -> Any:
    values = [
        _target(name)(*decode_tree(args), **decode_tree(kwargs)) for name, args, kwargs in calls
    ]
    if form == "text":
        return str(values[0])
    return encode_tree(values[0], as_json=True) if form == "json" else encode_tree(values)


def _live(value: Any) -> Any:
    """The tree of an object that stays here: its number, and its content where it is plain."""
    if id(value) not in _numbers:
        _numbers[id(value)] = len(_objects)
        _objects.append(value)
    number = _numbers[id(value)]
    for base in _BASES:
        if isinstance(value, base):
            content = str.__str__(value) if base is str else base(value)
            return ["plus", number, encode_tree(content, False, _live)]
    kind: Any = type(value)
    return ["live", number, kind.__name__, kind.__eq__ is object.__eq__]


def _object(kind: str, key: Any) -> Any:
    return getattr(builtins, key) if kind == "python" else _objects[key]


OPERATIONS: dict[str, Any] = {
    "name": _target,
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "has": lambda value, name: any(name in vars(base) for base in type(value).__mro__),
    "setattr": setattr,
    "delattr": delattr,
    "getitem": _operator.getitem,
    "setitem": _operator.setitem,
    "delitem": _operator.delitem,
    "neg": _operator.neg,
    **{
        kind.__name__: kind
        for kind in (len, iter, next, str, repr, bool, int, float, complex, abs, round, reversed)
    },
}


def _done(deed: str, tree: Any) -> list[Any]:
    arguments = decode_tree(tree, _object)
    if deed != "call":
        return [encode_tree(OPERATIONS[deed](*arguments), False, _live)]
    function, args, kwargs = arguments
    given = [one for one in (*args, *kwargs.values()) if type(one) not in FIXED_TYPES]
    before = dumps(encode_tree(arguments[1:], False, _live)) if given else ""
    value = function(*args, **kwargs)
    number = next((n for n, one in enumerate((*args, *kwargs.values())) if one is value), -1)
    returned = number >= 0 and type(value) in (list, dict, set)
    result = ["given", number] if returned else encode_tree(value, False, _live)
    after = encode_tree(arguments[1:], False, _live) if given else None
    return [result] if not given or dumps(after) == before else [result, after]


def _reply(code: CodeType, operation: str, *rest: Any) -> list[Any]:
    try:
        if operation == "do":
            return ["value", *_done(*rest)]
        _fresh(code)
        if operation == "call":
            return ["value", _called(*rest)]
        if operation == "test":
            test, secret = rest
            exec(compile(test, "test", "exec", dont_inherit=True), _names)  # noqa: S102
            return ["value", secret]
    except BaseException as error:  # noqa: BLE001  (sys.exit included: whatever it did, it failed)
        return encode_error(error, _live)
    return ["value", None]


def serve_requests() -> None:
    """Answer the requests on standard input until it ends."""
    requests = open(os.dup(0), "rb")  # noqa: PTH123, SIM115  (pathlib costs a tenth of the start)
    channel = int(sys.argv.pop()) if len(sys.argv) > 1 else os.dup(1)
    sys.set_int_max_str_digits(0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    with open(CANDIDATE_FILE, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), CANDIDATE_FILE, "exec", dont_inherit=True)
    for request in requests:
        number, *parts = loads(request.decode().strip())
        reply = _reply(code, *parts)
        try:
            write_line(channel, [number, *reply])
        except (ValueError, RecursionError) as error:  # integers too long, trees too deep
            write_line(channel, [number, *encode_error(error, _live)])
    os._exit(0)  # threads that the candidate left behind must not hold the process
