"""The tests' program: runs statements that judge a candidate which lives in another sandbox.

Runs in a sandbox of its own, after the text of ``values``. No line of the candidate runs
here. A name that a test does not define is asked for at the candidate: a plain value arrives as a
new built-in value, anything else as a :class:`Handle`. Its calls, attributes and items are asked
for in turn. What compares or combines is Python's own, on this side. So an object that equals
everything equals nothing here. A value of a class that derives from a plain one has the plain one's
methods alone, unless the test names its class, and an object that answers to every name to none.

The file ``cases.json`` holds a list of ``[number, statements, own, computes]``; ``own`` are the
names that are the candidate's although Python has them too, and ``computes`` says that the test
computes with what it gave the candidate. The candidate's replies come on standard input,
requests go to the descriptor that the command line names. Each case puts one line on standard
output: ``[number, "passed", ""]``, ``[number, "error", text]``, or ``[number, "refused", text]``
where the test needs more of the candidate than values. A candidate that ends, ends this program.
"""

from __future__ import annotations

import builtins
import os
import sys

from adjudge.graders.code.values import (
    CASES_FILE,
    FIXED_TYPES,
    MAX_TEXT,
    PLAIN_TYPES,
    STANDARD_TYPES,
    decode_error,
    decode_tree,
    encode_tree,
    loads,
    update_value,
    write_line,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, NoReturn

__all__ = ["run"]

_MAX_REPLY = 1 << 22

# Questions to a plain value whose answer is yes or no: an object would say yes to all.
_QUESTIONS = {"startswith", "endswith", "equals"}
_QUESTIONS |= {name for kind in (str, set, float) for name in vars(kind) if name.startswith("is")}
_LOOKS = frozenset({"len", "iter", "next", "has", "getitem", "bool"})


class Session:
    """The case that runs, and the ways to the candidate and to the reader of verdicts."""

    def __init__(self, replies: IO[bytes], requests: int, verdicts: int) -> None:
        self._replies, self._requests, self._verdicts = replies, requests, verdicts
        self.number = 0
        self._case = 0
        self._handles: dict[int, Handle] = {}
        self.sizes: dict[int, int] = {}  # of objects since the last deed that may change them
        self.classes: set[str] = set()  # that the test has named
        self.asked = False
        self.changed = False  # an argument, by a call that also returned a value
        self.keeps_arguments = False  # as they were before such a call

    def begin(self, case: int, keeps_arguments: bool) -> None:
        """A case starts, from a fresh module there and without the objects of another case."""
        self._case = case
        self.changed, self.keeps_arguments = False, keeps_arguments
        self._handles.clear()
        self.classes.clear()
        self.sizes.clear()
        self._exchange(["fresh"])
        self.asked = False

    def do(self, deed: str, *arguments: Any) -> Any:
        """What the candidate answers; raises what it raised."""
        if deed not in _LOOKS:
            self.sizes.clear()
        return self._exchange(
            ["do", deed, encode_tree(list(arguments), False, self._tree)], arguments
        )

    def report(self, kind: str, text: str = "") -> None:
        """The one line on the case."""
        write_line(self._verdicts, [self._case, kind, text[:MAX_TEXT]])

    def end(self, kind: str, text: str) -> NoReturn:
        """Report and end the program, whatever the test would catch."""
        self.report(kind, text)
        os._exit(0)

    def _exchange(self, request: list[Any], arguments: Any = ()) -> Any:
        self.asked = True
        self.number += 1
        try:
            write_line(self._requests, [self.number, *request])
        except BrokenPipeError:
            os._exit(1)
        line = self._replies.readline(_MAX_REPLY)
        if len(line) == _MAX_REPLY:
            self.end("error", f"returned more than {_MAX_REPLY >> 20} MB")
        if not line.endswith(b"\n"):
            os._exit(1)  # the candidate has ended, and who started it knows how
        try:
            raised, value = self.read(line, request, arguments)
        except Exception as error:  # noqa: BLE001  (these bytes are the candidate's)
            self.end("error", f"the code's reply is not valid ({type(error).__name__})")
        if raised is not None:
            raise raised
        return value

    def read(
        self, line: bytes, request: list[Any], arguments: Any
    ) -> tuple[BaseException | None, Any]:
        """What was raised, or the value. Raises some ``Exception`` for what is no reply."""
        number, kind, tree, *rest = loads(line[:-1].decode("ascii"))
        if number != self.number or kind not in ("value", "error"):
            raise ValueError("not the reply to this request")
        if kind == "error":
            names, given = rest
            # Python takes StopIteration for the end of whatever it iterates: all(map(...)) is true.
            if request[1:2] != ["next"]:
                names = [name for name in names if name != "StopIteration"]
            return decode_error(tree, names, decode_tree(given, self._live)), None
        given = [*arguments[1], *arguments[2].values()] if request[1:2] == ["call"] else []
        if rest:
            if all(type(one) in FIXED_TYPES for one in given):
                raise ValueError("nothing that a call could change")
            self.changed |= tree is not None
            args, kwargs = decode_tree(rest[0], self._live)
            if [*kwargs] != [*arguments[2]]:
                raise ValueError("other arguments")
            after = [*args, *kwargs.values()]
            if self.keeps_arguments and tree is not None:
                given = after
            for old, new in zip(given, after, strict=True):
                update_value(old, new)
        if type(tree) is list and tree[0] == "given":
            return None, given[tree[1]]
        return None, decode_tree(tree, self._live)

    def _tree(self, value: Any) -> Any:
        origin = getattr(value, "candidate_object", None)
        if not isinstance(origin, Origin):
            name = getattr(value, "__name__", "")
            if isinstance(name, str) and getattr(builtins, name, None) is value:
                return ["python", name]
            self.end("refused", f"gives the code an object of type {type(value).__name__}")
        return ["live", origin.number]

    def _live(self, kind: str, number: int, *rest: Any) -> Any:
        if type(number) is not int:
            raise TypeError("objects are numbered")
        if kind == "plus":
            (content,) = rest
            if number in self._handles:
                return self._handles[number]
            return _plus(decode_tree(content, self._live), number)
        name, by_identity = rest
        if kind != "live" or type(name) is not str:
            raise ValueError("an unknown kind of value")
        return self.handle(number, name, by_identity is True)

    def handle(self, number: int, kind: str, by_identity: bool) -> Handle:
        """The one handle of an object."""
        if number not in self._handles:
            self._handles[number] = Handle(Origin(number, kind, by_identity))
        return self._handles[number]


class Origin:
    """What is known of an object that stays with the candidate."""

    def __init__(self, number: int, kind: str = "", by_identity: bool = False) -> None:
        self.number, self.kind = number, kind
        self.by_identity = by_identity  # how it compares, as the candidate says
        self.is_class = False  # by its name in the test
        self.constructed = False  # by the test
        self.derives = False  # from a list, dict or set
        self.reached = False  # from an object that the test constructed
        self.names: set[str] = set()  # deeds in which it does not answer to just any name

    @property
    def known(self) -> bool:
        """Whether the test asked for an object of this class, and for no value."""
        return self.constructed or self.kind in _SESSION.classes

    @property
    def trusted(self) -> bool:
        """Whether its answers are what the test asks for."""
        return self.known or self.reached


class Handle:
    """An object of the candidate, seen from the test.

    It can be called, indexed, iterated, converted, and its attributes read and set; the candidate
    answers. It equals itself and nothing else, whatever the candidate says of that.
    """

    __slots__ = ("candidate_object",)

    def __init__(self, origin: Origin) -> None:
        object.__setattr__(self, "candidate_object", origin)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = _lead(self.candidate_object, _SESSION.do("call", self, list(args), kwargs))
        if self.candidate_object.is_class and (origin := _origin_of(made)):
            if isinstance(made, list | dict | set):
                # Its content changes there, with every method that the test calls.
                made = _SESSION.handle(origin.number, type(made).__name__, False)
                origin = made.candidate_object
                origin.derives = True
            origin.constructed = True
        return made

    def __getattr__(self, name: str) -> Any:
        origin = self.candidate_object
        if name in _QUESTIONS and not origin.trusted:
            _SESSION.end("error", f"asks for {name} of a value and got a {origin.kind} object")
        return _get_attribute(self, name)

    def __getitem__(self, key: Any) -> Any:
        return _get_named(self, "getitem", key)

    def __len__(self) -> int:
        size: int = _SESSION.do("len", self)
        if _SESSION.sizes.setdefault(self.candidate_object.number, size) != size:
            _SESSION.end("error", "the length of an object changes by itself")
        return size

    def __iter__(self) -> Any:
        if self.candidate_object.known or not _has(self, "__len__"):
            return _SESSION.do("iter", self)
        size, items = len(self), []
        for item in _SESSION.do("iter", self):
            items.append(item)
            if len(items) > size:
                break
        if len(items) != size:
            _SESSION.end("error", "an object has more or fewer items than its length")
        return iter(items)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other or other is None:
            return self is other
        both = (self, other) if isinstance(other, Handle) else ()
        if not both or not all(one.candidate_object.by_identity for one in both):
            self.check_operand(other)
        return False

    def __contains__(self, item: Any) -> bool:
        if self.candidate_object.known:
            self.refuse()
        return any(item is one or item == one for one in self)

    def check_operand(self, other: Any) -> None:
        """End the test where only the candidate could say what this and ``other`` make.

        Missing where the test asks for such objects; failed where it asks for plain values, and a
        function gives objects in their place.
        """
        origin = self.candidate_object
        if origin.known:
            self.refuse()
        if isinstance(other, Handle):
            their = other.candidate_object
            if their.known or their.reached or origin.reached:
                self.refuse()
            _SESSION.end("error", f"the code's {origin.kind} object is not a plain value")
        if not _is_value(type(other)):
            self.refuse()

    def refuse(self) -> NoReturn:
        _SESSION.end("refused", f"needs the code's own {self.candidate_object.kind} object")


def _origin_of(value: Any) -> Origin | None:
    origin = None if isinstance(value, type) else getattr(value, "candidate_object", None)
    return origin if isinstance(origin, Origin) else None


def _lead(origin: Origin, value: Any) -> Any:
    """``value``, which an object of the candidate led to."""
    found = _origin_of(value)
    of_class = origin.is_class and not isinstance(value, Handle)
    if found and (origin.constructed or origin.reached or of_class):
        found.reached = True
    return value


def _get_attribute(value: Any, name: str) -> Any:
    """An attribute that the candidate answers for."""
    origin = value.candidate_object
    found = _get_named(value, "getattr", name)
    is_method = isinstance(found, Handle) and not isinstance(value, Handle)
    if is_method and not (origin.trusted or name in ("_asdict", "_replace")):
        kind = _SESSION.do("getattr", value, "__class__")
        origin.constructed = _SESSION.do("getattr", kind, "__name__") in _SESSION.classes
        if not origin.constructed:
            _SESSION.end("error", f"asks for {name} of a value of a class of the code")
    return _lead(origin, found)


def _get_named(value: Any, deed: str, name: Any) -> Any:
    """What the candidate has under a name or key.

    The test fails where an object in place of a value answers as well to a name that nobody gave.
    """
    origin = value.candidate_object
    found = _SESSION.do(deed, value, name)
    if not origin.trusted and deed not in origin.names and (isinstance(found, Handle) or found):
        nobodys = "".join(chr(97 + byte % 26) for byte in os.urandom(9))
        try:
            answer = _SESSION.do(deed, value, nobodys)
        except Exception:  # noqa: BLE001  (what the code raises where it has no such name)
            answer = None
        if isinstance(answer, Handle) or answer:
            _SESSION.end("error", f"asks for {name!r} of an object that answers to every name")
        origin.names.add(deed)
    return found


def _asks(deed: str) -> Any:
    return lambda self, *arguments: _SESSION.do(deed, self, *arguments)


def _combines(self: Handle, other: Any, *_: Any) -> NoReturn:
    self.check_operand(other)
    raise TypeError(f"the code's {self.candidate_object.kind} object is not a plain value")


for _deed in (
    *("next", "reversed", "str", "repr", "bool", "int", "float", "complex"),
    *("abs", "round", "neg", "setitem", "delitem", "setattr", "delattr"),
):
    setattr(Handle, f"__{_deed}__", _asks(_deed))
for _deed in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    setattr(Handle, f"__{_deed}__", _combines)
    setattr(Handle, f"__r{_deed}__", _combines)
for _deed in ("lt", "le", "gt", "ge", "reduce_ex"):
    setattr(Handle, f"__{_deed}__", _combines)
for _deed in (
    *("instancecheck", "subclasscheck", "mro_entries", "await", "aiter"),
    *("enter", "exit", "aenter", "aexit"),
):
    setattr(Handle, f"__{_deed}__", lambda self, *_: self.refuse())


def _plus(content: Any, number: int) -> Any:
    """A value whose class is the candidate's but derives from a plain one.

    It is, compares and combines as the plain value; data that the plain value lacks is asked for,
    such as the fields of a named tuple.
    """
    kind = _SUBCLASSES.get(type(content))
    if kind is None:
        raise ValueError("no class derives from this")
    value = kind(content)
    value.__dict__["candidate_object"] = Origin(number)
    return value


def _subclass(base: type) -> Any:
    members: dict[str, Any] = {"__getattr__": _get_attribute}
    if base is dict:
        members["__missing__"] = Handle.__getitem__
    return type(base.__name__, (base,), members)


_SUBCLASSES = {
    base: _subclass(base) for base in PLAIN_TYPES if base not in (type(None), bool, range)
}


def _is_value(kind: Any) -> bool:
    """Whether values of the type pass between the two sides as what they are."""
    name = f"{kind.__module__}.{kind.__name__}"
    return kind in PLAIN_TYPES or kind in _SUBCLASSES.values() or name in STANDARD_TYPES


def _has(handle: Handle, name: str) -> bool:
    return _SESSION.do("has", handle, name) is True


def _hasattr(value: Any, name: str) -> bool:
    if not isinstance(value, Handle):
        return hasattr(value, name)
    try:
        value.__getattr__(name)
    except AttributeError:
        return False
    return True


def _callable(value: Any) -> bool:
    return _has(value, "__call__") if isinstance(value, Handle) else callable(value)


def _isinstance(value: Any, kinds: Any) -> bool:
    if not isinstance(value, Handle):
        return isinstance(value, kinds)
    return any(_is_a(value, kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _is_a(handle: Handle, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return _isinstance(handle, kind)
    if kind is object or not isinstance(kind, type):
        return isinstance(handle, kind)
    abstract = getattr(kind, "__abstractmethods__", ())
    if kind.__module__ == "collections.abc" and abstract:
        return all(_has(handle, name) for name in abstract)
    if handle.candidate_object.derives or not (_is_value(kind) or kind.__module__ == "numbers"):
        handle.refuse()
    return False


class Builtins(dict):  # type: ignore[type-arg]
    """Where Python looks for the names that a test does not define: its own, or the candidate's.

    Python's come first, and so do the modules of its library, so that a candidate cannot put
    another ``abs`` or ``math`` in their place. Names in ``own`` are the candidate's.
    """

    def __init__(self, own: list[str]) -> None:
        python = {**vars(builtins), "isinstance": _isinstance}
        python |= {"callable": _callable, "hasattr": _hasattr}
        super().__init__((name, value) for name, value in python.items() if name not in own)
        self._own = own

    def __missing__(self, name: str) -> Any:
        if name in sys.stdlib_module_names and name not in self._own:
            return __import__(name)
        try:
            value = _SESSION.do("name", name)
        except NameError:
            raise KeyError(name) from None
        # A Solution is only there for its functions.
        is_class = name[0].isupper() and name not in self._own and name != "Solution"
        if isinstance(value, Handle) and is_class:
            value.candidate_object.is_class = True
            _SESSION.classes.add(name)
        if isinstance(value, Handle) and value.candidate_object.kind in ("function", "type"):
            self[name] = value  # other globals may change from one call to the next
        return value


def _judge(number: int, test: str, own: list[str], computes: bool) -> None:
    """Report on a case.

    Where the code changed what the test computes with, the case runs once more with the arguments
    as they were. Where that makes a difference, the code has had a say in what is expected.
    """
    kind, text = _run_case(number, test, own, keeps_arguments=False)
    if computes and _SESSION.changed:
        again, _ = _run_case(number, test, own, keeps_arguments=True)
        if again != kind:
            _SESSION.end("refused", "computes with an argument that the code changed")
    _SESSION.report(kind, text)


def _run_case(number: int, test: str, own: list[str], *, keeps_arguments: bool) -> tuple[str, str]:
    loaded = False
    try:
        _SESSION.begin(number, keeps_arguments)
        loaded = True
        code = compile(test, "test", "exec", dont_inherit=True)
        exec(code, {"__name__": "test", "__builtins__": Builtins(own)})  # noqa: S102
    except BaseException as error:  # noqa: BLE001  (sys.exit included: a test must end)
        text = f"{type(error).__name__}: {error}"
        if loaded and not _SESSION.asked:
            _SESSION.end("refused", f"raised before it used the code: {text}")
        return "error", text
    if not _SESSION.asked:
        _SESSION.end("refused", "never uses the code")
    return "passed", ""


def run() -> None:
    """Judge the cases of the file, one after the other."""
    global _SESSION  # noqa: PLW0603
    with open(CASES_FILE, encoding="utf-8") as file:  # noqa: PTH123  (pathlib is slow to import)
        cases = loads(file.read())
    _SESSION = Session(open(os.dup(0), "rb"), int(sys.argv.pop()), os.dup(1))  # noqa: PTH123, SIM115
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for case in cases:
        _judge(*case)
    os._exit(0)


_SESSION: Session
