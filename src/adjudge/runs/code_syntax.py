"""A Python file as :mod:`.code_check` reads it: its syntax tree, and what an expression is.

Of the tree: who stands inside whom, and the text of a node. Of an expression: which parts its value
comes from, and whether it is a made-up number or a call of a judge.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator

from adjudge.errors import ConfigError
from adjudge.text import encode_exactly

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTION_NODES, ast.Lambda, ast.ClassDef)
_MAX_BYTES = 4_000_000
_MAX_TEXT = 2_000


class SourceFile:
    """A parsed file; ``where`` is its name in messages.

    Raises :class:`~adjudge.errors.ConfigError`, which names the line, where it is not Python.
    """

    def __init__(self, code: bytes, where: str = "<code>") -> None:
        text, self.tree = _parse(code, where)
        # Columns of the tree count bytes of UTF-8, whatever the file's own encoding is.
        self._lines = encode_exactly(text).splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._blocks: dict[ast.AST, tuple[list[ast.stmt], int]] = {}
        self._functions: dict[ast.AST, FunctionNode | None] = {self.tree: None}
        for node in ast.walk(self.tree):
            self.nodes.append(node)
            here = node if isinstance(node, FUNCTION_NODES) else self._functions[node]
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, name, None), list):
                    self._blocks.update({one: (block, i) for i, one in enumerate(block)})
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self._functions[child] = here

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What ``node`` stands in, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The function that ``node`` stands in."""
        return self._functions.get(node)

    def scope_names(self, node: ast.AST) -> list[str]:
        """The names of the functions and classes that ``node`` stands in, innermost first."""
        kinds = (*FUNCTION_NODES, ast.ClassDef)
        return [one.name for one in self.ancestors(node) if isinstance(one, kinds)]

    def text(self, node: ast.AST) -> str:
        """The node as it is written, on one line; the start of it where it is very long."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not 0 < first <= last <= len(self._lines):
            return ""
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if first == last:
            parts = [self._lines[first - 1][start:end]]
        else:
            between = self._lines[first : min(last - 1, first + 30)]
            parts = [self._lines[first - 1][start:], *between, self._lines[last - 1][:end]]
        joined = b" ".join(part[:_MAX_TEXT].strip() for part in parts)
        return " ".join(joined.decode("utf-8", "replace").split())

    def line(self, number: int) -> str:
        """Line ``number``, counted from 1; empty where there is none."""
        if not 0 < number <= len(self._lines):
            return ""
        return self._lines[number - 1].decode("utf-8", "replace")

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that ``node`` is or stands in."""
        if isinstance(node, ast.stmt):
            return node
        return next((one for one in self.ancestors(node) if isinstance(one, ast.stmt)), None)

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """The next few statements that follow ``statement`` in its block."""
        block, place = self._blocks.get(statement, ([], 0))
        return block[place + 1 : place + 9]


