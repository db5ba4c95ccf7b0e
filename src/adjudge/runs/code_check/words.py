"""Which names speak of scores and judges."""

from __future__ import annotations

import ast
import re

__all__ = [
    "DEEP",
    "SCORE",
    "called",
    "identifier",
    "name_of",
    "score_name",
    "setting",
    "speaks_of_judge",
    "tokens",
    "words",
]


def words(text: str) -> frozenset[str]:
    """The words of ``text`` as a set."""
    return frozenset(text.split())


_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
SCORE = words(
    "score scores reward rewards rating ratings grade grades verdict verdicts judgement "
    "judgements judgment judgments"
)
_NO_SCORE = words(
    "weight weights threshold count num index idx id ids name names key keys range ranges "
    "scale coef coefficient file path dir time url type types field column config cfg fn "
    "func cls model prompt mode step steps lr tokens board std var top history is has use "
    "enable enabled flat"
)
_JUDGE = words(
    "judge judges judged judging judgement judgements judgment judgments grader graders "
    "grading verdict verdicts critic critics critique critiques reply replies llm "
    "evaluator evaluators openai anthropic genrm rm"
)
_SETTINGS = words(
    "args config cfg conf kwargs settings options opts params environ hit hits doc docs "
    "document documents chunk passage passages search retrieved node nodes weights label "
    "labels"
)
DEEP = 8


def tokens(name: str) -> list[str]:
    """The words of a name: ``judgeScore_v2`` has ``judge``, ``score``, ``v``, ``2``."""
    return [word.lower() for word in _TOKEN.findall(name[:200])]


def score_name(name: str | None) -> bool:
    """Whether this is the name of a score or reward, and not of a setting about one."""
    parts = tokens(name or "")
    return not SCORE.isdisjoint(parts) and _NO_SCORE.isdisjoint(parts)


def speaks_of_judge(name: str | None) -> bool:
    """Whether the name has a judge, a grader, a verdict or a reply in it."""
    return not _JUDGE.isdisjoint(tokens(name or ""))


def name_of(node: ast.AST | None) -> str | None:
    """The last name of an expression: ``x`` of ``x``, ``b`` of ``a.b``, ``"c"`` of ``a["c"]``."""
    for _ in range(DEEP):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                return name
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(
                    p.value
                    for p in parts
                    if isinstance(p, ast.Constant) and isinstance(p.value, str)
                )
            case ast.Subscript(value=value, slice=place):
                node = place if isinstance(place, ast.Constant | ast.JoinedStr) else value
                if isinstance(node, ast.Constant) and not isinstance(node.value, str):
                    node = value
            case ast.Starred(value=value) | ast.Await(value=value):
                node = value
            case _:
                return None
    return None


def identifier(name: str | None, otherwise: str) -> str:
    """``name`` where it can stand in code."""
    return name if name and name.isidentifier() else otherwise


def called(node: ast.AST | None) -> str | None:
    """The last name of what is called: ``get`` of ``a.b.get(…)``; ``None`` of anything else."""
    return name_of(node.func) if isinstance(node, ast.Call) else None


def setting(node: ast.AST | None) -> bool:
    """Whether this holds settings or search hits, whose defaults are nobody's failure."""
    return not _SETTINGS.isdisjoint(tokens(name_of(node) or ""))
