"""Old import paths of what is in the lab now."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from adjudge.moved import MOVED_MODULES

NAMES = {
    "adjudge.environments": "Episode",
    "adjudge.judge_training.chain.gold": "CapitalGold",
    "adjudge.studies.matrix.parametric": "ParametricJudge",
    "adjudge.training.judging": "EnvironmentReward",
    "adjudge.training.served": "ServedJudge",
    "adjudge.training.task": "CapitalGrader",
}


@pytest.mark.parametrize(("old", "name"), NAMES.items())
def test_an_old_path_is_the_new_module(
    old: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What files of users name is found under its old path, and is the same object."""
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=old):
        module = import_module(old)
    assert getattr(module, name) is getattr(import_module(MOVED_MODULES[old]), name)
