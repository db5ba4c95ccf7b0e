import pickle
from threading import Event

import msgspec
import pytest

from adjudge import ErrorKind, GraderError, GraderRank, GraderScore, Provenance, Role, Usage, types
from adjudge.stats import mid_ranks
from adjudge.types import GraderResult, Sample

RESULTS: list[GraderResult] = [
    GraderScore("a", 0.5),
    GraderScore(
        "a",
        3,
        "fine",
        {"k": [1, None]},
        (1.0, 5.0),
        Role.SCORE,
        Provenance(model="m", usage=Usage(input_tokens=3, cost_usd=0.1), attempts=2),
    ),
    GraderScore("p", -2.0, score_range=(None, 0.0), role=Role.PENALTY),
    GraderRank("r", [2, 1, 3], "order"),
    GraderError("a", ErrorKind.TIMEOUT, "no reply", {"partial": {"x": 1}}, Role.GATE),
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda r: type(r).__name__)
def test_results_survive_pickle_and_json(result: GraderResult) -> None:
    assert pickle.loads(pickle.dumps(result)) == result
    assert msgspec.json.decode(msgspec.json.encode(result), type=GraderResult) == result


@pytest.mark.parametrize(
    "score", [True, False, "3", None, [1.0], float("nan"), float("inf"), float("-inf")]
)
def test_a_score_is_a_finite_number(score: object) -> None:
    wrong = (ValueError, "finite") if isinstance(score, float) else (TypeError, "'a'")
    with pytest.raises(wrong[0], match=wrong[1]):
        GraderScore("a", score)  # type: ignore[arg-type]  # that is the test


def test_a_json_score_is_checked_too() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"score","name":"a","score":true}', type=GraderResult)


def test_normalized() -> None:
    assert GraderScore("a", 4, score_range=(1, 5)).normalized == 0.75
    assert GraderScore("a", 4).normalized is None
    assert GraderScore("a", -4, score_range=(None, 0.0)).normalized is None
    assert GraderScore("a", 4, score_range=(4, 4)).normalized is None


def test_an_error_has_no_score() -> None:
    error = GraderError("a", "timeout", "late")  # type: ignore[arg-type]  # text is coerced
    assert not hasattr(error, "score")
    assert error.kind is ErrorKind.TIMEOUT
    with pytest.raises(ValueError):
        GraderError("a", "tired", "no such kind")  # type: ignore[arg-type]


def test_a_process_logs_the_first_read_of_an_errors_score(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(types, "_score_was_read", Event())
    error = GraderError("judge", ErrorKind.TIMEOUT, "late")
    assert not hasattr(error, "points")
    assert not caplog.records
    with pytest.raises(AttributeError, match="'GraderError' object has no attribute 'score'"):
        error.score  # type: ignore[attr-defined]  # noqa: B018
    assert (error.score if hasattr(error, "score") else 0.0) == 0.0
    (record,) = caplog.records
    assert record.args == ("judge", ErrorKind.TIMEOUT)


def test_ranks_as_rewards() -> None:
    assert GraderRank("r", [1, 2, 3]).as_scores() == [1.0, 0.5, 0.0]
    assert GraderRank("r", [1, 1, 3]).as_scores() == [0.75, 0.75, 0.0]
    assert GraderRank("r", [7, 7]).as_scores() == [0.5, 0.5]
    assert GraderRank("r", [1]).as_scores() is None
    assert mid_ranks([]) == []
    with pytest.raises(TypeError):
        GraderRank("r", [True, 2])


def test_sample_fields_leave_out_what_is_absent() -> None:
    sample = Sample(original_index=3, response="yes", extra={"lang": "en", "response": "shadowed"})
    assert sample.fields() == {"response": "yes", "lang": "en"}
