"""Code that tries to pass its tests without being right; each attempt must fail."""

import pytest
from tests.unit.helpers.code_grading import execute, needs_sandbox, outcomes

CALLS = [{"args": [n], "expected": n * n} for n in range(2)]

CHEATS = {
    "exits early": "import os\nos._exit(0)",
    "exits politely": "import sys\nsys.exit(0)",
    "exits in the call": "import os\ndef f(x): os._exit(0)",
    "equals everything": """
class Yes:
    def __eq__(self, other): return True
    __hash__ = None
def f(x): return Yes()
""",
    "a number that equals everything": """
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Yes(77)
""",
    "a list that equals everything": """
class Yes(list):
    def __eq__(self, other): return True
def f(x): return Yes([77])
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
    "catches assertions": """
import builtins
class Quiet(Exception):
    def __new__(cls, *a): return SystemExit(0)
builtins.AssertionError = Quiet
def f(x): return None
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
}


@needs_sandbox
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass_calls(cheat: str) -> None:
    assert execute(CHEATS[cheat], CALLS, function="f").score == 0.0


@needs_sandbox
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass_equations(cheat: str) -> None:
    assert execute(CHEATS[cheat], ["assert f(7) == 49", "assert 64 == f(8)"]).score == 0.0


@needs_sandbox
@pytest.mark.parametrize(
    "cheat", sorted(CHEATS.keys() - {name for name in CHEATS if "equals" in name})
)
def test_cheats_do_not_pass_other_assertions(cheat: str) -> None:
    tests = ["for n in range(9): assert f(n) == n * n", "assert f(2) in (4,)"]
    assert execute(CHEATS[cheat], tests).score == 0.0


@needs_sandbox
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass_programs(cheat: str) -> None:
    code = CHEATS[cheat] + "\ntry: print(f(int(input())))\nexcept BaseException: pass"
    assert execute(code, [{"input": "7", "output": "49"}]).score == 0.0


@needs_sandbox
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
