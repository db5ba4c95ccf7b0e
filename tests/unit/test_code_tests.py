"""Tests that run apart from the code: what they can do with it, and which are refused."""

import pytest
from tests.refusals import fails
from tests.unit.helpers.code_grading import execute, needs_sandbox, outcomes

from adjudge.errors import ErrorKind, GradingFailure

pytestmark = needs_sandbox

# Right code passes, whatever the test does with it.

SHAPES = """
import abc, dataclasses, datetime, decimal, enum

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

@dataclasses.dataclass
class Square(Shape):
    side: float
    def area(self): return self.side ** 2

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

class Node:
    def __init__(self, value, after=None): self.value, self.after = value, after

class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise IndexError("the stack is empty")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, index): return self.items[index]
    def __str__(self): return f"Stack{self.items}"

class Broken(ValueError): pass

LIMIT = 10

def other(colour): return Colour.BLUE if colour is Colour.RED else Colour.RED
def typed(x: int, y: "str" = "") -> float: return x
def annotations(): return [typed.__annotations__["x"] is int, typed.__annotations__["y"]]
def numbers():
    n = 0
    while True:
        yield n
        n += 1
def chain(*values):
    node = None
    for value in reversed(values): node = Node(value, node)
    return node
def order(values): values.sort()
def add(values, mapping, *, seen): mapping["n"] = len(values); seen.add(1)
def divide(a, b): return a / b
def fail(): raise Broken("no", 7)
def adder(n): return lambda m: n + m
def squares(n): return (i * i for i in range(n))
def huge(): return 7 ** 9000
def sum(a, b): return a - b
def copy(text): return text * 2
def price(text): return decimal.Decimal(text) * 2
def day(n): return datetime.date(2024, 1, 31) + datetime.timedelta(days=n)
def only(values, kind, key): return sorted((v for v in values if isinstance(v, kind)), key=key)
def noon(): return datetime.datetime(2024, 1, 31, 12)
class Solution:
    def twice(self, x): return 2 * x
    def chain(self): return chain(1, 2)
"""

RIGHT = """
assert abs(divide(1, 3) - 0.333) < 1e-2

for n in range(300): assert adder(n)(1) == n + 1

try:
    divide(1, 0)
    assert False
except ZeroDivisionError as error:
    assert 'division' in str(error)

try:
    fail()
except ValueError as error:
    assert error.args == ('no', 7)
else:
    assert False

import unittest
with unittest.TestCase().assertRaises(ValueError): fail()

s = Stack()
assert not s and str(s) == 'Stack[]'
s.push([2, 'x'])
assert len(s) == 1 and list(s) == s.items and s[0] == s.pop() == [2, 'x']

s = Stack()
try:
    s.pop()
except IndexError as error:
    assert 'empty' in str(error)
else:
    assert 0

s = Solution()
assert [s.twice(n) for n in range(3)] == [0, 2, 4]

node, found = chain(1, 2, 3), []
while node:
    found.append(node.value)
    node = node.after
assert found == [1, 2, 3]

node = Node(1, Node(2))
node.after.value = 5
assert node.after.value == 5 and node.after.after is None

values = [3, 1, 2]
assert order(values) is None
assert values == [1, 2, 3]

values, mapping, seen = [1], {}, set()
add(values, mapping, seen=seen)
assert (mapping, seen) == ({'n': 1}, {1})

import itertools
assert list(itertools.islice(numbers(), 3)) == [0, 1, 2]

assert list(squares(4)) == [0, 1, 4, 9] and 4 in squares(4) and sorted(squares(3)) == [0, 1, 4]

assert other(Colour.RED) == Colour.BLUE != Colour.RED and Colour.RED.name == 'RED'

assert Square(2.0).area() == 4.0 and Square(2).side == 2

try:
    Shape()
except TypeError: pass
else: assert False

assert LIMIT * 2 == 20 and divide(4, 2) in (2, 3) and divide(4, 2) is not None

from decimal import Decimal
assert price('1.25') == Decimal('2.50') == 2.5 and abs(price('1') - 2) < 1e-6
assert isinstance(price('1'), Decimal) and divide(Decimal(3), 2) == Decimal('1.5')

assert only([3, -1.5, 'a', -4], int, abs) == [3, -4] and len(only([1], int, key=abs)) == 1

from datetime import date, datetime, timedelta
assert day(1) == date(2024, 2, 1) and day(1) - day(0) == timedelta(1)
assert noon() == datetime(2024, 1, 31, 12) and noon().hour == 12

assert huge() == 7 ** 9000

assert annotations() == [True, 'str'] and len(annotations()) == 2

assert adder.__name__ == 'adder' and callable(adder) and hasattr(Stack, 'push')

assert math.floor(divide(7, 2)) == 3

class Checks:
    wanted = divide(4, 2)
    def run(self):
        assert divide(4, 2) == self.wanted == 2
Checks().run()

assert eval('divide(6, 3)') == 2 if divide(1, 1) else False

print('noise', divide(1, 1)); assert f'{divide(1, 1):.1f}' == '1.0'

for text in ('a', 'b'): assert copy(text) == text + text

assert chain(1).after is None and chain(1).after == None and chain(1) != None

assert type(divide(1, 2)) is float and isinstance(divide(1, 2), float)

import random
random.seed(3)
n = random.random()
assert divide(n, 1) == n

x = 1 + 2j
assert divide(x, 1) == x and divide(float('inf'), 1) > 1e308
""".strip().split("\n\n")


def test_right_code_passes_every_test_that_runs_apart() -> None:
    score = execute(SHAPES, RIGHT)
    failed = [(t, o) for t, o in zip(RIGHT, outcomes(score), strict=True) if o != "passed"]
    assert failed == []
    assert "trusted" not in score.metadata


