"""What an expression is: which parts its value comes from, a made-up number, a call of a judge."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

__all__ = [
    "answer_name",
    "asks_by_name",
    "called",
    "judge_name",
    "literal_number",
    "made_up_parts",
    "name_of",
    "other_name",
    "score_name",
    "setting",
    "stand_in_name",
    "tokens",
    "value_parts",
    "words",
]


def words(text: str) -> frozenset[str]:
    """The words of ``text`` as a set."""
    return frozenset(text.split())


_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DEEP = 8
_SCORE = words(
    "score scores reward rewards rating ratings grade grades verdict verdicts judgement "
    "judgements judgment judgments"
)
_NO_SCORE = words(
    "weight weights threshold count num index idx id ids name names key keys range ranges "
    "scale coef coefficient file path dir time url type types field column config cfg fn "
    "func cls model prompt prompts mode step steps lr tokens board std var top history is has use "
    "enable enabled flat latency attempt attempts cost usage retries seconds duration "
    "durations latencies usd args kwargs params options "
    "status limit counter counts"
)
_JUDGE = words(
    "judge judges judged judging judgement judgements judgment judgments grader graders "
    "grading verdict verdicts critic critics critique critiques reply replies llm "
    "evaluator evaluators openai anthropic genrm rm"
)
_ANSWER = words(
    "judged judging judgement judgements judgment judgments verdict verdicts critique critiques "
    "reply replies grading"
)
_SAID = words("text output outputs response responses answer raw content result results said")
_SETTINGS = words(
    "args config cfg conf kwargs settings options opts params environ hit hits doc docs "
    "document documents chunk passage passages search retrieved node nodes weights label "
    "labels"
)
_ASKS = words(
    "client session requests httpx aiohttp chat achat acompletion litellm urlopen runner "
    "scorer aevaluate invoke ainvoke gpt claude gemini vllm pipeline api"
)
_INFERS, _MODELS = words("generate infer predict"), words("model engine")
_PREPARES = words(
    "prompt prompts template templates message messages format config build make load log "
    "logger tokenizer encode name class cls kind"
)
_CANDIDATE = words("sandbox exec execute interpreter subprocess sleep")
_PROGRAMS = words("code script scripts tests program")
_STAND_IN = words(
    "default defaults fallback neutral fail failed failure error timeout worst missing"
)
_MAKES = words("compute get make fn func function method manager results class")


def tokens(name: str | None) -> list[str]:
    """The words of a name: ``judgeScore_v2`` has ``judge``, ``score``, ``v``, ``2``."""
    return [word.lower() for word in _TOKEN.findall((name or "")[:200])]


def score_name(name: str | None) -> bool:
    """Whether this is the name of a score or reward, and not of a setting about one."""
    parts = tokens(name)
    return not _SCORE.isdisjoint(parts) and _NO_SCORE.isdisjoint(parts)


def other_name(name: str | None) -> bool:
    """Whether this is the name of a count, a duration, a setting: of a number that is no score."""
    return not _NO_SCORE.isdisjoint(tokens(name))


def judge_name(name: str | None) -> bool:
    """Whether this is the name of a judge, or of what one said."""
    parts = tokens(name)
    return not _JUDGE.isdisjoint(parts) and (_NO_SCORE | _PREPARES).isdisjoint(parts)


def answer_name(name: str | None) -> bool:
    """Whether this is the name of what a judge said: ``verdict``, ``judge_text``; not ``judge``."""
    return judge_name(name) and not (_ANSWER | _SAID).isdisjoint(tokens(name))


def stand_in_name(name: str | None) -> bool:
    """``fallback_reward``, ``default_score``: a score for want of one."""
    parts = set(tokens(name))
    return bool(parts & _STAND_IN and parts & _SCORE) and not parts & _MAKES


def setting(node: ast.AST | None) -> bool:
    """Whether this holds settings, search hits or constants, whose defaults are no failure."""
    name = name_of(node) or ""
    return not _SETTINGS.isdisjoint(tokens(name)) or name.isupper()


def name_of(node: ast.AST | None) -> str | None:
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


def called(node: ast.AST | None) -> str | None:
    """The last name of what is called: ``get`` of ``a.b.get(…)``; ``None`` of anything else."""
    return name_of(node.func) if isinstance(node, ast.Call) else None


def asks_by_name(call: ast.Call, *, awaited: bool) -> bool:
    """Whether the call goes to a judge or to a server that could be one, by how it is written.

    ``client.chat.completions.create``, ``requests.post``, ``judge(…)``, ``llm.invoke``,
    ``reward_model(…)``, and whatever is awaited, save what runs the candidate's code.
    """
    names, node = [], call.func
    for _ in range(_DEEP):
        match node:
            case ast.Attribute(value=value, attr=name):
                names.append(tokens(name))
                node = value
            case ast.Call(func=value) | ast.Subscript(value=value):
                node = value
            case ast.Name(id=name):
                names.append(tokens(name))
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


def literal_number(node: ast.AST | None) -> bool:
    """A literal number, ``-1.0`` and ``float("-inf")`` included; not a bool, not NaN."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        node = node.operand
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Constant(value=value)]):
            return "nan" not in str(value).lower()
    return False


def made_up_parts(node: ast.AST) -> list[ast.AST]:  # noqa: PLR0911  (an answer per shape)
    """The parts that carry the score of a list, dict or object written out in place.

    ``[0.0] * n``, ``[0.0 for …]``, ``(0.0, info)``, ``{"score": 0.0}``, ``Result(score=0.0)``,
    ``tensor([0.0])``: where one of them is a made-up number, so is the whole.
    """
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [*parts[:9]]
        case ast.BinOp(left=left, right=right) if not any(
            isinstance(side, ast.Constant | ast.JoinedStr) and isinstance(name_of(side), str)
            for side in (left, right)
        ):
            return [left, right]
        case ast.ListComp(elt=part) | ast.DictComp(value=part):
            return [part]
        case ast.Dict():
            values = _scores_of(node)
            bare = values == node.values and not all(map(literal_number, values))
            return [] if bare else values  # {"error": "…", "code": -3} is no score
        case ast.Call(keywords=keywords, args=arguments):
            name = called(node) or ""
            if name in ("zeros", "zeros_like", "ones", "ones_like"):
                return [ast.Constant(0.0)]
            if name in ("full", "full_like", "tensor", "array", "as_tensor"):
                return [*arguments[:2]]
            if name[:1].isupper():
                second = arguments[1:2] if score_name(name) or "result" in tokens(name) else []
                return [*(word.value for word in keywords if score_name(word.arg)), *second]
    return []


def _scores_of(node: ast.Dict) -> list[ast.AST]:
    """The values of the keys that name a score; all values where no key does."""
    scored = [
        value
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None and score_name(name_of(key))
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
                read = arguments[1:] if called(one) in ("get", "pop") else arguments  # no index
                waiting += [*read, *(word.value for word in keywords)]
                if isinstance(function, ast.Attribute):
                    waiting.append(function.value)
            case ast.Dict():
                waiting += _scores_of(one)
            case ast.Compare() | ast.Lambda() | ast.JoinedStr():
                continue
            case _:
                waiting += ast.iter_child_nodes(one)
