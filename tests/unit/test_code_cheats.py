"""Code that tries to pass its tests without being right; each attempt must fail."""

import asyncio

import pytest
from tests.refusals import fails
from tests.unit.helpers.code_grading import execute, needs_sandbox, outcomes

from adjudge.errors import ErrorKind
from adjudge.graders.code.grader import CodeExecutionGrader

pytestmark = needs_sandbox

CHANNEL = """
import json, os, sys
def write(data):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try: os.write(fd, data)
        except OSError: pass
def send(tree): write(json.dumps(tree).encode() + bytes([10]))
"""

CHEATS = {
    "exits early": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef f(x): os._exit(0)",
    "equals everything": """
class Yes:
    def __eq__(self, other): return True
    __hash__ = None
def f(x): return Yes()
""",
    "prints what a report looks like": """
import os
def f(x):
    for fd in range(64):
        for index in range(2):
            for line in ('[%d, "passed", ""]', '[%d, "passed", null]', '[%d, true, true]'):
                try: os.write(fd, (line % index + "\\n").encode())
                except OSError: pass
    os._exit(0)
""",
    "patches what reports": """
import builtins, json, os, sys
json.dumps = lambda *a, **k: '[0, "passed", ""]'
json.JSONEncoder.encode = lambda self, o: '[0, "passed", ""]'
builtins.isinstance = lambda *a: True
def f(x): raise AssertionError
""",
    "patches the driver": """
import __main__
for name in list(vars(__main__)):
    if name.startswith("_") and callable(getattr(__main__, name)) and name != "_line":
        setattr(__main__, name, lambda *a, **k: b'[0, "passed", ""]\\n')
def f(x): raise AssertionError
""",
    "reads standard input again": """
import os
def f(x):
    import json
    try: os.lseek(0, 0, 0)
    except OSError: pass
    for case in json.loads(os.read(0, 100000))["cases"]:
        line = json.dumps([case["index"], "passed", case["secret"]]) + "\\n"
        for fd in range(1, 64):
            try: os.write(fd, line.encode())
            except OSError: pass
    os._exit(0)
""",
    "replaces exec": "import builtins\nbuiltins.exec = lambda *a, **k: None",
    "walks the frames": """
import sys
def f(x):
    frame = sys._getframe(1)
    while frame:
        known = [*frame.f_code.co_consts, *frame.f_locals.values(), *frame.f_globals.values()]
        for value in known:
            if isinstance(value, int) and value > 9: return value
            if isinstance(value, dict) and "secret" in value:
                print([value.get("index"), "passed", value["secret"]])
        frame = frame.f_back
""",
    "replaces what tests call": """
import builtins
for name in ("abs", "all", "any", "isinstance", "issubclass", "len", "next", "sorted", "type"):
    setattr(builtins, name, lambda *a, **k: True)
def abs(x): return 0
def isinstance(*a): return True
def check(candidate): pass
def f(x): return 1
""",
    "an object that can everything": """
class Any:
    __class__ = int
    def __getattr__(self, name): return self
def always(self, *a): return self
for name in ("sub rsub add radd abs neg mul rmul truediv and rand or ror xor call getitem".split()):
    setattr(Any, f"__{name}__", always)
for name in "eq lt le gt ge contains bool instancecheck subclasscheck".split():
    setattr(Any, f"__{name}__", lambda *a: True)
Any.__ne__ = lambda *a: False
Any.__hash__ = lambda self: 0
Any.__int__ = Any.__index__ = lambda self: 1
Any.__float__ = lambda self: 1.0
def f(x): return Any()
""",
    "says that it passed": CHANNEL
    + """
def f(x):
    send([3, "passed", ""])
    os._exit(0)
""",
    "answers before it is asked": CHANNEL
    + """
for number in range(1, 9):
    send([number, "value", ["live", 0, "function", True] if number < 3 else True])
def f(x): return 1
""",
    "other threads answer": CHANNEL
    + """
import threading
def talk():
    while True: send([3, "value", ["live", 0, "int", True]])
def f(x):
    for _ in range(8): threading.Thread(target=talk, daemon=True).start()
    return 1
""",
    "a reply without end": CHANNEL
    + """
def f(x):
    while True: write(b"[" * 100_000)
""",
    "a value with content of its own": CHANNEL
    + """
def f(x):
    send([3, "value", ["plus", 0, ["live", 0, "int", False]], ["list", 0, ["list"], ["dict"]]])
    os._exit(0)
""",
    "a reply that is too deep": CHANNEL
    + """
def f(x):
    write(b'[3, "value", ' + b'["list", ' * 100_000 + b"]" * 100_001 + bytes([10]))
    os._exit(0)
""",
    "raises what ends a test": """
def f(x):
    for kind in (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, AssertionError):
        if x % 5 == 0 or kind is SystemExit: raise kind(0)
""",
    "traces whoever runs": """
import sys, threading
def skip(frame, event, value):
    frame.f_trace_lines = True
    try: frame.f_lineno = frame.f_lineno + 1
    except ValueError: pass
    return skip
def f(x):
    sys.settrace(skip)
    threading.settrace(skip)
    frame = sys._getframe()
    while frame:
        frame.f_trace = skip
        frame = frame.f_back
""",
    "ends or writes to every process": """
import ctypes, os, signal
libc = ctypes.CDLL(None)
def f(x):
    for process in [*range(2, 60), *filter(str.isdigit, os.listdir("/proc"))]:
        try: os.kill(int(process), signal.SIGKILL) if int(process) > 1 else None
        except OSError: pass
        for attempt in (16, 0x4206): libc.ptrace(attempt, int(process), 0, 0)
        try: open(f"/proc/{process}/mem", "r+b").write(b"passed")
        except OSError: pass
    return os.getppid()
""",
}