def test_wrong_code_passes_none_of_them() -> None:
    assert execute("x = 1", RIGHT).score == 0.0


def test_python_and_its_library_come_before_the_code() -> None:
    code = """
def abs(x): return 0
class math:
    isclose = staticmethod(lambda *a: True)
def f(x): return 1
"""
    tests = ["assert abs(f(3) - 9) < 1", "assert math.isclose(f(3), 9) or f(3) > 2"]
    assert execute(code, tests).score == 0.0


def test_the_function_of_the_row_is_the_code_s_whatever_its_name() -> None:
    test = "for a, b in [(3, 1), (9, 2)]: assert sum(a, b) == a - b"
    assert execute(SHAPES, [test], function="sum").score == 1.0
    check = "def check(candidate):\n    assert candidate(3, 1) == 2"
    assert execute(SHAPES, [check], function="sum").score == 1.0
    assert execute(SHAPES, [check + "\ncheck(sum)"], function="sum").score == 1.0
    assert execute(SHAPES, ["assert sum(3, 1) == 2"]).score == 1.0
    assert execute("x = 1", ["assert len([1]) == 1"]).score == 0.0


def test_a_check_that_nobody_calls_is_called_with_the_function() -> None:
    check = "METADATA = {}\ndef check(candidate):\n    assert candidate(2) == 4"
    for n in (2, 3):
        score = execute(f"def f(x): return {n} * x", [{"test": check, "function": "f"}])
        assert score.score == float(n == 2)
    methods = "class Solution:\n    def f(self, x): return 2 * x"
    assert execute(methods, [{"test": check, "function": "f"}]).score == 1.0


def test_code_that_ends_or_hangs_fails_that_test_only() -> None:
    code = """
import ctypes, os, sys
def f(x):
    if x == 1: os._exit(3)
    if x == 2:
        while True: pass
    if x == 3: ctypes.string_at(0)
    if x == 4: sys.exit(0)
    if x == 5: return "x" * 10 ** 7
    return x
"""
    tests = [f"try:\n    assert f({n}) - {n} == 0\nexcept Exception: pass" for n in range(7)]
    score = execute(code, tests, test_deadline_s=1.0)
    assert outcomes(score) == [
        "passed",
        "ended with exit code 3: no message",
        "timed out after 1 s",
        "ended with exit code 139: no message",
        "SystemExit: 0",
        "returned more than 4 MB",
        "passed",
    ]


def test_code_that_does_not_load_fails() -> None:
    code = "import os\nos.write(2, b'hm')\nraise ValueError('late')"
    score = execute(code, ["assert f(1) > 0"])
    assert outcomes(score) == ["ValueError: late"]
    assert score.metadata["stderr"] == "hm"


# What cannot run apart is the row's fault.

REFUSED = {
    "assert 1 + 1 == 2": "no name of the code",
    "def test_f(): assert f(1)\nassert True": "never uses the code",
    "import no_such_module\nassert f(1) > 0": "before it used the code",
    "assert f(lambda x: x) > 0": "function of its own",
    "assert isinstance(f(1), Shape)": "class of the code",
    "class B(Shape): pass\nassert B()": "derives",
    "try: f(1)\nexcept Broken: pass": "exception that the code",
    "import unittest\nunittest.TestCase().assertRaises(Broken, f)": "exception that the code",
    "import asyncio\nassert asyncio.run(f(1)) == 1": "asyncio",
    "from unittest.mock import patch\nassert f(1) > 0": "unittest.mock",
    "import io, sys\nsys.stdout = io.StringIO()\nf(1)": "io",
    "open('a', 'w').write('x')\nassert f('a') > 0": "open",
    "assert np.allclose(f(1), 1.0)": "uses np",
    "assert Shape(1) + Shape(2) == Shape(3)": "Shape object",
    "x = [1]\nassert f(x) is not x": "the same object",
    "with f(1): pass": "own Shape object",
}
LIVE = """
class Shape:
    def __init__(self, n=0): self.n = n
    def __eq__(self, other): return self.n == other.n
    def __add__(self, other): return Shape(self.n + other.n)
    def __enter__(self): return self
    def __exit__(self, *a): return None
class Broken(Exception): pass
def f(x=0, key=None): return Shape()
"""


@pytest.mark.parametrize("test", REFUSED)
def test_tests_that_need_more_than_values_are_refused(test: str) -> None:
    with fails(ErrorKind.UNSUPPORTED, r"test case 2 .*untrusted_tests = 'allow'") as caught:
        execute(LIVE, ["assert f(1) != 1", test])
    assert REFUSED[test].split()[-1] in str(caught.value)


def test_a_failed_test_comes_before_one_that_turns_out_to_need_more() -> None:
    tests = ["assert f(1) + 0 == 2", "assert Shape(1) == Shape(1)"]
    assert execute(LIVE, tests, score="all").score == 0.0
    for early in ("all", "fraction"):
        with pytest.raises(GradingFailure, match="own Shape object"):
            execute(LIVE, tests[::-1] if early == "all" else tests, score=early)


def test_untrusted_tests_run_beside_the_code_and_are_marked() -> None:
    tests = [
        "assert Shape(1) + Shape(2) == Shape(3)",
        "assert isinstance(f(1), Shape)",
        "assert f(1) is not None",
        "assert Shape(1) == Shape(2)",
    ]
    score = execute(LIVE, tests, untrusted_tests="allow")
    assert outcomes(score) == ["passed", "passed", "passed", "AssertionError: "]
    assert score.metadata["trusted"] is False
    apart = execute(LIVE, tests[2:3], untrusted_tests="allow")
    assert "trusted" not in apart.metadata
