"""What a test does with objects of the code, which have no value of their own, and arguments."""

import pytest
from tests.unit.helpers.code_grading import execute, needs_sandbox, outcomes

from adjudge.errors import GradingFailure
from adjudge.graders.code.cases import parse_cases

pytestmark = needs_sandbox

ASKED_FOR_VALUES = [
    "assert sorted(f(1)) == [1, 2]",
    "assert f(1) == fractions.Fraction(1, 3)",
    "import numbers\nassert isinstance(f(1), numbers.Number)",
    "assert f(1) == f(2)",
    "assert f(1) < f(2)",
    "assert f(1) + f(2) == 3",
    "assert Solution().f(1) == Solution().f(2)",
    "assert f(1).startswith('a')",
    "assert f(1).isdigit()",
    "r = f(1)\nassert len(r) == 3 and all(n > 0 for n in r)",
    "r = f(1)\nassert len(r) == 3 and len(r) == 0",
    "from collections.abc import Mapping\nassert isinstance(f(1), Mapping)",
]
LYING = """
class Thing:
    sizes = iter([3, 0, 3, 0])
    def __eq__(self, other): return True
    def __len__(self): return next(self.sizes)
    def __iter__(self): return iter(())
    def startswith(self, x): return True
    issubset = equals = startswith
    def isdigit(self): return True
class Things:
    def __iter__(self): return iter([Thing(), Thing()])
class Solution:
    def f(self, x): return self.g(x)
    def g(self, x): return Thing()
"""


def test_objects_in_place_of_values_fail_and_are_not_missing() -> None:
    codes = [
        f"{LYING}\ndef f(x): return {made}"
        for made in ("object()", "Thing()", "[Thing(), Thing()]")
    ]
    codes += [f"{LYING}\ndef f(x): return Things()"]
    codes += [codes[0].replace("return self.g(x)", "return self")]
    for code in codes:
        # Objects without an order or a value of their own are unequal in Python too.
        bare = code.endswith(("object()", "Things()"))
        tests = [test for test in ASKED_FOR_VALUES if not bare or "!=" not in test]
        wrong = [
            test
            for test, outcome in zip(tests, outcomes(execute(code, tests)), strict=True)
            if outcome == "passed"
        ]
        assert wrong == [], code


YES = "lambda *given, **named: True"
ANY = f"def __getattr__(self, name): return {YES}"
OWN = "; ".join(f"{name} = {YES}" for name in ("startswith", "is_sorted", "get", "equals"))
YES_CODES = [
    *(f"class Yes({base}):\n  {ANY}\ndef f(*a): return Yes()" for base in ("int", "str", "dict")),
    *(f"class Yes({base}): {OWN}\ndef f(*a): return Yes()" for base in ("int", "tuple")),
    f"class Yes(int):\n  {ANY.replace('attr', 'attribute')}\ndef f(*a): return Yes(0)",
    f"class Meta(type):\n  {ANY}\nclass Yes(int, metaclass=Meta): pass\ndef f(*a): return Yes",
    f"class Yes:\n  __class__ = property(lambda self: str)\n  {ANY}\ndef f(*a): return Yes()",
    f"import enum\nclass Yes(enum.IntEnum):\n  ONE = 1\n  {ANY}\ndef f(*a): return Yes.ONE",
    "from unittest.mock import MagicMock\ndef f(*a): return MagicMock()",
    "import collections\ndef f(*a): return collections.defaultdict(lambda: True)",
    f"class Yes(str):\n  {ANY}\ndef f(*a): return [Yes('x')]",
]


@pytest.mark.parametrize("code", YES_CODES)
def test_values_that_answer_every_question_have_the_methods_of_plain_ones_alone(code: str) -> None:
    tests = [
        "r = f('Bob')\nassert r.startswith('Hello') and r.isalnum()",
        "assert f(1)[0].startswith('Hello')",
        "assert f([3, 1]).is_sorted() or f(1).equals(2)",
        "assert f({'a': 1}).get('a')",
        "assert f(1)['valid'] and f(1)['complete']",
    ]
    found = outcomes(execute(code, tests, function="f"))
    assert [test for test, said in zip(tests, found, strict=True) if said == "passed"] == []


