"""The judge whose replies are stated."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.models.offline import ScriptedModel


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Paris"}, {"role": "user", "content": text}]


async def _later(messages: Any) -> str:
    await asyncio.sleep(0)
    return "later"


def _refuses(messages: Any) -> str:
    raise GradingFailure(ErrorKind.REFUSED, "no")


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


def test_scripted_models_are_picklable_and_never_empty() -> None:
    assert pickle.loads(pickle.dumps(ScriptedModel(_later))).chat(user("x")).text == "later"
    with pytest.raises(ConfigError):
        ScriptedModel([])
    with pytest.raises(ConfigError):
        ScriptedModel({})
