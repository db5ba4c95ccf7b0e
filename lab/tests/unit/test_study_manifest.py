"""What a study's folder says of how its arms were made, and which changes make it another study."""

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import RunFolderError
from adjudge_lab.studies.cells import make_arms
from adjudge_lab.studies.manifest import check_manifest, make_manifest
from adjudge_lab.studies.study import Study
from adjudge_lab.studies.study_file import merge_tables

GOLD = {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}
RULE = {"name": "format", "type": "reasoning_format"}
LLM = {"name": "quality", "type": "llm", "template": "{messages}", "score_range": [0.0, 2.0]}
ASKED = {
    "model": "a-judge",
    "base_url": "https://judge.example.com:8443/v1/sk-hidden",
    "api_key_env": "JUDGE_KEY",
}
ROWS = [
    {"prompt": "Capital of A?", "chosen": "B", "rejected": "C"},
    {"prompt": "Capital of D?", "chosen": "E", "rejected": "F"},
]


def data() -> dict[str, Any]:
    return {
        "kind": "study",
        "gold": "gold",
        "seeds": [0, 1],
        "pilot": True,
        "run": {
            "model": {"base": "tiny"},
            "judge": {"combine_mode": "replace"},
            "rollout": {"dataset": "prompts.jsonl"},
            "graders": [GOLD],
        },
        "judges": {
            "rules": {"run": {"graders": [RULE]}, "levels": {"size": 8}},
            "asked": {"run": {"graders": [LLM], "judge": ASKED}},
            "trained": {"train": {"method": "bradley_terry", "data": {"train": "pairs.jsonl"}}},
            "other": {"train": {"method": "bradley_terry", "data": {"synthetic": {"n": 20}}}},
            "pair": {"members": ["trained", "other"], "held_out": True},
        },
        "mitigations": {"cool": {"run": {"rollout": {"temperature": 0.5}}}},
        "plans": [
            {"name": "p", "judge": ["rules", "asked", "trained"]},
            {"name": "m", "judge": ["rules"], "mitigation": ["cool"]},
        ],
    }


def filled(folder: Path) -> Path:
    """The folder with the files that the study names."""
    (folder / "prompts.jsonl").write_text('{"prompt": "hi"}\n')
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change nothing in it."""
    return filled(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def base(place: Path) -> dict[str, Any]:
    """The manifest of the study as it is."""
    return manifest(place)


def manifest(place: Path, given: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    found = Study.from_dict(merge_tables(given or data(), changed), where="s.toml", folder=place)
    out = place / "out"
    told = make_manifest(found, make_arms(found, out), out)
    assert json.loads(json.dumps(told)) == told
    return told


def refused(old: dict[str, Any], new: dict[str, Any]) -> str:
    with pytest.raises(RunFolderError) as error:
        check_manifest(old, new)
    return str(error.value)


def test_arms_share_all_that_they_do_not_declare(base: dict[str, Any]) -> None:
    arms = base["arms"]
    assert len(arms) == 8
    assert len({one["sha256"] for one in arms.values()}) == 8
    shared = {seed: {one["shared"] for one in arms.values() if one["seed"] == seed} for seed in
              base["seeds"]}  # fmt: skip
    assert [len(one) for one in shared.values()] == [1, 1]
    assert arms["rules.cool.seed-1"]["levels"] == {"size": 8, "mitigation": "cool"}
    assert len({one["data"] for one in arms.values()}) == 1
    assert base["machine"]["cpus"]
    assert set(base["versions"]) == {"python", "adjudge", "torch", "trl", "transformers"}


def test_judges_are_told_without_keys(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    told = manifest(place)
    assert told["judges"]["asked"]["endpoint"] == {"host": "judge.example.com", "model": "a-judge"}
    text = json.dumps(told)
    assert all(one not in text for one in ("sk-hidden", "sk-secret", "JUDGE_KEY"))
    assert told["judges"]["pair"]["members"] == ["trained", "other"]
    assert told["judges"]["pair"]["role"] == "held_out"
    assert told["judges"]["trained"]["card"] is None
    assert "endpoint" not in told["judges"]["rules"]


def test_the_same_study_elsewhere_has_the_same_hashes(place: Path, tmp_path: Path) -> None:
    found = Study.from_dict(data(), where="s.toml", folder=place)
    here, there = (
        make_manifest(found, make_arms(found, out), out) for out in (tmp_path / "x", tmp_path / "y")
    )
    assert here == there
    assert check_manifest(here, there) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": {"rollout": {"max_tokens": 9}}}, "arms.rules.none.seed-0: its settings"),
        (
            {"judges": {"trained": {"train": {"optim": {"lr": 0.5}}}}},
            "judges.trained: its settings",
        ),
        ({"judges": {"asked": {"run": {"judge": {"model": "b"}}}}}, "judges.asked: its settings"),
        ({"run": {"graders": [{**GOLD, "mapper": {"response": "text"}}]}}, "gold was 'gold'"),
        ({"run": {"training": {"warm_start_iterations": 3}}}, "policies.0: its settings have"),
        ({"seeds": [0, 3]}, "seeds 1 are gone"),
    ],
)
def test_what_is_made_otherwise_is_another_study(
    place: Path, base: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    message = refused(base, manifest(place, **changed))
    assert message.startswith("the study in this folder was another: ")
    assert said in message
    assert message.endswith("Give another output folder with -o.")


def test_what_is_gone_and_what_data_have_changed(tmp_path: Path, base: dict[str, Any]) -> None:
    place, less = filled(tmp_path), data()
    del less["judges"]["asked"]
    less["plans"][0]["judge"] = ["rules", "trained"]
    assert "judges.asked is gone; arms.asked.none.seed-0 is gone" in refused(
        base, manifest(place, less)
    )
    (place / "pairs.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    assert refused(base, manifest(place)).startswith(
        "the study in this folder was another: judges.trained: its data have changed. Give"
    )
    (place / "prompts.jsonl").write_text('{"prompt": "ho"}\n')
    assert "arms.rules.none.seed-0: its settings have changed" in refused(base, manifest(place))


def test_other_versions_are_worth_a_warning(base: dict[str, Any]) -> None:
    new = {**base, "versions": {**base["versions"], "trl": "9"}}
    was = base["versions"]["trl"]
    assert check_manifest(base, new) == [f"versions.trl was {was!r} and is '9'"]
    assert "says nothing of arms" in refused({**base, "arms": None}, new)


@pytest.mark.parametrize(
    ("part", "damaged"),
    [("seeds", 3), ("arms", {"a": 5}), ("judges", [1]), ("versions", "x"), ("best_of", 7)],
)
def test_a_damaged_manifest_is_told_so(base: dict[str, Any], part: str, damaged: object) -> None:
    message = refused({**base, part: damaged}, base)
    assert message.startswith(f"manifest.json: {part}: Expected ")
