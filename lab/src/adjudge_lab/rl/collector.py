"""Collecting a step's rollouts: the policy plays, and each rollout is judged as it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from adjudge.engine.loop import Job
from adjudge.errors import RolloutError
from adjudge.runner.journal import sample_key
from adjudge.stats import mean
from adjudge.trainers.scoring import Scorer
from adjudge.types import GradedSample, RewardResult
from adjudge_lab.environments import DatasetTask, Episode, Task
from adjudge_lab.rl.episodes import (
    OpenLanes,
    apply_stepwise_rewards,
    draw_training_seeds,
    episode_to_sample,
    play_episodes,
)
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.rollouts import (
    Rollout,
    RolloutBatch,
    RolloutStore,
    RolloutTokens,
    ScoredRollouts,
    compute_group_advantages,
    compute_turn_shares,
    group_variances,
)
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.scaffold import StepScaffold, scaffold_metrics


class RolloutCollector:
    """Plays and judges the rollouts of one step after the other.

    Judging runs on the engine's loop while the thread that calls goes on: generating what is left,
    or computing. ``store`` keeps what was played, and what was said of it, until the policy is
    saved, so that a run that was killed neither plays nor pays again.
    """

    def __init__(
        self,
        run: RunFile,
        task: Task,
        scorer: Scorer,
        player: LocalPlayer,
        *,
        store: RolloutStore | None = None,
    ) -> None:
        self._run, self._task, self._scorer, self._player = run, task, scorer, player
        self._store = store
        training = run.training
        self._per_step = training.rollouts_per_step
        seeds = draw_training_seeds(task, run.evaluation.held_out, training.seed)
        self._seeds = list(islice(seeds, training.steps * self._per_step // training.group_size))
        self._said: dict[str, GradedSample] = {}

    def generate(self, step: int, version: int) -> RolloutBatch:
        """The rollouts of ``step`` (from 1), their judging under way.

        ``version``: how many updates the policy has had. Raises
        :class:`~adjudge.errors.RolloutError` where not one episode could be played: nothing is
        learned from such a step, and a resumed run plays it again.
        """
        started = time.perf_counter()
        batch = RolloutBatch(step, version)
        kept = self._store and self._store.load(step)
        self._said = self._store.load_judgements(step) if self._store is not None else {}
        if kept:
            batch.version, batch.rollouts = kept
            for rollout in batch.rollouts:
                self._begin(batch, rollout)
        else:
            self._play(batch)
            _refuse_failed_batch(batch)
            if self._store is not None:
                self._store.save(batch)
        batch.generate_s = time.perf_counter() - started
        return batch

    def score_batch(self, batch: RolloutBatch) -> ScoredRollouts:
        """Wait for the judges, and say what each rollout came to.

        Raises what judging raises: :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError`.
        """
        started = time.perf_counter()
        self._await(batch)
        waited = time.perf_counter() - started
        whole = [one for one in batch.rollouts if one.judged is not None]
        scored = self._scorer.compute_rewards(
            [one.judged for one in whole if one.judged is not None],
            [one.sample for one in whole if one.sample is not None],
            step=batch.step,
        )
        of_place = {result.original_index: result for result in scored.results}
        results = [of_place.get(one.place) or self._failed(one) for one in batch.rollouts]
        shares = [
            compute_turn_shares(self._run, rollout, result)
            for rollout, result in zip(batch.rollouts, results, strict=True)
        ]
        metrics = {
            **scored.metrics,
            **self._metrics(batch, results),
            "generate_s": batch.generate_s,
            "judge_wait_s": waited,
            "lag": float(batch.step - 1 - batch.version),
        }
        groups = [one.group for one in batch.rollouts]
        advantages = compute_group_advantages([one.score for one in results], shares, groups)
        return ScoredRollouts(batch, results, shares, advantages, metrics)

    def _play(self, batch: RolloutBatch) -> None:
        run = self._run
        count, size = self._per_step, run.training.group_size
        first = (batch.step - 1) * count // size
        seeds = [self._seeds[first + place // size] for place in range(count)]
        groups = [f"{batch.step}/{place // size}" for place in range(count)]
        scaffold = self._scaffold(batch.step, seeds, groups)
        rollouts: dict[int, Rollout] = {}

        def ended(place: int, episode: Episode) -> None:
            if run.training.stepwise:
                apply_stepwise_rewards(
                    episode,
                    run.training.step_rewards_beta,
                    run.training.step_rewards_indicator_lambda,
                )
            said = self._player.conversations.get(place)
            tokens = RolloutTokens.of(None if episode.error else said, self._player.end)
            rollout = Rollout(place, groups[place], episode, tokens)
            if scaffold is not None:
                self._note(rollout, scaffold)
            rollouts[place] = rollout
            self._begin(batch, rollout, rollouts)

        async def job(lanes: OpenLanes) -> None:
            lanes = lanes if scaffold is None else scaffold.lanes(lanes)
            await play_episodes(self._task, seeds, lanes, most=self._most(), on_episode=ended)

        self._player.reseed(f"step {batch.step}")
        self._player.run(job)
        batch.rollouts = [rollouts[place] for place in range(count)]

    def _scaffold(
        self, step: int, seeds: Sequence[int], groups: Sequence[str]
    ) -> StepScaffold | None:
        wanted, task = self._run.rollout.scaffold, self._task
        if wanted is None or not isinstance(task, DatasetTask):
            return None
        return StepScaffold(self._run, wanted, task, step=step, seeds=seeds, groups=groups)

    def _note(self, rollout: Rollout, scaffold: StepScaffold) -> None:
        """Say what ``rollout`` was shown; the prompt that is trained on is that of the dataset."""
        rollout.scaffold = scaffold.revealed[rollout.place]
        wanted, episode = self._run.rollout.scaffold, rollout.episode
        if wanted is None or wanted.participate_training or episode.error is not None:
            return
        if scaffold.is_scaffolded(rollout.place):
            tokens = rollout.tokens
            tokens.read, tokens.prompt = tokens.prompt, self._player.opening(episode.messages[:-1])

    def _most(self) -> int:
        rollout = self._run.rollout
        return min(rollout.episodes_per_batch or self._per_step, rollout.max_concurrent_rollouts)

    def _begin(
        self, batch: RolloutBatch, rollout: Rollout, so_far: dict[int, Rollout] | None = None
    ) -> None:
        """Start judging ``rollout``; where graders compare, its group when the last has ended."""
        if rollout.episode.error is None:
            index = rollout.place % self._run.training.group_size
            # Equal words in two steps are two questions to the judge, each with its own answer.
            rollout.episode.columns["rollout"] = f"{rollout.group}/{index}"
            rollout.sample = episode_to_sample(rollout.episode, rollout.place, index)
        if not self._scorer.needs_whole_groups:
            self._ask(batch, [rollout])
            return
        played = batch.rollouts if so_far is None else so_far.values()
        # In their order, whoever ended first: a comparison may depend on it, and so does its key.
        group = sorted(
            (one for one in played if one.group == rollout.group), key=lambda one: one.place
        )
        done = so_far is not None or rollout is group[-1]
        if done and len(group) == self._run.training.group_size:
            self._ask(batch, group)

    def _ask(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> None:
        asked = [one for one in rollouts if one.sample is not None]
        if asked and not self._is_known(asked):
            batch.judging.append(Job(self._judge(batch.step, asked)))

    def _is_known(self, asked: Sequence[Rollout]) -> bool:
        """Take what was said of ``asked`` before the run was interrupted, if it was all said."""
        if not self._said:
            return False
        known = [self._said.get(key or "") for key in _sample_keys(asked)]
        if not all(known):
            return False
        for rollout, judged in zip(asked, known, strict=True):
            rollout.judged = judged
        return True

    async def _judge(self, step: int, rollouts: Sequence[Rollout]) -> None:
        samples = [one.sample for one in rollouts if one.sample is not None]
        judged = await self._scorer.grade(samples, [one.group for one in rollouts], step=step)
        for rollout, one in zip(rollouts, judged, strict=True):
            rollout.judged = one
        if self._store is not None:
            self._store.append_judgements(step, _sample_keys(rollouts), judged)

    @staticmethod
    def _await(batch: RolloutBatch) -> None:
        try:
            for job in batch.judging:
                job.done.result()
        except BaseException:
            for job in batch.judging:
                job.cancel()
            raise

    def _failed(self, rollout: Rollout) -> RewardResult:
        """No rollout, no reward."""
        info = dict.fromkeys(self._scorer.info_keys)
        index = rollout.place % self._run.training.group_size
        return RewardResult(
            rollout.place, index, None, info, {"source": "none"}, missing=rollout.episode.error
        )

    def _metrics(self, batch: RolloutBatch, results: Sequence[RewardResult]) -> dict[str, float]:
        rewards = [one.score for one in results]
        env = [one.episode.env_return for one in batch.rollouts]
        whole = [one for one in batch.rollouts if one.episode.error is None]
        failed = [one.episode.error.kind for one in batch.rollouts if one.episode.error]
        averaged = {
            "mean_return": [reward for reward in rewards if reward is not None],
            "env_return": [value for value in env if value is not None],
            "judge_return": self._judged_parts(results),
            "length": [float(one.tokens.written_count) for one in whole],
        }
        found: dict[str, Any] = {
            **{name: mean(values) for name, values in averaged.items()},
            "turns": mean([float(max(one.tokens.turns) + 1) for one in whole]),
            "rollouts": float(len(results)),
            **{f"rollouts/{name}": float(len(values)) for name, values in averaged.items()},
            "rollout/failed_frac": len(failed) / len(results) if failed else None,
        }
        if (gold := self._run.sentinel.gold) is not None:
            known = [one.reward_info.get(f"{gold}_score") for one in results]
            found["rollouts/gold"] = float(len(results) - known.count(None))
        found.update(scaffold_metrics([one.scaffold for one in batch.rollouts]))
        for kind in set(failed):
            found[f"rollout/failed_frac/{kind}"] = failed.count(kind) / len(results)
        found["judge/env_mean"] = found["env_return"]
        if self._run.judge.enabled and self._run.judge.combine_mode == "weighted_sum":
            drawn = [one.judged is not None and one.judged.sampled for one in batch.rollouts]
            parts = [one if there else None for one, there in zip(rewards, drawn, strict=True)]
            found.update(group_variances(parts, env, self._run.training.group_size))
        return {name: value for name, value in found.items() if value is not None}

    def _judged_parts(self, results: Sequence[RewardResult]) -> list[float]:
        """Each rollout's judge_scale · J, of those that have a reward."""
        judge, parts = self._run.judge, []
        if not judge.enabled:
            return []
        for result in results:
            info = result.reward_info
            outcome = info.get("outcome") if judge.outcome_weight else 0.0
            events = info.get("events") if judge.event_weight else 0.0
            if result.score is not None and outcome is not None and events is not None:
                part = judge.outcome_weight * outcome + judge.event_weight * events
                parts.append(judge.judge_scale * part)
        return parts


def _sample_keys(rollouts: Sequence[Rollout]) -> list[str | None]:
    """The samples of ``rollouts`` by their content, ``None`` where it is no plain data."""
    return [sample_key(one.sample.fields()) for one in rollouts if one.sample is not None]


def _refuse_failed_batch(batch: RolloutBatch) -> None:
    errors = [one.episode.error for one in batch.rollouts]
    first = errors[0]
    if first is not None and None not in errors:
        raise RolloutError(
            f"step {batch.step}: none of the {len(errors)} episodes could be played (the "
            f"first: {first.kind}: {first.error})"
        )
