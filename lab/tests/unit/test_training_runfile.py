"""The run file: what may stand in it, what it becomes, and what it says of mistakes."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge_lab.rl.plan import list_run_warnings
from adjudge_lab.rl.policy import resolve_base_model
from adjudge_lab.rl.rewards import build_reward_spec, format_toml
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file

EXAMPLES = Path(__file__).parents[3] / "examples"


def made(**changed: Any) -> dict[str, Any]:
    """A small run file as data; ``changed`` tables are laid over its own."""
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [
            {"name": "quality", "type": "llm", "template": "{messages}", "score_range": [0.0, 2.0]},
            {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0},
        ],
        "judge": {
            "model": "mock",
            "base_url": "mock",
            "combine_mode": "replace",
            "mock": {"behaviour": "length"},
        },
        "sentinel": {"gold": "gold"},
    }
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return data


@pytest.mark.parametrize("name", ["rl_tiny.toml", "rl_tiny_biased.toml"])
def test_the_examples_are_runs(name: str) -> None:
    run = load_run_file(EXAMPLES / name)
    assert run.starts_mock
    assert run.sentinel.gold == "gold"
    assert run.training.steps == 60


SERVER = {"type": "openai", "base_url": "http://127.0.0.1:9/v1", "mock": None}
PRICE = {"input": 1.0, "output": 2.0}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"temperature": 0.0}),
        ({"temperature": 0.7, "max_tokens": 256, "seed": 3}, {"temperature": 0.7, "seed": 3}),
        ({"extra_body": {"top_k": 5}, "stream": True}, {"extra_body": {"top_k": 5}}),
        ({"tokenizer": "m/m"}, {"tokenizer": "m/m", "cache": None}),
        ({"cache": "c.sqlite"}, {"cache": str(Path("c.sqlite").resolve())}),
        ({"type": "groq", "base_url": None, "api_key_env": "KEY"}, {"api_key_env": "KEY"}),
        ({"type": "recorded", "cassette": "c.sqlite", "base_url": None}, {"temperature": None}),
        ({"type": "classifier", "route": "classify"}, {"temperature": None, "route": "classify"}),
        (
            {"base_url": ["http://a/v1", "http://b/v1"]},
            {"base_url": ["http://a/v1", "http://b/v1"]},
        ),
    ],
)
def test_the_judge_takes_what_a_specs_judge_takes(
    given: dict[str, Any], found: dict[str, Any]
) -> None:
    run = resolve_run_file(made(judge={**SERVER, **given}))
    table = build_reward_spec(run).judges["judge"].model_dump()
    assert {key: table.get(key) for key in found} == found


def test_the_endpoint_has_the_limits_of_training_unless_it_has_its_own() -> None:
    endpoint = {"requests_per_minute": 60.0, "deadline_s": 9.0}
    run = resolve_run_file(made(judge={**SERVER, "endpoint": endpoint}))
    found = build_reward_spec(run).judges["judge"].model_dump()["endpoint"]
    assert (found["deadline_s"], found["max_concurrency"]) == (9.0, 16)
    assert found["requests_per_minute"] == 60.0


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"judge": {"temprature": 0.0}}, "judge.temprature"),
        ({"judge": {"temperature": "hot"}}, "judge.temperature"),
        ({"judge": {"api_key": "sk-1"}}, "judge.api_key"),
        ({"judge": {"slots": 3}}, "judge.slots"),
        ({"judge": {"requests_per_minute": 60}}, "judge.requests_per_minute"),
        ({"judge": {"endpoint": {"deadlines": 3}}}, "judge.endpoint.deadlines"),
        (
            {"judge": {"endpoint": {"deadline_s": 3.0}}, "training": {"judge_timeout_s": 4.0}},
            "judge.endpoint.deadline_s",
        ),
        ({"judge": {"budget_usd": 1.0}}, "judge.price"),
        ({"judge": {"budget_usd": 1.0, "price": PRICE}, "services": {"judge_url": "serve"}},
         "judge.budget_usd"),
        ({"judge": {"budget_usd": 1.0, "price": PRICE}, "backend": "verl"}, "judge.budget_usd"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_judges_keys_is_named_by_them(changed: dict[str, Any], key: str) -> None:
    data = made(**{**changed, "judge": {**SERVER, **changed["judge"]}})
    with refuses(key, "run.toml"):
        build_reward_spec(resolve_run_file(data, where="run.toml")).build_judges()


def test_a_judge_of_the_users_own_gets_no_key_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from adjudge.judges import ChatModel\n\n"
        "class Half(ChatModel):\n    def __init__(self, model):\n        self.model = model\n"
    )
    (tmp_path / "run_file_judge.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = {"type": "run_file_judge:Half", "base_url": None, "mock": None}
    run = resolve_run_file(made(judge=judge))
    [model] = build_reward_spec(run).build_judges().values()
    assert (type(model).__name__, model.model) == ("Half", "mock")


@pytest.mark.parametrize("changed", [
    {"judge": {"combine_mode": "replace"}},
    {"judge": {"combine_mode": "multiply"}},
    {"trl": {"scale_rewards": "batch"}},
    {"trl": {"multi_objective_aggregation": "normalize_then_sum"}},
])  # fmt: skip
def test_a_sample_rate_needs_groups_that_are_learned_from_apart(changed: dict[str, Any]) -> None:
    judge = {"sample_rate": 0.5, "combine_mode": "weighted_sum"}
    resolve_run_file(made(judge=judge), where="run.toml")
    with refuses("judge.sample_rate"):
        resolve_run_file(
            made(**{**changed, "judge": {**judge, **changed.get("judge", {})}}), where="run.toml"
        )


def test_mistakes_in_the_judges_server_are_told_by_the_run_files_own_keys() -> None:
    with pytest.raises(ConfigError, match=r"run file: judge\.type: .*found 'mistral'"):
        resolve_run_file(made(judge={"type": "mistral", "base_url": "http://h/v1", "mock": None}))
    with pytest.raises(ConfigError, match=r"run file: judge\.api_key_env: must be") as caught:
        resolve_run_file(made(judge={"api_key_env": "sk-proj-abcdefghij"}))
    assert "sk-proj" not in str(caught.value)


def test_a_mistake_in_seeds_is_told_once() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_run_file(made(evaluation={"seeds": ["a", 101]}))
    assert str(caught.value).count("\n") == 0
    assert "evaluation.seeds" in str(caught.value)


def test_a_run_folders_copy_is_read_where_it_came_from(tmp_path: Path) -> None:
    copy = tmp_path / "config.toml"
    copy.write_bytes((EXAMPLES / "rl_tiny.toml").read_bytes())
    assert load_run_file(copy).folder == tmp_path
    copy.with_name("run.json").write_text('{"kind": "train", "beside": "/somewhere/else"}')
    assert load_run_file(copy).folder == Path("/somewhere/else")


def test_another_seed_changes_nothing_else() -> None:
    run = resolve_run_file(made())
    other = run.with_seed(9)
    assert other.training.seed == 9
    assert run.training.seed == 0
    assert (
        build_reward_spec(other, "http://h/v1").graders
        == build_reward_spec(run, "http://h/v1").graders
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"modle": {"base": "tiny"}}, "modle: unknown key; did you mean 'model'"),
        (
            {"training": {"batch_size": 10, "group_size": 4}},
            "batch_size: must be a multiple .*found 10",
        ),
        ({"judge": {"type": "anthropic"}}, "judge.type: must be 'openai' .*found 'anthropic'"),
        ({"judge": {"base_url": "http://h/v1"}}, 'judge.mock: judge.mock and base_url = "mock"'),
        ({"judge": {"mock": {"behaviour": "rubric"}}}, "judge.mock: .*--keyword"),
        ({"judge": {"mock": {"behaviour": "length", "fail": ["never:2"]}}}, "judge.mock: .*never"),
        ({"judge": {"event_weight": 1.0}}, "reward.event_weight: .*no grader has scope"),
        (
            {"sentinel": {"gold": "quality"}},
            "sentinel.gold: the grader 'quality' must have weight 0",
        ),
        ({"graders": [], "sentinel": {}}, "judge.rubric_id: is missing, and there are no"),
        ({"services": {"task_url": "http://u:p@h"}}, "services.task_url: .*without a user name"),
        ({"rollout": {"env_name": "x", "dataset": "y"}}, "rollout: .*cannot be used together"),
        (
            {"rollout": {"env_name": "m:C"}},
            "warm_start_iterations: must be 0, because 'm:C' has no demo",
        ),
        ({"evaluation": {"seeds": "5-1"}}, "evaluation.seeds: .*must go up"),
        ({"evaluation": {"seeds": [1, 1]}}, "evaluation.seeds: must be one or more different"),
        ({"judge": {"rubric_id": "a/b@v1", "outcome_weight": 0.0}}, "event_weight are both 0"),
        ({"algorithm": {"variety": "ppo"}}, "algorithm.variety: .*'grpo'.*found 'ppo'"),
        ({"evaluation": {"split": "kind"}}, "evaluation.split: names a column .*no dataset"),
        ({"evaluation": {"report_spec": "no.toml"}}, "evaluation.report_spec: .*no.toml"),
        ({"evaluation": {"report_instances": 2}}, "report_instances: .*only be used with report_"),
    ],
)
def test_mistakes_are_named(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_run_file(made(**changed), where="run.toml")
    assert str(caught.value).startswith("run.toml: ")
    assert re.search(complaint, str(caught.value))


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXT, st.lists(_TEXT | st.dictionaries(_TEXT, _TEXT)) | _TEXT))
def test_a_services_spec_is_written_as_it_is(data: dict[str, Any]) -> None:
    assert tomllib.loads(format_toml(data)) == data
    assert tomllib.loads(format_toml({"template": "well done 😀"})) == {"template": "well done 😀"}


@pytest.mark.parametrize(
    ("rollout", "found"),
    [
        ({"env_name": "crafter", "env_config": {"lenght": 60}}, "env_config.lenght: crafter has"),
        ({"env_name": "no_such_module:Game"}, "rollout.env_name: 'no_such_module:Game' cannot"),
    ],
)
def test_an_environment_that_cannot_be_made_is_told_before_the_run(
    rollout: dict[str, Any], found: str
) -> None:
    run = resolve_run_file(made(training={"warm_start_iterations": 0}, rollout=rollout))
    assert any(found in warning for warning in list_run_warnings(run))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [({}, "has no column 'easy'"), *[({"easy": one}, "column 'easy' must be a text")
                                     for one in (None, 3, ["yes"])]],
)  # fmt: skip
def test_a_baseline_must_be_a_text_in_every_held_out_row(
    tmp_path: Path, row: dict[str, Any], complaint: str
) -> None:
    """Else it would be judged as the text "None"."""
    rows = [{"prompt": "Say yes.", "easy": "yes"}, {"prompt": "Say no.", **row}, {"prompt": "Hm?"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data: dict[str, Any] = {
        "model": {"base": "m"},
        "rollout": {"dataset": "rows.jsonl"},
        "graders": [{"name": "rule", "type": "json_valid"}],
        "judge": {"combine_mode": "replace"},
        "evaluation": {"seeds": [0], "baselines": ["easy"]},
    }
    resolve_run_file(data, folder=tmp_path)
    data["evaluation"]["seeds"] = [0, 1]
    with pytest.raises(ConfigError, match=f"baselines: row 1 of .* {complaint}"):
        resolve_run_file(data, folder=tmp_path)


def test_graders_that_report_have_names_of_their_own(tmp_path: Path) -> None:
    """Verdicts are kept by name: one would stand in the place of the other."""
    (tmp_path / "report.toml").write_text('[[graders]]\nname = "rule"\ntype = "length"\n')
    data = {
        "model": {"base": "m"},
        "rollout": {"env_name": "capitals"},
        "graders": [{"name": "rule", "type": "json_valid"}],
        "judge": {"combine_mode": "replace"},
        "evaluation": {"report_spec": "report.toml"},
    }
    with pytest.raises(ConfigError, match=r"report_spec: .*'rule'.*Rename"):
        resolve_run_file(data, folder=tmp_path)


def test_a_model_file_that_is_not_there_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for base, remedy in (("smollm2", "adjudge models fetch smollm2"), ("m.gguf", "m.gguf")):
        run = resolve_run_file(made(model={"base": base}), folder=tmp_path)
        assert run.is_gguf
        assert not run.is_tiny
        with pytest.raises(ConfigError, match=f"model.base: .*{remedy}"):
            resolve_base_model(run)


def test_a_model_file_has_a_folder_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF one")
    run = resolve_run_file(made(model={"base": "m.gguf"}), folder=tmp_path)
    first = resolve_base_model(run)
    assert Path(first).is_relative_to(tmp_path / "cache")
    (tmp_path / "m.gguf").write_bytes(b"GGUF other")
    assert resolve_base_model(run) != first