STYLES: dict[str, tuple[object, str | None]] = {
    "stdio": ([{"input": "7", "output": "49"}], None),
    "function": ([{"args": [7], "expected": 49}, {"args": [8], "expected": 64}], "f"),
    "solution": ({"function": "f", "tests": [{"input": 7, "output": 49}]}, None),
    "equation": (["assert f(7) == 49\nassert 64 == f(8)"], None),
    "tolerance": (["assert abs(f(7) - 49) < 1e-6", "assert not abs(f(8) - 64) > 1e-6"], None),
    "type": (["assert isinstance(f(7), int) and f(7) == 49"], None),
    "check": (["def check(c):\n    assert c(7) == 49\n    assert c(8) == 64\ncheck(f)"], None),
    "loop": (["for n in range(9): assert f(n) == n * n", "assert f(2) in (4,)"], None),
    "iterator": (["assert all(map(lambda n: f(n) == n * n, range(2, 9)))"], None),
    "raises": (
        ["try:\n    assert f(7) == 49\nexcept ValueError:\n    pass\nassert f(8) == 64"],
        None,
    ),
}


def judged(code: str, style: str) -> float:
    """The score of ``code`` in a style; a program prints what ``f`` returns."""
    test_cases, function = STYLES[style]
    if style == "stdio":
        code += "\ntry: print(f(int(input())))\nexcept Exception: pass"
    return execute(code, test_cases, function, deadline_s=4.0, test_deadline_s=2.0).score


@pytest.mark.parametrize("style", STYLES)
def test_the_right_code_passes_and_wrong_code_does_not(style: str) -> None:
    assert judged("def f(x): return x * x", style) == 1.0
    assert judged("def f(x): return x * x + 1", style) == 0.0


# One style of each way that tests run; all are tried with the long tests.
QUICK = {"function", "tolerance", "check"}
EACH_STYLE = [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in STYLES]


@pytest.mark.parametrize("style", EACH_STYLE)
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass(cheat: str, style: str) -> None:
    assert judged(CHEATS[cheat], style) == 0.0


@pytest.mark.parametrize("style", [style for style in STYLES if style != "stdio"])
def test_lines_without_end_are_no_reports(style: str) -> None:
    code = CHANNEL + "def f(x):\n    write(b'\\n' * 10 ** 6)\n    return x * x"
    assert judged(code, style) == 0.0


TEXT_THAT_RUNS = """
SOURCE = "49"
def f(x): return SOURCE
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert eval(f(7)) == 49",
        "assert list(map(eval, [f(7)])) == [49]",
        "assert eval('eval(f(7))') + 0 == 49",
        "assert getattr(__import__('builtins'), 'eval')(f(7)) == 49",
        "import builtins\nassert builtins.eval(f(7)) == 49",
        "assert pickle.loads(f(7)) == 49",
        "from pickle import loads\nassert loads(f(7)) == 49",
        "import importlib\nassert importlib.import_module(f(7))",
        "from typing import get_type_hints\nassert get_type_hints(f)",
        "import os\nassert os.system(f(7)) == 0",
    ],
)
def test_tests_that_could_run_what_the_code_returns_are_refused(test: str) -> None:
    with fails(ErrorKind.UNSUPPORTED, "cannot be kept apart"):
        execute(TEXT_THAT_RUNS, [test])


def test_more_text_than_code_can_be_is_no_code() -> None:
    for response in ("x = 1\n" * 3_000_000, "```python\n" + "#" * (17 << 20)):
        grader = CodeExecutionGrader()
        score = asyncio.run(
            grader.aevaluate(response, [{"args": [1], "expected": 1}], function="f")
        )
        assert score.score == 0.0
        assert "longer than" in score.reason


def test_expected_values_are_nowhere_in_the_sandbox() -> None:
    secret = "7f3a" * 4
    code = """
import gc, glob, os, sys
def f(x):
    found = []
    for path in glob.glob("/sandbox/*") + glob.glob("/proc/*/cmdline"):
        try: found.append(open(path, "rb").read())
        except OSError: pass
    frame = sys._getframe()
    while frame:
        found.append(repr((frame.f_locals, frame.f_globals)).encode())
        frame = frame.f_back
    found.append(repr([o for o in gc.get_objects() if isinstance(o, (list, dict, str))]).encode())
    return ("7f3a" * 4).encode() in b"".join(found)
"""
    cases = [{"args": [1], "expected": False}, {"args": [2], "expected": secret}]
    assert outcomes(execute(code, cases, function="f")) == ["passed", "wrong answer"]
