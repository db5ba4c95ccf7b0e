"""verl's entry point: what is wrong with a spec ends in a sentence, before a model is loaded."""

from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError, JudgeAuthError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.verl.main_ppo import check_spec_file, ends_in_a_sentence
from adjudge.trainers.verl.reward_sources import check_estimator

GRADER = '[[graders]]\nname = "q"\ntype = "json_valid"\n'


class OfRay(ConfigError):
    """As Ray gives an actor's error: of its class, with the trace as its text."""

    cause = ConfigError("spec.toml: graders: none")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("spec.toml: wrong"), 2, "adjudge: spec.toml: wrong\n"),
        (JudgeAuthError("the key is refused"), 3, "adjudge: the key is refused\n"),
        (OfRay("Traceback …"), 2, "adjudge: spec.toml: graders: none\n"),
    ],
)
def test_an_error_of_ours_is_one_sentence(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, ends_in_a_sentence():
        raise error
    assert (stopped.value.code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize(
    "text",
    [
        None,
        GRADER.replace("json_valid", "json_vallid"),
        GRADER + "[reward]\nsample_rate = 0.5\n",
        GRADER + "weight = { from = 1.0, to = 0.0, steps = 3 }\n",
        GRADER + 'scheme = "points"\n',
    ],
)
def test_a_spec_that_no_run_could_use_is_refused_before_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "spec.toml").write_text(text)
    monkeypatch.setenv("ADJUDGE_SPEC", str(tmp_path / "spec.toml"))
    config: Any = {}
    with pytest.raises(ConfigError):
        check_spec_file(config)
    (tmp_path / "spec.toml").write_text(GRADER)
    check_spec_file(config)


V1 = {"reward": {}, "trainer": {"use_v1": True}, "algorithm": {"adv_estimator": "adjudge_grpo"}}


@pytest.mark.parametrize(
    ("config", "table", "key"),
    [
        (V1, '[reward]\ngroup = "z_score"\n', "needs whole groups"),
        (V1, '[missing]\npolicy = "raise"\n', "missing.policy"),
        (
            {"actor_rollout_ref": {"rollout": {"mode": "async"}}},
            '[reward]\ngroup = "rloo"\n',
            "gro",
        ),
        ({"algorithm": {"adv_estimator": "gae"}}, "", "algorithm.adv_estimator"),
    ],
)
def test_what_the_run_cannot_serve_is_refused_before_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, table: str, key: str
) -> None:
    (tmp_path / "spec.toml").write_text(GRADER + table)
    monkeypatch.setenv("ADJUDGE_SPEC", str(tmp_path / "spec.toml"))
    with pytest.raises(ConfigError, match=key):
        check_spec_file(config)
    (tmp_path / "spec.toml").write_text(GRADER)
    check_spec_file(V1)
    (tmp_path / "spec.toml").write_text(GRADER + '[reward]\ngroup = "z_score"\n')
    check_spec_file({"actor_rollout_ref": {"rollout": {"mode": "sync"}}})  # 0.6.1's whole batches


def test_an_estimator_that_compares_groups_needs_them_all_judged() -> None:
    reward = {"sample_rate": 0.5, "combine_mode": "weighted_sum"}
    graders = [{"name": "q", "type": "json_valid"}]
    spec = RewardSpec.from_dict({"graders": graders, "reward": reward})
    for name in (None, "grpo", "adjudge_grpo"):
        check_estimator(name, spec)
    with refuses("spec.reward.sample_rate"):
        check_estimator("reinforce_plus_plus", spec)
    with refuses("algorithm.adv_estimator"):
        check_estimator("gae")
