"""The judge whose replies are stated."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import Reply
from adjudge.judges.models.scripted import ScriptedModel


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Paris"}, {"role": "user", "content": text}]


async def _later(messages: Any) -> str:
    await asyncio.sleep(0)
    return "later"


def _refuses(messages: Any) -> str:
    raise GradingFailure(ErrorKind.REFUSED, "no")


def test_scripts_of_all_kinds() -> None:
    assert ScriptedModel("yes").chat(user("x")).text == "yes"
    assert ScriptedModel(lambda m: m[-1]["content"]).chat(user("x")).text == "x"
    assert ScriptedModel(_later).chat(user("x")).text == "later"
    assert ScriptedModel("<think>hm</think>yes").chat(user("x")).reasoning == "hm"
    assert ScriptedModel([Reply(text="a")]).chat(user("x")) == Reply(text="a")
    by_text = ScriptedModel({"Paris": "1", "": {"score": 0}})
    assert by_text.chat(user([{"type": "text", "text": "Paris"}])).text == "1"
    assert by_text.chat(user("Rome")).text == '{"score":0}'


def test_a_script_that_is_a_list_answers_by_draw() -> None:
    judge = ScriptedModel(["a", "b"])
    assert [judge.chat(user("x"), draw=d).text for d in (0, 1, 2, 0)] == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([ErrorKind.TIMEOUT], "timeout"),
        ([GradingFailure("refused", "no")], "refused"),
        (_refuses, "refused"),
        ({"Rome": "1"}, "unsupported"),
    ],
)
def test_scripts_that_fail(script: Any, kind: str) -> None:
    with pytest.raises(GradingFailure) as caught:
        asyncio.run(ScriptedModel(script).achat(user("x")))
    assert caught.value.kind == kind


def test_scripted_replies_are_checked_like_others() -> None:
    reply = ScriptedModel("maybe").chat(user("x"), choices=["A"], schema={}, logprobs=True)
    assert reply.ignored == ("logprobs", "schema", "choices")


def test_scripted_models_are_picklable_and_never_empty() -> None:
    assert pickle.loads(pickle.dumps(ScriptedModel(_later))).chat(user("x")).text == "later"
    with pytest.raises(ConfigError):
        ScriptedModel([])
    with pytest.raises(ConfigError):
        ScriptedModel({})
