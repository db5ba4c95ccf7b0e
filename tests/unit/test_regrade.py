"""``adjudge regrade``: what the record answers, what is asked, and that both are exact."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from typer.testing import Result

from adjudge.rewards import RewardSample, RewardSpec
from adjudge.runs.records import RunRecords
from adjudge.trainers.metrics import TrainerProgress
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.scoring import Scorer

JUDGE = """
CALLS = []

def judge(messages):
    text = messages[-1]["content"]
    CALLS.append(text)
    with (FOLDER / "calls").open("a") as file:
        file.write("x\\n")
    if "odd" in text:
        return "no verdict"
    return {"score": sum(text.count(word) for word in ("good", "kind")) / 4, "reason": "counted"}
"""
SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "{response}"
score_range = [0.0, 1.0]
weight = 1.0

[[graders]]
name = "brief"
type = "length_penalty"
max_length = 8
min_length = 0
weight = 0.5

[[graders]]
name = "named"
type = "string_match"
weight = 0.0

[judges.main]
type = "scripted"
function = "my_judge:judge"

[missing]
patience_s = 0.0
"""
WORDS = ["good", "good kind good", "odd", "plain and long and longer", "kind", "odd good", "x", "y"]


class Case:
    """A recorded run, its spec, and how often its judge was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        source = f"from pathlib import Path\nFOLDER = Path({str(folder)!r})\n{JUDGE}"
        self.judge = f"judge_{abs(hash(folder))}"  # an imported module stays
        (folder / f"{self.judge}.py").write_text(source)
        self.spec = self.write("spec", SPEC)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(text.replace("my_judge", self.judge))
        return path

    def record(self, **options: Any) -> list[float | None]:
        env = {name: options.pop(name) for name in ("env_reward",) if name in options}
        recorder = FlightRecorder(self.run, **options)
        scorer = Scorer(self.spec, record=recorder)
        found = []
        for step in range(3):
            samples = [
                RewardSample(at, at % 4, f"question {at // 4}", f"{word} {step}", None, extra)
                for at, word in enumerate(WORDS)
                for extra in [{"reference": word, **env}]
            ]
            groups = [str(at // 4) for at in range(len(WORDS))]
            found += scorer.score(samples, groups, progress=TrainerProgress(step)).rewards
        recorder.close()
        return found

    @property
    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def regrade(self, spec: Path, *words: str, run: Path | None = None) -> Result:
        command = ("regrade", run or self.run, "--spec", spec, "-q", *words)
        return invoke(*command, COLUMNS="250")

    def offline(self, spec: Path, out: Path, run: Path | None = None) -> Result:
        """The rewards of ``spec`` from the record alone, in the folder ``out``."""
        asked = self.calls
        done = self.regrade(spec, "-o", str(out), "--offline", run=run)
        assert done.exit_code == 0, done.output
        assert self.calls == asked
        return done


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def rewards(folder: Path) -> list[float | None]:
    return [one.reward for one in RunRecords(folder)]


def test_the_same_spec_gives_the_same_rewards_and_asks_nobody(case: Case, tmp_path: Path) -> None:
    before = case.record()
    assert None in before
    done = case.offline(case.spec, tmp_path / "again")
    assert rewards(tmp_path / "again") == before
    assert "No difference: A and B give" in done.stdout
    assert "from the record: quality, brief, named" in done.stderr


def test_groups_that_were_not_drawn_keep_the_environments_reward(
    case: Case, tmp_path: Path
) -> None:
    drawing = "[reward]\ncombine_mode = 'weighted_sum'\nsample_rate = 0.5\nseed = 1\n[missing]"
    case.spec = case.write("spec", SPEC.replace("[missing]", drawing))
    before = case.record(env_reward=1.0)
    kept = [place // 4 for place, reward in enumerate(before) if reward == 1.0]
    assert 0 < len({group for group in kept if kept.count(group) == 4}) < 6
    case.offline(case.spec, tmp_path / "again")
    assert rewards(tmp_path / "again") == before


@pytest.mark.parametrize(
    "change",
    [
        ("weight = 0.5", "weight = 2.0"),
        ("[missing]", "[reward]\ngroup = 'z_score'\n[missing]"),
        ("[missing]", "[reward]\naggregate = 'min'\n[missing]"),
        ("patience_s = 0.0", "patience_s = 0.0\npolicy = 'drop_group'"),
        ("patience_s = 0.0", "patience_s = 0.0\npolicy = 'fallback'\nfallback = 'named'"),
        ("patience_s = 0.0", "patience_s = 0.0\nsuspect = 'min'"),
    ],
)
def test_another_reduction_is_what_the_trainer_would_have_got(
    case: Case, tmp_path: Path, change: tuple[str, str]
) -> None:
    """Against the same rollouts scored under the other spec from the start, exactly."""
    case.record()
    other = case.write("other", SPEC.replace(*change))
    case.offline(other, tmp_path / "out")
    fresh = Case.__new__(Case)
    fresh.folder, fresh.run, fresh.spec = case.folder, tmp_path / "fresh", other
    assert rewards(tmp_path / "out") == fresh.record()


def test_what_is_new_or_changed_is_asked_and_only_that(case: Case, tmp_path: Path) -> None:
    case.record()
    asked = case.calls
    more = '[[graders]]\nname = "tone"\ntype = "llm"\ntemplate = "Tone: {response}"\n'
    other = case.write("other", f"{more}score_range = [0.0, 1.0]\n{SPEC}")
    refused = case.regrade(other, "-o", str(tmp_path / "none"), "--offline")
    assert refused.exit_code == 2
    assert "tone cannot be answered from the record" in " ".join(refused.stderr.split())
    assert not (tmp_path / "none").exists()
    done = case.regrade(other, "-o", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["recorded"] == ["quality", "brief", "named"]
    assert found["asked"] == {"tone": "the run has no such grader"}
    assert case.calls - asked == asked  # one judge's questions, as in the run
    changed = case.write("changed", SPEC.replace("[0.0, 1.0]", "[0.0, 2.0]"))
    done = case.regrade(changed, "--dry-run")
    assert "asked: quality (score_range was [0.0, 1.0], is [0.0, 2.0])" in done.stderr
    judged = case.write("judged", SPEC.replace("[judges.main]", '[judges.main]\nmodel = "other"'))
    assert "asked: quality (judges.main.model" in case.regrade(judged, "--dry-run").stderr
    assert case.calls == 2 * asked


def test_a_graded_run_is_regraded_too(case: Case, tmp_path: Path) -> None:
    before = case.record()
    graded = tmp_path / "graded"
    invoke("grade", case.run, "--spec", case.spec, "-o", graded, "-q")
    assert rewards(graded) == before
    other = case.write("other", SPEC.replace("weight = 0.5", "weight = 2.0"))
    case.offline(other, tmp_path / "one", graded)
    case.offline(other, tmp_path / "two")
    assert rewards(tmp_path / "one") == rewards(tmp_path / "two") != before


def test_a_run_that_does_not_say_its_settings_is_asked_anew(case: Case) -> None:
    case.record()
    (case.run / "run.json").write_text('{"kind": "train"}')
    asked = case.regrade(case.spec, "--dry-run").stderr
    assert "asked: quality (the run does not say its graders' settings" in asked


@pytest.mark.parametrize("detail", ['"a text"', '{"error": "x", "kind": "__class__"}'])
def test_a_record_that_says_something_else_is_refused(
    case: Case, tmp_path: Path, detail: str
) -> None:
    case.record()
    path = case.run / "rollouts.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[3])
    row["details"]["quality"] = json.loads(detail)
    path.write_text("\n".join([*lines[:3], json.dumps(row), *lines[4:]]) + "\n")
    done = case.regrade(case.spec, "-o", str(tmp_path / "out"), "--offline")
    assert done.exit_code == 2
    assert "quality" in done.stderr


def test_events_and_gates_come_back_as_they_were(tmp_path: Path) -> None:
    text = """
        graders = [
            {name = "turn", type = "length_penalty", scope = "event", min_length = 0},
            {name = "right", type = "string_match"},
        ]
        [reward]
        event_weight = 0.5
    """
    spec = tmp_path / "spec.toml"
    spec.write_text(text)
    recorder = FlightRecorder(tmp_path / "run")
    scorer = Scorer(RewardSpec.load(spec), record=recorder)
    samples = []
    for at, words in enumerate((("a", "bbbb"), ("cc", "d"), (), ("e",))):
        turns = [{"role": "assistant", "content": word} for word in words]
        messages = [{"role": "user", "content": "q"}, *turns]
        samples.append(RewardSample(at, at, "q", "d", messages, {"reference": "d"}))
    before = scorer.score(samples, ["g"] * 4).rewards
    recorder.close()
    command = ("regrade", tmp_path / "run", "-s", spec, "-o", tmp_path / "out")
    done = invoke(*command, "--offline", "-q")
    assert done.exit_code == 0, done.output
    assert rewards(tmp_path / "out") == before
    assert None in before  # the one without a turn