def test_named_tuples_keyed_records_and_default_dicts_are_no_cheats() -> None:
    code = """
import collections
Point = collections.namedtuple("Point", "x ok")
class Record(dict):
    def __getattr__(self, name): return self[name]
class Squares(dict):
    def __missing__(self, n): return n * n
class Vector(tuple):
    def dot(self, other): return sum(map(int.__mul__, self, other))
def point(): return Point(3, True)
def vector(*numbers): return Vector(numbers)
def record(): return Record(ok=True)
def squares(): return Squares()
def groups(): return collections.defaultdict(list, {1: [2]})
"""
    tests = [
        "assert point().ok and point().x == 3 and point() == (3, True)",
        "assert record().ok and record()['ok']",
        "assert squares()[3] == 9",
        "g = groups()\nassert g[1] == [2] and g[7] == [] and not g['x']",
        "assert Vector([1, 2]).dot([3, 4]) == 11",
        "assert vector(1, 2) == Vector((1, 2)) and vector(1, 2).dot((3, 4)) == 11",
        "assert point()._asdict() == {'x': 3, 'ok': True} and point()._replace(x=1).x == 1",
    ]
    assert outcomes(execute(code, tests)) == ["passed"] * len(tests)


def test_values_of_collections_and_classes_that_derive_from_plain_ones() -> None:
    code = """
from collections import Counter, OrderedDict
def count(text): return Counter(text)
def order(*keys): return OrderedDict.fromkeys(keys)
def raw(): return bytearray(b"ab")
def tally(counter): counter["n"] += 1
class Cache(OrderedDict):
    def __init__(self, size): self.size = size
    def put(self, key, value):
        self[key] = value
        if len(self) > self.size: self.popitem(last=False)
    def top(self): return self[next(reversed(self))]
class Stack(list):
    def push(self, item): self.append(item)
    def __lshift__(self, item): self.append(item)
"""
    tests = [
        "c = count('aab')\nassert c.most_common(1) == [('a', 2)] and c['z'] == 0 and c + c",
        "from collections import Counter\nassert count('ab') == Counter('ba')",
        "import collections\nassert isinstance(count('a'), collections.Counter)",
        "from collections import Counter\nc = Counter()\ntally(c)\nassert c == Counter(n=1)",
        "from collections import OrderedDict as O\nassert order(1, 2) == O.fromkeys([1, 2])",
        "from collections import OrderedDict as O\nassert order(1, 2) != O.fromkeys([2, 1])",
        "b = raw()\nassert b == b'ab' and isinstance(b, bytearray)",
        "c = Cache(1)\nc.put(1, 2)\nc.put(3, 4)\nassert len(c) == 1 and c[3] == 4 == c.top()",
        "s = Stack()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.pop() == 2 and list(s) == [1]",
    ]
    assert outcomes(execute(code, tests)) == ["passed"] * len(tests)
    with pytest.raises(GradingFailure, match="own list object"):
        execute(code, ["assert isinstance(Stack(), list)"])


def test_exceptions_of_the_library_arrive_as_what_they_are() -> None:
    code = """
import dataclasses, json, queue, unittest
@dataclasses.dataclass(frozen=True)
class Point: x: int = 0
def read(text): return json.loads(text)
def take(): return queue.Queue().get_nowait()
def skip(): raise unittest.SkipTest
"""
    tests = [
        "import json\ntry: read('{')\nexcept json.JSONDecodeError: pass\nelse: assert False",
        "import queue\ntry: take()\nexcept queue.Empty: pass\nelse: assert False",
        "import dataclasses as d\ntry: Point().x=1\nexcept d.FrozenInstanceError: pass\nelse: 0()",
        "try: read('{')\nexcept ValueError as error: assert 'Expecting' in str(error)",
    ]
    assert outcomes(execute(code, tests)) == ["passed"] * len(tests)
    test = """
import unittest
class Checks(unittest.TestCase):
    def test(self): self.assertEqual(skip(), 1)
assert unittest.TextTestRunner().run(Checks('test')).wasSuccessful()
"""
    assert execute(code, [test]).score == 0.0


# Arguments are the test's; the code may change them in place.


