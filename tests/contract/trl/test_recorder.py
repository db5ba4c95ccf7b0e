"""A real `GRPOTrainer` that records: run by `make test-trl`.

What every command says of a run must be sayable of one that TRL trained.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.contract.trl.tiny_policy import GROUP, new_policy, spec_file, train

from adjudge.runs.records import STOP_FILE, RunRecords
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.trl import make_reward

REASON = "not installed here; run `make test-trl`"
trl: Any = pytest.importorskip("trl", reason=f"trl is {REASON}")
torch: Any = pytest.importorskip("torch", reason=f"torch is {REASON}")

STEPS = 12


class Seen(trl.GRPOTrainer):  # type: ignore[misc]
    """The trainer, keeping what it was given as rewards."""

    def _calculate_rewards(self, *given: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), super()._calculate_rewards(*given)]
        return self.seen[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path]:
    folder = tmp_path_factory.mktemp("run")
    spec = spec_file(folder)
    recorder = FlightRecorder(folder / "recorded")
    reward = make_reward(spec, record=recorder)
    trainer = train(new_policy(), folder, reward, steps=STEPS, trainer_class=Seen)
    recorder.close()
    return folder / "recorded", trainer, spec


def test_every_reward_that_trl_got_is_in_the_folder(run: tuple[Path, Any, Path]) -> None:
    folder, trainer, _ = run
    records = list(RunRecords(folder))
    given = [value for rewards in trainer.seen for value in rewards.view(-1).tolist()]
    assert [one.step for one in records] == [s for s in range(STEPS) for _ in range(8 * GROUP)]
    for record, value in zip(records, given, strict=True):
        assert (record.reward is None) == math.isnan(value)
        if record.reward is not None:
            assert record.reward == pytest.approx(value, abs=1e-6)
        else:
            assert record.missing is not None
            assert record.missing.kind in ("timeout", "refused")
    groups = {record.group_key for record in records}
    assert len(groups) == STEPS * 8
    assert not RunRecords(folder).count_dropped()


def test_a_stop_file_ends_the_training_after_its_step(tmp_path: Path) -> None:
    """TRL ends by its own means: what is trained is there, and nothing is raised."""
    recorder = FlightRecorder(tmp_path / "recorded")
    make = make_reward(spec_file(tmp_path), record=recorder)
    calls = 0

    async def adjudge(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            (tmp_path / "recorded" / STOP_FILE).write_text('{"rule": "length", "seen": "grew"}')
            assert recorder.flush()
        found = await make(*given, **more)
        assert recorder.flush()
        return found

    trainer = train(new_policy(), tmp_path, adjudge, steps=STEPS)
    recorder.close()
    assert trainer.state.global_step == 3
    assert len(list(RunRecords(tmp_path / "recorded"))) == 3 * 8 * GROUP
