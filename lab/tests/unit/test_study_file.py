"""The study file: what may stand in it, the arms it comes to, and what it says of mistakes."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.rl.rewards import build_reward_spec, format_toml
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.studies.cells import Arm, make_arms, make_cells
from adjudge_lab.studies.prerequisites import (
    judge_training_files,
    judge_training_waves,
    policy_tables,
    scorer_tables,
)
from adjudge_lab.studies.study import Study, find_study_warnings

HERE = Path("study")
GOLD = {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}
RULE = {"name": "format", "type": "reasoning_format"}
MADE = {"synthetic": {"n": 20}}
TRAINED = {"method": "bradley_terry", "data": MADE}


def trained(seed: int) -> dict[str, Any]:
    return {**TRAINED, "trainer": {"seed": seed}}


LLM = {"name": "quality", "type": "llm", "template": "{messages}", "score_range": [0.0, 2.0]}
MOCK = {"model": "m", "base_url": "mock", "mock": {"behaviour": "length"}}


def made(**changed: Any) -> dict[str, Any]:
    """A small study as plain data; ``changed`` keys replace its own."""
    return {
        "kind": "study",
        "gold": "gold",
        "run": {
            "model": {"base": "tiny"},
            "judge": {"combine_mode": "replace"},
            "training": {"warm_start_iterations": 20},
            "evaluation": {"every_n_iters": 5},
            "graders": [GOLD],
        },
        "judges": {
            "a8": {"levels": {"family": "a", "size": 8}, "train": trained(1)},
            "a64": {"levels": {"family": "a", "size": 64}, "train": trained(2)},
            "b8": {"levels": {"family": "b", "size": 8}, "train": trained(3)},
            "pair": {"members": ["a8", "b8"], "aggregate": "min"},
            "rule": {"bias": {"length": 1.0}, "run": {"graders": [RULE]}, "held_out": True},
        },
        "mitigations": {
            "shorter": {
                "run": {"graders": [{**RULE, "name": "short"}], "training": {"learning_rate": 1e-4}}
            }
        },
        "plans": [
            {"name": "sizes", "question": "size", "x": "size", "family": ["a"], "size": [8, 64]},
            {"name": "pairs", "judge": ["pair", "a8"], "mitigation": ["none", "shorter"]},
        ],
        **changed,
    }


def study(**changed: Any) -> Study:
    return Study.from_dict(made(**changed), where="s.toml")


def refused(**changed: Any) -> str:
    with pytest.raises(ConfigError) as found:
        study(**changed)
    return str(found.value)


def with_judge(name: str, **judge: Any) -> dict[str, Any]:
    return {"judges": {**made()["judges"], name: judge}}


def with_plan(**plan: Any) -> dict[str, Any]:
    return {"plans": [*made()["plans"], {"name": "extra", **plan}]}


def with_run(**tables: Any) -> dict[str, Any]:
    return {"run": {**made()["run"], **tables}}


def by_name(found: Study) -> dict[str, Arm]:
    return {arm.name: arm for arm in make_arms(found, HERE)}


def test_plans_are_crossed_and_what_two_of_them_ask_for_is_one_arm() -> None:
    arms = by_name(study())
    cells = dict.fromkeys(arm.cell for arm in arms.values())
    assert list(cells) == [
        ("a8", "none"), ("a64", "none"), ("pair", "none"), ("pair", "shorter"), ("a8", "shorter"),
    ]  # fmt: skip
    assert len(arms) == 3 * len(cells)
    assert arms["a8.none.seed-2"].plans == ("sizes", "pairs")
    assert arms["a8.none.seed-2"].levels == {"family": "a", "size": 8, "mitigation": "none"}


def test_a_panel_asks_its_members() -> None:
    judge = by_name(study())["pair.none.seed-0"].run().judge
    assert judge.folder == [str((HERE / "judges" / name).absolute()) for name in ("a8", "b8")]
    assert judge.aggregate == "min"


def test_arms_are_run_files_as_toml_and_leave_the_study_alone() -> None:
    found = study()
    before = copy.deepcopy(found.run)
    for arm in make_arms(found, HERE):
        written = resolve_run_file(tomllib.loads(format_toml(arm.data)))
        assert written.model_dump() == arm.run().model_dump()
    assert found.run == before


def test_scorers_reward_exactly_what_they_say() -> None:
    judge = {"graders": [LLM, {**RULE, "weight": 0.0}], "judge": {**MOCK, "judge_scale": 3.0}}
    found = study(
        **with_judge("scaled", run=judge, held_out=True),
        **with_run(judge={"combine_mode": "weighted_sum", "sample_rate": 0.5}),
    )
    assert found.scorers == ["a8", "a64", "b8", "pair", "rule", "scaled", "gold"]
    run = scorer_tables(found, "scaled", HERE).run()
    reward = build_reward_spec(run, "http://127.0.0.1:9/v1")
    assert [one.name for one in reward.graders] == ["quality"]
    assert (reward.reward.combine_mode, reward.reward.judge_scale) == ("replace", 1.0)
    assert reward.reward.sample_rate == 1.0
    gold = build_reward_spec(scorer_tables(found, found.gold, HERE).run())
    assert [(one.name, one.weight) for one in gold.graders] == [("gold", 1.0)]
    roles = {name: one["role"] for name, one in found.roles().items()}
    assert roles == {
        "a8": "training", "a64": "training", "b8": "training", "pair": "training",
        "rule": "held_out", "scaled": "held_out", "gold": "gold",
    }  # fmt: skip


def test_a_held_out_judge_may_be_the_gold() -> None:
    found = study(gold="rule")
    assert scorer_tables(found, found.gold, HERE).run().graders == [RULE]
    assert found.roles()["rule"]["role"] == "gold"
    assert found.scorers.count("rule") == 1
    assert "is trained on" in refused(gold="a8")


def test_first_policies_come_from_the_run_or_a_training_file() -> None:
    found = study()
    run = policy_tables(found, 2).run()
    assert (run.model.base, run.training.warm_start_iterations, run.training.seed) == (
        "tiny", 20, 2,
    )  # fmt: skip
    assert found.is_tiny
    trained = study(policy={"train": {"method": "sft", "data": MADE}})
    tables = policy_tables(trained, 2)
    policy, plain = tables.training(), tomllib.loads(format_toml(tables.data))
    assert policy.trainer.seed == 2
    assert JudgeFile.from_dict(plain, environ={}).model_dump() == policy.model_dump()
    assert "must be 'sft' without a mode" in refused(policy={"train": TRAINED})


def test_trained_judges_come_after_what_they_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_PATH", "another")
    (tmp_path / "last.toml").write_text(
        format_toml({"kind": "judge", **TRAINED, "model": {"path": "@middle"}})
    )
    first = {**TRAINED, "model": {"path": "@policy"}}
    middle = {**TRAINED, "model": {"path": "@first"}}
    data = made(
        judges={
            "last": {"train": "last.toml"},
            "middle": {"train": middle},
            "first": {"train": first},
            "other": {"train": TRAINED},
        },
        plans=[{"name": "one", "judge": ["last"]}],
        seeds=[5, 6, 7],
    )
    found = Study.from_dict(data, where="s.toml", folder=tmp_path)
    files = judge_training_files(found, tmp_path)
    assert files["first"].model.path == str(tmp_path / "policies" / "seed-5")
    assert files["last"].model.path == str(tmp_path / "judges" / "middle")
    assert files["other"].model.path != "another"
    waves = judge_training_waves(found, tmp_path)
    assert [list(wave) for wave in waves] == [["first", "other"], ["middle"], ["last"]]


def test_a_circle_of_judges_and_one_that_is_not_there() -> None:
    one = {"train": {**TRAINED, "model": {"path": "@two"}}}
    two = {"train": {**TRAINED, "model": {"path": "@one"}}}
    plans = [{"name": "p", "judge": ["one"]}]
    assert "judges: one, two: what each begins with" in refused(
        judges={"one": one, "two": two}, plans=plans
    )
    message = refused(judges={"one": one, "tow": {"train": TRAINED}}, plans=plans)
    assert "judges.one.train: model.path: no trained judge is called '@two'" in message
    assert "did you mean 'tow'?" in message


def test_seeds_are_three_or_it_is_a_pilot() -> None:
    assert refused(seeds=[0, 1]).startswith("s.toml: seeds: must be at least 3")
    assert study(seeds=[4], pilot=True).pilot
    assert "different whole numbers" in refused(seeds=[0, 0, 1])


def test_levels_find_one_judge_or_say_what_is_missing() -> None:
    both = {"family": ["a", "b"], "size": [8, 64]}
    message = refused(**with_plan(**both))
    assert "plans.extra: must find one judge with family = 'b', size = 64 (found none)" in message
    cells = make_cells(study(**with_plan(**both, skip=[{"family": "b", "size": 64}])))
    assert [one.judge for one in cells if "extra" in one.plans] == ["a8", "a64", "b8"]
    assert "size = 8 (found 'a8', 'b8')" in refused(**with_plan(size=[8]))
    assert "no combination of the plan has size = 9" in refused(
        **with_plan(family=["a"], size=[8], skip=[{"size": 9}])
    )
    assert "no judge has a level of this name; did you mean 'family'?" in refused(
        **with_plan(famly=["a"])
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"plans": []}, "plans: "),
        ({"gold": "gild"}, "no held-out judge is called 'gild'; did you mean 'gold'?"),
        (with_run(model="tiny"), "run.model: is required"),
        (with_run(training={"seed": 3}), "run.training.seed: seeds are the study's"),
        (with_run(graders=[{**GOLD, "weight": 0.5}]), "run.graders.gold: has weight 0.5"),
        (
            with_run(graders=[GOLD, {**LLM, "weight": 0.0}]),
            "asks the judge, which differs from arm to arm",
        ),
        (with_run(backend="verl"), "backend: must be 'trl' in a study"),
        (with_judge("x"), "needs exactly one of train, members, run (found none)"),
        (with_judge("x", members=["a8"]), "a panel must have at least two judges"),
        (with_judge("x", members=["a8", "rule"]), "'rule' is not trained here"),
        (
            with_judge("x", run={"rollout": {"temperature": 0.5}}),
            "run.rollout.temperature: cannot be changed by a judge",
        ),
        (with_judge("x", run={"judge": {"enabled": False}}), "judge.enabled: is false"),
        (with_judge("x", train={"method": "sft", "data": MADE}), "teaches to answer, not to judge"),
        (with_judge("x/y", run={"graders": [RULE]}), "a name must be letters, digits"),
        (with_judge("A8", run={"graders": [RULE]}), "'a8' and 'A8' are one name"),
        (with_judge("gold", run={"graders": [RULE]}), "is trained on. Set held_out = true."),
        (with_judge("x", run={"graders": [RULE]}, levels={"seed": 1}), "'seed' is a key of plans"),
        (
            {"mitigations": {"none": {"run": {"training": {}}}}},
            "is reserved for the arm without a mitigation",
        ),
        ({"mitigations": {"shorter": {"run": {"training": {}}}}}, "changes nothing"),
        (
            {"mitigations": {"shorter": {"run": {"model": {"base": "other"}}}}},
            "mitigations.shorter.run.model.base: must be the same for all arms",
        ),
        (with_plan(judge=["a8"], size=[8]), "the level 'size' has no effect"),
        (with_plan(judge=["rule"]), "'rule' is held out"),
        (
            with_judge("c8", levels={"family": "c"}, train=TRAINED, held_out=True)
            | with_plan(family=["c"]),
            "family = 'c' (found 'c8' (held_out = true))",
        ),
        (with_plan(), "List them by name (judge), or by levels"),
        (
            with_plan(family=list(range(200)), size=list(range(99))),
            "crosses too many cells (found 19,800",
        ),
        (with_plan(judge=["a8", "pair"], x="size"), "judge 'pair' has no bias or level 'size'"),
        (with_plan(judge=["a8"], skip=[{"size": 8}]), "'size' is not listed by this plan"),
        ({"plans": [{"name": "p", "judge": ["a8"]}] * 2}, "there are two plans of this name"),
        ({"plan": []}, "plan: unknown key; did you mean 'plans'?"),
    ],
)
def test_mistakes_are_named_with_a_remedy(changed: dict[str, Any], said: str) -> None:
    message = refused(**changed)
    assert message.startswith("s.toml: ")
    assert said in message


def test_files_are_read_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.toml"
    path.write_text(format_toml(made(label="${WHO}")))
    monkeypatch.setenv("WHO", "me")
    found = Study.load(path)
    assert (found.label, found.folder, found.where) == ("me", tmp_path, str(path))
    path.write_text(format_toml(made(**with_judge("x", train="none.toml"))))
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        Study.load(path)


def test_names_that_run_together_are_refused() -> None:
    judges = {"a": {"run": {"graders": [RULE]}}, "a.b": {"run": {"graders": [RULE]}}}
    mitigations = {name: {"run": {"training": {"batch_size": 8}}} for name in ("b.c", "c")}
    plans = [
        {"name": "one", "judge": ["a"], "mitigation": ["b.c"]},
        {"name": "two", "judge": ["a.b"], "mitigation": ["c"]},
    ]
    assert "'a.b.c.seed-0' and 'a.b.c.seed-0' are one name" in refused(
        judges=judges, mitigations=mitigations, plans=plans
    )


def test_an_arm_that_nobody_else_scores_is_warned_of() -> None:
    judges = {name: one for name, one in made()["judges"].items() if name != "rule"}
    assert find_study_warnings(study()) == []
    (warning,) = find_study_warnings(study(judges=judges, plans=made()["plans"][:1]))[:1]
    assert "no held-out judge" in warning
    assert "'a8', 'a64'" in warning
    hasty = with_run(evaluation={}, sentinel={"action": "stop"})
    assert [one.split(":")[0] for one in find_study_warnings(study(**hasty))] == [
        "run.evaluation.every_n_iters is 0", "run.sentinel.action is 'stop'",
    ]  # fmt: skip
    twin = with_judge("twin", train={**trained(3), "model": {"label": "x"}}, held_out=True)
    (warning,) = find_study_warnings(study(**twin))
    assert warning.startswith("judges 'b8' and 'twin' are trained alike")
    unused = find_study_warnings(study(plans=made()["plans"][:1]))
    assert [one.split(" is ")[0] for one in unused] == [
        "judge 'b8'", "judge 'pair'", "mitigation 'shorter'",
    ]  # fmt: skip