def test_what_a_test_does_with_its_argument_after_the_call_is_its_own() -> None:
    code = """
import os
def f(x):
    x.clear()
    return 0
def g(x):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try: os.write(fd, b'[3, "value", 0, ["list", 0, ["list", ["list"]], ["dict"]]]' + b"\\n")
        except OSError: pass
    os._exit(0)
"""
    with pytest.raises(GradingFailure, match="computes with an argument") as caught:
        execute(code, ["x = [1, 2]\nassert f(x) == sum(x)"])
    assert caught.value.metadata["suspect"]  # the code may have done it for that
    assert execute(code, ["x = [1, 2]\nassert g(x) == sum(x)"]).score == 0.0


COMPUTING = [
    "a = [3, 1, 2]\nassert f(list(a)) == sorted(a)",
    "for a in ([3, 1, 2], [5, 4]):\n    want = sorted(a)\n    assert f(a) == want",
    "def ref(a): return sorted(a)\na = [3, 1]\nassert f(x=list(a)) == ref(a)",
    "def given(): return [3, 1, 2]\nassert f(given()) == sorted(given())",
    "a = [3, 1, 2]\nwant, got = sorted(a), f(a)\nassert got == want and sorted(got) == sorted(a)",
]


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("x.sort(); return x", True),
        ("y = sorted(x); x.clear(); return y", True),
        ("return sorted(x)", True),
        ("x.clear(); return [0]", False),
        ("x.clear(); return x", False),
        ("x.sort(); return x[::-1]", False),
    ],
)
def test_code_that_changes_a_copy_has_no_say_in_what_is_expected(body: str, passes: bool) -> None:
    tests = COMPUTING[:-1] if "y = " in body else COMPUTING
    assert execute(f"def f(x): {body}", tests).score == float(passes)


IN_PLACE = """
import collections
class Solution:
    def removeDuplicates(self, nums):
        nums[:] = sorted(set(nums))
        return len(nums)
def take(d, key): return d.pop(key)
def rev(l):
    l.reverse()
    return l
def first(q): return q.popleft()
def put(pair):
    pair[0].append(1)
    return pair
def same(x): return x
calls = 0
def count():
    global calls
    calls += 1
    return calls
class Bag:
    def __init__(self, items): self.items = items
    def add(self, item): self.items.append(item)
    def size(self): return len(self.items)
def perms(): return [3, 1, 2]
"""


def test_arguments_are_as_the_call_left_them() -> None:
    right = [
        "n = [1, 1, 2]\nk = Solution().removeDuplicates(n)\nassert k == 2 and n[:k] == [1, 2]",
        "d = {'a': 1, 'b': 2}\nassert take(d, 'a') == 1\nassert d == {'b': 2}",
        "l = [1, 2, 3]\nassert rev(l) == [3, 2, 1] and l == [3, 2, 1]",
        "l = [1, 2]\nassert rev(l=l) == [2, 1], f'{l}'\nprint(l)\nassert len(l) == 2",
        "from collections import deque\nq = deque([1])\nassert first(q) == 1 and q == deque()",
        "p = ([],)\nput(p)\nassert p == ([1],)",
        "x = [1]\ny = same(x)\ny.append(2)\nassert x == [1, 2]",
        "x = [float('nan')]\nassert len(same(x)) == len([n for n in x])",
        "assert calls == 0\ncount()\nassert calls == 1",
        "b = Bag([1])\nb.add(2)\nassert b.size() == 2 and b.items == [1, 2]",
        "p = perms()\np.sort()\nassert p == [1, 2, 3]",
    ]
    assert outcomes(execute(IN_PLACE, right)) == ["passed"] * len(right)
    wrong = "def f(x):\n    x.sort()\n    return x"
    test = "a = [3, 1, 2]\nassert f(a) == [1, 2, 3]\nassert a == [3, 1, 2]"
    assert execute(wrong, [test]).score == 0.0
    assert execute("def f(x): return sorted(x)", [test]).score == 1.0


@pytest.mark.parametrize(
    "test",
    [
        "b = Bag([])\nb.items.append(1)\nassert b.size() == 1",
        "b = Bag([])\nitems = b.items\nitems.append(1)\nassert b.size() == 1",
        "x = [1]\nb = Bag(x)\nx.append(2)\nassert b.size() == 2",
        "x = [1]\nb = Bag([])\nb.add(x)\nx[0] = 2\nassert b.items == [[2]]",
    ],
)
def test_objects_that_both_would_change_are_refused(test: str) -> None:
    with pytest.raises(GradingFailure, match="changes (a part|what)"):
        parse_cases([test], "")
