"""The flight recorder: what it writes, for how many writers, and what it does when it cannot."""

import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rows import assistant, read_jsonl, user

from adjudge.audit.report import make_audit
from adjudge.audit.rollouts import read_audited
from adjudge.checks.run import AuditedRun
from adjudge.errors import ConfigError, RunFolderError, TrainingStopped
from adjudge.intake.columns import without_arrays
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns
from adjudge.rewards import RewardSample, RewardSpec
from adjudge.rollouts.samples import SampleReader
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.records import STOP_FILE, RunRecords
from adjudge.runs.view.run_reader import RunReader
from adjudge.trainers import make_trainer_reward, recorder as recording
from adjudge.trainers.metrics import TrainerProgress
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.scoring import RECORD_VARIABLE, Scorer

JUDGE = {
    "type": "scripted",
    "script": {"odd": "no verdict", "good": '{"score": 0.9}', "": '{"score": 0.2}'},
}
SPEC: dict[str, Any] = {
    "graders": [
        {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]},
        {"name": "short", "type": "length_penalty", "max_length": 40, "weight": 0.0},
    ],
    "judges": {"main": JUDGE},
    "missing": {"patience_s": 0.0},
}
WORDS = ("a good one", "odd", "plain", "good \ud83d \x00 <script>")


def spec() -> RewardSpec:
    return RewardSpec.from_dict(SPEC)


