import pickle

import pytest

from adjudge import ErrorKind, GraderError, errors

RAISED = [
    errors.GradingFailure(ErrorKind.TIMEOUT, "late", {"part": 1}),
    errors.ConfigError("reward.toml: key"),
    errors.RolloutError("not JSON", where="a.jsonl:3"),
    errors.RunFolderError("another spec"),
    errors.JudgeAuthError("401"),
    errors.JudgeUnavailable("down"),
    errors.MissingRewardError("2 missing", [GraderError("a", ErrorKind.BUG, "x")]),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
def test_exceptions_survive_pickle_with_their_attributes(error: errors.AdjudgeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", errors.ErrorKind)
def test_what_is_local_is_suspect_only_as_a_deadline_and_never_passes(
    kind: errors.ErrorKind,
) -> None:
    local = {"local": True}
    deadline = kind is ErrorKind.TIMEOUT
    assert errors.is_suspect(kind, local) is (deadline or kind in errors.SUSPECT_KINDS)
    assert errors.is_suspect(kind, {**local, "suspect": False}) is False
    assert not errors.is_passing(kind, local)
    assert errors.is_passing(kind, {}) is (kind in errors.PASSING_KINDS)


@pytest.mark.parametrize(
    ("message", "where", "key"),
    [
        ("reward.toml: graders.main: type: 'x' cannot be read", "reward.toml", "graders.main.type"),
        ("graders.main: path: d/rows.jsonl:3: not JSON", "d/rows.jsonl:3", "graders.main.path"),
        ("--engine ray: needs ray. Run: pip install ray", "", "--engine"),
        ("rows.csv: no such file", "rows.csv", ""),
        ("no grader of 2 has a weight: give one", "", ""),
    ],
)
def test_a_refusal_names_file_and_key(message: str, where: str, key: str) -> None:
    error = errors.ConfigError(message)
    assert [error.where, error.key] == [where, key]
