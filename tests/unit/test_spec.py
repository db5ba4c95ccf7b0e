from pathlib import Path

import pytest
from tests.refusals import refuses

from adjudge import RewardSpec, SpecRewardFunction
from adjudge.config import load_toml
from adjudge.errors import ConfigError
from adjudge.graders.registry import SHIPPED, build_grader, list_parameters, load_grader_class

LOOP = '[[graders]]\nname = "loop"\ntype = "action_loop"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "reward.toml"
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path) -> None:
    spec = RewardSpec.load(write(tmp_path, LOOP))
    assert spec.version == 1
    assert spec.missing.policy == "mask"
    assert spec.reward.combine_mode == "replace"
    assert spec.graders[0].weight == 1.0


OTHER = '[[graders]]\nname = "a"\ntype = '


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "graders"),
        ("version = 2\n" + LOOP, "version"),
        (LOOP + "[reward]\nagregate = 'min'", "reward.agregate"),
        (LOOP + "[missing]\npolicy = 'zero'", "missing.policy"),
        (LOOP + "similarity_treshold = 1.0", "graders.loop.similarity_treshold"),
        (LOOP + "similarity_threshold = 'high'", "graders.loop.similarity_threshold"),
        (LOOP + "weight = -1.0", "graders.loop.weight"),
        (LOOP + "weight = 0.0", "graders"),
        (LOOP + LOOP, "graders"),
        ('[[graders]]\nname = "a b"\ntype = "action_loop"', "graders.0.name"),
        ('[[graders]]\nname = "events"\ntype = "action_loop"', "graders.0.name"),
        (OTHER + '"action_lop"', "graders.a.type"),
        (OTHER + '"nowhere:Grader"', "graders.a.type"),
        (OTHER + '"json:JSONDecoder"', "graders.a.type"),
        (LOOP + "[reward]\nevent_weight = 1.0", "reward.event_weight"),
        (LOOP + "[reward]\noutcome_weight = 0.0", "reward"),
        (LOOP + '[judges.1a]\ntype = "scripted"\nscript = "x"', "judges.1a"),
        ("not toml", ""),
        (LOOP + 'note = "${NO_SUCH_VARIABLE_HERE}"', "graders.0.note"),
    ],
)
def test_complaints_name_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    path = write(tmp_path, text)
    with refuses(key, str(path)):
        SpecRewardFunction(RewardSpec.load(path))


def test_every_problem_of_the_tables_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, LOOP + "[reward]\nagregate = 'min'\n[missing]\npolicy = 3")
    with pytest.raises(ConfigError) as caught:
        RewardSpec.load(path)
    first, second = str(caught.value).split("\n")
    assert first.startswith(f"{path}: reward.agregate: unknown key; did you mean 'aggregate'?")
    assert second.startswith(f"{path}: missing.policy: ")
    assert second.endswith("(found 3)")


def test_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TYPE", "action_loop")
    path = write(tmp_path, LOOP.replace("action_loop", "${MY_TYPE}"))
    assert load_toml(path)["graders"][0]["type"] == "action_loop"


def test_the_hash_is_of_what_is_said(tmp_path: Path) -> None:
    one = RewardSpec.load(write(tmp_path, LOOP + "weight = 1.0\n# a comment"))
    same = RewardSpec.load(write(tmp_path, "version = 1\n" + LOOP))
    other = RewardSpec.load(write(tmp_path, LOOP + "similarity_threshold = 0.9"))
    assert one.hash == same.hash
    assert one.hash != other.hash


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_parameter_of_another_type_is_named(kind: str) -> None:
    for parameter in list_parameters(load_grader_class(kind)):
        if not parameter.is_judge and "Any" not in parameter.type_text:
            with refuses(f"s.{parameter.name}"):
                build_grader(kind, "x", {parameter.name: object()}, where="s")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("{", "verdicts.jsonl:1"),
        ('{"id": 1, "score": 1}\n{"id": "1", "score": 1}', "on two lines"),
        ('{"id": 1, "error": {"kind": "sleepy"}}', "sleepy"),
    ],
)
def test_broken_recordings_are_refused(tmp_path: Path, lines: str, complaint: str) -> None:
    (tmp_path / "verdicts.jsonl").write_text(lines)
    with pytest.raises(ConfigError, match=complaint):
        build_grader("recorded", "j", {"path": "verdicts.jsonl"}, where="s", folder=tmp_path)


def test_signed_points_of_a_rubric_need_clip_to_be_normalised(tmp_path: Path) -> None:
    text = (
        '[[graders]]\nname = "care"\ntype = "rubric"\n'
        '[judges.main]\ntype = "scripted"\nscript = "x"\n'
    )
    with refuses("graders.care"):
        SpecRewardFunction(RewardSpec.load(write(tmp_path, text)))
    clipped = text.replace('"rubric"\n', '"rubric"\nclip = true\n')
    SpecRewardFunction(RewardSpec.load(write(tmp_path, clipped)))


def test_recorded_failures_fail_again(tmp_path: Path) -> None:
    from adjudge import GradingRunner

    (tmp_path / "v.jsonl").write_text(
        '{"id": "a", "score": 5, "reason": "ok"}\n\n{"id": 2, "error": {"kind": "timeout"}}\n'
    )
    given = {"path": "v.jsonl", "score_range": [1, 5]}
    grader = build_grader("recorded", "j", given, where="s", folder=tmp_path)
    runner = GradingRunner({"j": grader}, show_progress=False)
    good, late, unknown = runner.run([{"id": "a"}, {"id": 2}, {"id": "b"}])["j"]
    assert getattr(good, "reason", "") == "ok"
    assert getattr(late, "kind", "") == "timeout"
    assert getattr(unknown, "kind", "") == "invalid_input"
