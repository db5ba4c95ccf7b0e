"""The mock plays every grader that ships: through the server, for each kind of judge."""

from collections.abc import Mapping
from typing import Any

import pytest

import adjudge
from adjudge.graders.registry import SHIPPED, list_parameters, load_grader_class
from adjudge.mock import start_mock

ASKING = [
    name
    for name in SHIPPED
    if any(parameter.is_judge for parameter in list_parameters(load_grader_class(name)))
]
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "verif": {"field": "checks", "skip_rules": True},
    "llm": {"template": "How good is {response}? {reply_form}"},
    "rubric": {"criteria": [{"criterion": f'Says "{word}"'} for word in ("zebra", "lion", "ox")]},
    "scalar": {"activation": "sigmoid", "judge": "classifier"},
}
NO_LOGPROBS = {"groq", "anthropic"}


def turns(word: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"role": "user", "content": "Which animal?"}]
    for number in range(3):
        call = {"id": f"c{number}", "function": {"name": "look", "arguments": '{"at": "it"}'}}
        made.append({"role": "assistant", "content": word, "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"c{number}", "content": str(number)})
    return [*made, {"role": "assistant", "content": word}]


def row(word: str) -> dict[str, Any]:
    text = f"It is a {word}."
    return {
        "group": "g",
        "prompt": "Which animal?",
        "response": text,
        "messages": turns(word),
        "context": "A zoo.",
        "tool_calls": [{"function": {"name": word, "arguments": "{}"}}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
        "reference": "An animal.",
        "checks": {"checkers": ["[llm] Style: be brief"], "functions": [""]},
        **dict.fromkeys(("plan", "reflection", "memory", "observation"), text),
    }


def scores(judge: str, language: str, **mock: Any) -> dict[str, list[Any]]:
    """Of a response with the keyword and one without, by grader."""
    names = [one for one in ASKING if one != "expected_score" or judge not in NO_LOGPROBS]
    graders = [{"name": one, "type": one, **PARAMETERS.get(one, {})} for one in names]
    for entry in graders:
        cls = load_grader_class(entry["type"])
        speaks = any(parameter.name == "language" for parameter in list_parameters(cls))
        if speaks and "template" not in entry:
            entry["language"] = language
        entry.setdefault("judge", "main")
    with start_mock(**mock) as url:
        root = url.removesuffix("/v1")
        main = {"type": judge, "model": "m", "base_url": root if judge == "anthropic" else url}
        classifier = {"type": "classifier", "model": "m", "base_url": root}
        judges = {"main": main, "classifier": classifier}
        spec = {"graders": graders, "judges": judges, "missing": {"max_missing": 1.0}}
        found = adjudge.grade([row("zebra"), row("lion")], spec)
    return {one: [r.result.reward_info[f"{one}_score"] for r in found.rows] for one in names}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "GROQ", "DASHSCOPE", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_API_KEY", "key")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("judge", ["openai", "groq", "dashscope", "anthropic"])
def test_every_shipped_grader_has_a_score(judge: str, language: str) -> None:
    found = scores(judge, language)
    assert [name for name, two in found.items() if None in two] == []


@pytest.mark.parametrize("judge", ["openai", "dashscope"])
def test_the_response_with_the_keyword_scores_higher(judge: str) -> None:
    found = scores(judge, "en", keywords=("zebra",))
    assert [name for name, (with_it, without) in found.items() if with_it <= without] == []