def nodes_inside(*roots: ast.AST) -> Iterator[ast.AST]:
    """The nodes of ``roots``, without what stands in functions and classes defined there."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _SCOPES) and node not in roots:
            continue
        waiting.extend(ast.iter_child_nodes(node))


def _parse(code: bytes, where: str) -> tuple[str, ast.Module]:
    if len(code) > _MAX_BYTES:
        raise ConfigError(f"{where}: must be at most {_MAX_BYTES:,} bytes (found {len(code):,})")
    line = 1
    try:
        text = code.decode(tokenize.detect_encoding(io.BytesIO(code).readline)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not our matter
            return text, ast.parse(text)
    except SyntaxError as error:
        line, reason = error.lineno or 1, error.msg
    except UnicodeDecodeError as error:
        line = code.count(b"\n", 0, error.start) + 1
        reason = f"not {error.encoding}. Save it as UTF-8."
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
    raise ConfigError(f"{where}:{line}: is not Python: {reason}") from None


def word_set(text: str) -> frozenset[str]:
    """The words of ``text`` as a set."""
    return frozenset(text.split())


_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DEEP = 8
_SCORE = word_set(
    "score scores reward rewards rating ratings grade grades verdict verdicts judgement "
    "judgements judgment judgments"
)
_NO_SCORE = word_set(
    "weight weights threshold count num index idx id ids name names key keys range ranges scale "
    "coef coefficient file path dir time url type types field column config cfg fn func cls model "
    "prompt prompts mode step steps lr tokens board std var top history is has use enable enabled "
    "flat latency attempt attempts cost usage retries seconds duration durations latencies usd "
    "args kwargs params options status limit counter counts"
)
_JUDGE = word_set(
    "judge judges judged judging judgement judgements judgment judgments grader graders "
    "grading verdict verdicts critic critics critique critiques reply replies llm "
    "evaluator evaluators openai anthropic genrm rm"
)
_ANSWER = word_set(
    "judged judging judgement judgements judgment judgments verdict verdicts critique critiques "
    "reply replies grading"
)
_TEXT_NAMES = word_set(
    "text output outputs response responses answer raw content result results said"
)
_SETTINGS = word_set(
    "args config cfg conf kwargs settings options opts params environ hit hits doc docs document "
    "documents chunk passage passages search retrieved node nodes weights label labels"
)
_ASKS = word_set(
    "client session requests httpx aiohttp chat achat acompletion litellm urlopen runner "
    "scorer aevaluate invoke ainvoke gpt claude gemini vllm pipeline api"
)
_INFERS, _MODELS = word_set("generate infer predict"), word_set("model engine")
_PREPARES = word_set(
    "prompt prompts template templates message messages format config build make load log "
    "logger tokenizer encode name class cls kind"
)
_CANDIDATE = word_set("sandbox exec execute interpreter subprocess sleep")
_PROGRAMS = word_set("code script scripts tests program")
_STAND_IN = word_set(
    "default defaults fallback neutral fail failed failure error timeout worst missing"
)
_MAKES = word_set("compute get make fn func function method manager results class")


def name_words(name: str | None) -> list[str]:
    """The words of a name: ``judgeScore_v2`` has ``judge``, ``score``, ``v``, ``2``."""
    return [word.lower() for word in _TOKEN.findall((name or "")[:200])]


def is_score_name(name: str | None) -> bool:
    """Whether this is the name of a score or reward, and not of a setting about one."""
    parts = name_words(name)
    return not _SCORE.isdisjoint(parts) and _NO_SCORE.isdisjoint(parts)


def is_non_score_name(name: str | None) -> bool:
    """Whether this is the name of a count, a duration, a setting: of a number that is no score."""
    return not _NO_SCORE.isdisjoint(name_words(name))


def is_judge_name(name: str | None) -> bool:
    """Whether this is the name of a judge, or of what one said."""
    parts = name_words(name)
    return not _JUDGE.isdisjoint(parts) and (_NO_SCORE | _PREPARES).isdisjoint(parts)


def is_answer_name(name: str | None) -> bool:
    """Whether this is the name of what a judge said: ``verdict``, ``judge_text``; not ``judge``."""
    return is_judge_name(name) and not (_ANSWER | _TEXT_NAMES).isdisjoint(name_words(name))


def is_stand_in_name(name: str | None) -> bool:
    """``fallback_reward``, ``default_score``: a score for want of one."""
    parts = set(name_words(name))
    return bool(parts & _STAND_IN and parts & _SCORE) and not parts & _MAKES


def is_setting(node: ast.AST | None) -> bool:
    """Whether this holds settings, search hits or constants, whose defaults are no failure."""
    name = last_name(node) or ""
    return not _SETTINGS.isdisjoint(name_words(name)) or name.isupper()


def last_name(node: ast.AST | None) -> str | None:
    """The last name of an expression: ``x`` of ``x``, ``b`` of ``a.b``, ``"c"`` of ``a["c"]``."""
    for _ in range(_DEEP):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                return name
            case ast.Constant(value=str(text)):
                return text
            case ast.Subscript(value=value, slice=place):
                keyed = isinstance(place, ast.Constant) and isinstance(place.value, str)
                node = place if keyed else value
            case ast.Starred(value=value) | ast.Await(value=value):
                node = value
            case _:
                return None
    return None


def called_name(node: ast.AST | None) -> str | None:
    """The last name of what is called: ``get`` of ``a.b.get(…)``; ``None`` of anything else."""
    return last_name(node.func) if isinstance(node, ast.Call) else None


def looks_like_judge_call(call: ast.Call, *, awaited: bool) -> bool:
    """Whether the call goes to a judge or to a server that could be one, by how it is written.

    ``client.chat.completions.create``, ``requests.post``, ``judge(…)``, ``llm.invoke``,
    ``reward_model(…)``, and whatever is awaited, save what runs the candidate's code.
    """
    names, node = [], call.func
    for _ in range(_DEEP):
        match node:
            case ast.Attribute(value=value, attr=name):
                names.append(name_words(name))
                node = value
            case ast.Call(func=value) | ast.Subscript(value=value):
                node = value
            case ast.Name(id=name):
                names.append(name_words(name))
                break
            case _:
                break
    if not names or not _PREPARES.isdisjoint(names[0]):
        return False
    candidate = "run" in names[0] and bool(_PROGRAMS.intersection(names[0]))
    if candidate or any(not _CANDIDATE.isdisjoint(parts) for parts in names):
        return False
    if awaited or names[0] in (["completion"], ["run", "until", "complete"]):
        return True
    if names in ([["run"], ["asyncio"]], [["get"], ["ray"]]):
        return True
    every = frozenset().union(*names)
    return bool(every & _INFERS and every & _MODELS) or any(
        not _ASKS.isdisjoint(parts)
        or (not _JUDGE.isdisjoint(parts) and _PREPARES.isdisjoint(parts))
        or {"reward", "model"} <= set(parts)
        for parts in names
    )


def is_literal_number(node: ast.AST | None) -> bool:
    """A literal number, ``-1.0`` and ``float("-inf")`` included; not a bool, not NaN."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        node = node.operand
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Constant(value=value)]):
            return "nan" not in str(value).lower()
    return False