def batch(*words: str, **extra: Any) -> tuple[list[RewardSample], list[str]]:
    samples = [
        RewardSample(at, at % 2, f"question {at // 2}", word, None, {"reference": "x", **extra})
        for at, word in enumerate(words)
    ]
    return samples, [str(at // 2) for at in range(len(words))]


def rows(folder: Path, name: str = "rollouts.jsonl") -> list[dict[str, Any]]:
    path = folder / name
    return read_jsonl(path) if path.exists() else []


def opened(folder: Path, **options: Any) -> tuple[FlightRecorder, Scorer]:
    recorder = FlightRecorder(folder, **options)
    return recorder, Scorer(spec(), record=recorder)


def recorded(folder: Path, steps: int = 3, **options: Any) -> None:
    recorder, scorer = opened(folder, **options)
    for step in range(steps):
        scorer.score(*batch(*WORDS), progress=TrainerProgress(step, step))
    recorder.close()


def test_a_row_has_what_the_reward_was_made_of(tmp_path: Path) -> None:
    recorded(tmp_path, steps=2)
    found = rows(tmp_path)
    assert [row["index"] for row in found] == list(range(8))
    assert [row["step"] for row in found] == [0] * 4 + [1] * 4
    assert [row["policy_version"] for row in found] == [0] * 4 + [1] * 4
    one, odd = found[:2]
    assert (one["prompt"], one["response"], one["reference"]) == ("question 0", WORDS[0], "x")
    assert one["reward_info"]["quality_score"] == 0.9
    assert one["details"]["quality"]["score"] == 0.9
    assert odd["reward"] is None
    assert odd["missing"]["kind"] == "unparsable"
    groups = [row["group"] for row in found]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert len(set(groups)) == 4  # of two steps, though the trainer called them alike
    steps = rows(tmp_path, "metrics.jsonl")
    assert [(row["step"], row["samples"]) for row in steps] == [(0, 4), (1, 4)]
    assert steps[0]["judge/missing_frac"] == 0.25
    facts = json.loads((tmp_path / "run.json").read_bytes())
    assert facts["kind"] == "record"
    assert [one["name"] for one in facts["graders"]] == ["quality", "short"]


def test_the_readers_of_runs_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorded(folder)
    report = make_audit([folder], {})
    assert (report.count, report.groups, report.steps) == (12, 6, 3)
    assert not report.notes
    reader = RunReader(folder)
    reader.refresh()
    assert (reader.kind, len(reader.rollouts), len(reader.rollouts.groups)) == ("train", 12, 6)
    row = reader.row(0)
    assert row is not None
    story = reader.tell(row, [])
    assert (story["prompt"], story["response"]) == ("question 0", WORDS[0])
    assert [one["type"] for one in story["graders"]] == ["llm", "length_penalty"]
    other = {**SPEC, "graders": SPEC["graders"][:1]}
    job = GradingJob(
        [folder], RewardSpec.from_dict(other), folder=tmp_path / "other", show_progress=False
    )
    grade_rollouts(job)
    pairs = PairedRuns(DiffRun(folder), DiffRun(tmp_path / "other"))
    assert (len(pairs.pairs), pairs.same_groups) == (12, True)


OWN_NAMES = (
    *("index", "step", "group", "rank", "details", "reward", "missing", "policy_version", "start"),
    *("key", "where", "tokens", "responses", "opening_turns", "lost_rollout", "dataset_columns"),
)
ARRAYS = {
    "reference": np.array(["7", "seven"]),
    "index": np.int64(7),
    "share": [np.float32(0.5), np.float64(7)],
    "test": {"passed": np.bool_(True), "empty": np.array(7)},
}


@pytest.mark.parametrize("columns", [{"system": "x"}, dict.fromkeys(OWN_NAMES, ("x", 1)), ARRAYS])
def test_what_graders_saw_comes_back(tmp_path: Path, columns: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    recorder, scorer = opened(folder)
    talk = [{"role": role, "content": "good"} for role in ("assistant", "user", "assistant")]
    samples = [
        RewardSample(0, 0, "2 + 2?", "good", None, columns),
        RewardSample(1, 1, "good", "good", talk, columns, opening_turns=2),
        RewardSample(2, 2, "2 + 2?", None, None, columns, is_lost=True),
        RewardSample(3, 3, "good", "good", talk, columns, True, 2, problem="no ids"),
    ]
    given = scorer.score(samples, ["0"] * 4).rewards
    recorder.close()
    for one, row, pair in zip(
        samples, SampleReader([folder]), RunRecords(folder).with_samples(), strict=True
    ):
        fields = {name: without_arrays(value) for name, value in one.fields().items()}
        assert {name: row.fields()[name] for name in fields} == fields
        for found in (row, pair[1]):
            for name in ("prompt", "messages", "opening_turns", "is_lost", "problem"):
                assert getattr(found, name) == getattr(one, name)
            assert (found.response or None) == one.response
    job = GradingJob([folder], spec(), folder=tmp_path / "again", show_progress=False)
    grade_rollouts(job)
    assert [one.reward for one in RunRecords(tmp_path / "again")] == given == [0.9, 0.9, None, None]
    audited = read_audited([folder], {}, AuditedRun())
    assert [one.has_texts for one in audited] == [True, True, False, False]


def test_an_audit_sees_imputed_failures_and_groups_of_several_prompts(tmp_path: Path) -> None:
    settings = {**SPEC, "missing": {"patience_s": 0.0, "suspect": "min"}}
    recorder = FlightRecorder(tmp_path)
    scorer = Scorer(RewardSpec.from_dict(settings), record=recorder)
    samples = []
    for place, word in enumerate(WORDS * 4):
        talk = [user(f"town {place % 2}?"), assistant("Yes."), user("Which?"), assistant(word)]
        samples.append(RewardSample(place, place % 4, "Which?", word, talk, opening_turns=3))
    assert None not in scorer.score(samples, [str(place // 4) for place in range(16)]).rewards
    recorder.close()
    found = {one.name: one.state for one in make_audit([tmp_path], {}).outcomes}
    assert (found["judge_errors"], found["mixed_prompts"]) == ("found", "found")


def test_evaluations_stand_apart(tmp_path: Path) -> None:
    recorder, scorer = opened(tmp_path)
    scorer.score(*batch("good"), progress=TrainerProgress(4, 4, evaluating=True))
    recorder.close()
    assert not rows(tmp_path)
    assert not rows(tmp_path, "metrics.jsonl")
    assert len(rows(tmp_path, "evaluation_rollouts.jsonl")) == 1


def test_the_environment_names_the_folder_of_adapters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORD_VARIABLE, str(tmp_path))
    assert Scorer(spec()).recorder is None
    make_trainer_reward(spec(), "trl")
    assert (tmp_path / "run.json").exists()
    named = Scorer(spec())
    named.start_recording()
    assert named.recorder is not None
    assert named.recorder.folder == tmp_path


@pytest.mark.parametrize("there", ["", "run.json", "rewards.jsonl", "evaluation_rollouts.jsonl"])
def test_the_folder_of_another_run_is_refused(tmp_path: Path, there: str) -> None:
    if there:
        (tmp_path / there).write_text('{"kind": "train"}')
    else:
        recorded(tmp_path, steps=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = RewardSpec.from_dict({**SPEC, "reward": {"group": "centre"}})
    said = "Record to another folder" if there else "reward.group was 'none'"
    with pytest.raises(RunFolderError, match=said):
        Scorer(other, record=FlightRecorder(tmp_path))
    assert {n: data for n in before if (data := (tmp_path / n).read_bytes())} | before == before


def test_a_start_without_rows_claims_no_folder(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"sample_rate": 0.5}, {"group": "centre"}]
    specs = [RewardSpec.from_dict({**SPEC, "reward": reward}) for reward in settings]
    with pytest.raises(ConfigError, match="Set 1"):
        make_trainer_reward(specs[0], "trl", record=tmp_path)
    for one in reversed(specs):
        recorder = FlightRecorder(tmp_path)
        Scorer(one, record=recorder)
        with pytest.raises(RunFolderError, match="Record to another folder"):
            Scorer(spec(), record=FlightRecorder(tmp_path))  # the first one may still write
        recorder.close()


def test_a_restarted_trainer_goes_on_in_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(tmp_path, steps=1)
    assert "earlier start" not in caplog.text
    recorders = [FlightRecorder(tmp_path) for _ in range(2)]  # of the same start
    for scorer in [Scorer(spec(), record=one) for one in recorders]:
        scorer.score(*batch("good", "plain"), progress=TrainerProgress(0, 0))
    for one in recorders:
        one.close()
    found = rows(tmp_path)
    assert [row.get("start", 1) for row in found] == [1] * 4 + [2] * 4
    assert [row.get("start", 1) for row in rows(tmp_path, "metrics.jsonl")] == [1, 2, 2]
    assert "has rows of an earlier start" in caplog.text
    assert [row["index"] for row in found] == list(range(8))
    assert len({row["group"] for row in found}) == 4


def test_a_full_queue_is_counted_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "_MOST_WAITING", 8)
    free, write = threading.Event(), recording._Writer._write
    monkeypatch.setattr(recording._Writer, "_write", lambda *call: (free.wait(20), write(*call)))
    recorder, scorer = opened(tmp_path)
    started = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            assert len(scorer.score(*batch(*WORDS), step=step).rewards) == 4
    assert time.perf_counter() - started < 10
    free.set()
    recorder.close()
    assert len(rows(tmp_path)) == 8
    assert RunRecords(tmp_path).count_dropped() == {"queue_full": 12}
    assert caplog.text.count("slower than the trainer") == 1
    note = " ".join(make_audit([tmp_path], {}).notes)
    assert "12 samples of the run were not recorded (queue_full 12)" in note


def test_the_byte_limit_holds_and_is_counted(tmp_path: Path) -> None:
    recorded(tmp_path / "whole", steps=1)
    limit = (tmp_path / "whole" / "rollouts.jsonl").stat().st_size
    recorded(tmp_path / "part", steps=3, max_bytes=limit)
    assert (tmp_path / "part" / "rollouts.jsonl").stat().st_size <= limit
    assert len(rows(tmp_path / "part")) == 4
    assert RunRecords(tmp_path / "part").count_dropped() == {"byte_limit": 8}
    assert len(rows(tmp_path / "part", "metrics.jsonl")) == 3


class _Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text of mine")


def test_what_cannot_be_written_never_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, scorer = opened(tmp_path / "run")
    for column in (_Odd(), 10**400, object()):
        scorer.score(*batch("good", column=column))
    assert recorder.flush()
    found = rows(tmp_path / "run")
    assert len(found) == 2  # 10**400 is a number in JSON, and an object is its text
    (tmp_path / "run").rename(tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        assert scorer.score(*batch("good", "plain")).rewards == [0.9, 0.2]
        assert recorder.flush()
    recorder.close()
    assert "Training goes on" in caplog.text


def test_keys_do_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "sk-very-secret")
    file = tmp_path / "reward.toml"
    file.write_text(
        '[[graders]]\nname = "quality"\ntype = "llm"\ntemplate = "{response}"\n'
        'score_range = [0.0, 1.0]\n[judges.main]\ntype = "openai"\nmodel = "m"\n'
        'base_url = "http://127.0.0.1:9/v1"\napi_key_env = "SECRET_OF_MINE"\n'
        'extra_body = {key = "${SECRET_OF_MINE}"}\n[missing]\npatience_s = 0.0\n'
    )
    recorder = FlightRecorder(tmp_path / "run")
    Scorer(file, record=recorder)
    recorder.close()
    assert b"sk-very-secret" not in (tmp_path / "run" / "run.json").read_bytes()


def test_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=recorded, args=(tmp_path, 30)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    found = rows(tmp_path)
    assert [row["index"] for row in found] == list(range(360))
    assert len({row["group"] for row in found}) == 180
    writers = {row["writer"]: row["rows"] for row in rows(tmp_path, "recorder.jsonl")}
    assert list(writers.values()) == [120] * 3


def test_a_forked_child_and_a_pickled_scorer_record_too(tmp_path: Path) -> None:
    recorder, scorer = opened(tmp_path)
    scorer.score(*batch("good", "plain"))
    assert recorder.flush()
    again = pickle.loads(pickle.dumps(scorer))
    again.score(*batch("good", "plain"))
    again.recorder.close()
    child = os.fork()
    if not child:
        done = recorder.flush()
        recorder._writer_here()
        recorder.close()
        os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0
    recorder.close()
    assert len(rows(tmp_path)) == 4


_KILLED = """
import sys
from tests.unit.test_flight_recorder import WORDS, batch, spec
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.scoring import Scorer
from adjudge.trainers.metrics import TrainerProgress
scorer = Scorer(spec(), record=FlightRecorder(sys.argv[1]))
for step in range(10_000):
    scorer.score(*batch(*WORDS), progress=TrainerProgress(step, step))
"""


def test_a_killed_run_leaves_a_readable_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    run = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], env=environ)
    path, deadline = tmp_path / "rollouts.jsonl", time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 20_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    before = len(list(RunRecords(tmp_path)))
    assert before > 20
    with path.open("ab") as file:  # as if it had been killed while it wrote
        file.write(b'{"index":99999,"step":7,"resp')
    assert len(list(RunRecords(tmp_path))) == before
    recorded(tmp_path, steps=1)
    found = rows(tmp_path)
    assert len(found) == before + 4
    assert all(b["index"] > a["index"] for a, b in pairwise(found))
    assert make_audit([tmp_path], {}).count == before + 4


def test_a_stop_file_ends_the_run_before_its_next_step(tmp_path: Path) -> None:
    recorder, scorer = opened(tmp_path)
    scorer.score(*batch("good"))
    (tmp_path / STOP_FILE).write_text('{"rule": "collapse", "seen": "both fall"}')
    assert recorder.flush()
    with pytest.raises(TrainingStopped, match="collapse: both fall"):
        scorer.score(*batch("good"))
    recorder.acknowledge_stop()
    scorer.score(*batch("good"))
    recorder.close()


@pytest.mark.parametrize(
    "foreign",
    [
        b'{"index":0,"reward":1}\n' * 3,
        b"\0" * 70_000,
        b'{"ind',
    ],
)
def test_a_foreign_last_row_does_not_number_the_rows_anew(tmp_path: Path, foreign: bytes) -> None:
    recorded(tmp_path, steps=1)
    recorder, scorer = opened(tmp_path)
    file = tmp_path / "rollouts.jsonl"
    for step in (1, 2):  # as a process that begins, and as one that has written
        with file.open("ab") as log:
            log.write(foreign + b"\n" * (foreign != b'{"ind'))
        scorer.score(*batch(*WORDS), progress=TrainerProgress(step, step))
        assert recorder.flush(20)
    recorder.close()
    found = [record.index for record in RunRecords(tmp_path)]
    assert found == list(range(12))