def constant_parts(node: ast.AST) -> list[ast.AST]:  # noqa: PLR0911  (an answer per shape)
    """The parts that carry the score of a list, dict or object written out in place.

    ``[0.0] * n``, ``[0.0 for …]``, ``(0.0, info)``, ``{"score": 0.0}``, ``Result(score=0.0)``,
    ``tensor([0.0])``: where one of them is a made-up number, so is the whole.
    """
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [*parts[:9]]
        case ast.BinOp(left=left, right=right) if not any(
            isinstance(side, ast.Constant | ast.JoinedStr) and isinstance(last_name(side), str)
            for side in (left, right)
        ):
            return [left, right]
        case ast.ListComp(elt=part) | ast.DictComp(value=part):
            return [part]
        case ast.Dict():
            values = _score_values(node)
            bare = values == node.values and not all(map(is_literal_number, values))
            return [] if bare else values  # {"error": "…", "code": -3} is no score
        case ast.Call(keywords=keywords, args=arguments):
            name = called_name(node) or ""
            if name in ("zeros", "zeros_like", "ones", "ones_like"):
                return [ast.Constant(0.0)]
            if name in ("full", "full_like", "tensor", "array", "as_tensor"):
                return [*arguments[:2]]
            if name[:1].isupper():
                second = (
                    arguments[1:2] if is_score_name(name) or "result" in name_words(name) else []
                )
                return [*(word.value for word in keywords if is_score_name(word.arg)), *second]
    return []


def _score_values(node: ast.Dict) -> list[ast.AST]:
    """The values of the keys that name a score; all values where no key does."""
    scored = [
        value
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None and is_score_name(last_name(key))
    ]
    return [*(scored or node.values)]


def value_parts(node: ast.AST | None) -> Iterator[ast.AST]:
    """The expression and those inside it that its value comes from.

    What is only tested, compared, used as an index or shown in a text is none of them.
    """
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        yield one
        match one:
            case ast.IfExp(body=body, orelse=orelse):
                waiting += [body, orelse]
            case ast.Subscript(value=value):
                waiting.append(value)
            case ast.DictComp(key=key, value=value):
                waiting += [key, value]
            case ast.ListComp(elt=elt) | ast.SetComp(elt=elt) | ast.GeneratorExp(elt=elt):
                waiting.append(elt)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                read = (
                    arguments[1:] if called_name(one) in ("get", "pop") else arguments
                )  # no index
                waiting += [*read, *(word.value for word in keywords)]
                if isinstance(function, ast.Attribute):
                    waiting.append(function.value)
            case ast.Dict():
                waiting += _score_values(one)
            case ast.Compare() | ast.Lambda() | ast.JoinedStr():
                continue
            case _:
                waiting += ast.iter_child_nodes(one)
