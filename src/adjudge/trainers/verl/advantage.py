"""Marks of missing rewards and rewards of turns in verl's tensors, and ``adjudge_grpo``.

A row whose reward is missing has a number that moves nothing (:func:`.impute_rewards`), and its
``uid`` is a :class:`MissingRewardUid`, equal to the uid it was, by which ``adjudge_grpo``
(``algorithm.adv_estimator``) leaves the row out exactly.

A turn is a run of the policy's own tokens in verl's ``response_mask``. A reward stands on the
last valid token; with ``adjudge_grpo`` what an event adds to it stands on the last token of that
event's turn instead, and the rest where it was, so that each turn of a rollout has its own
advantage. The sum over a row stays the reward.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from types import FrameType
from typing import Any

from adjudge.errors import MissingRewardError
from adjudge.types import RewardResult

ADJUDGE_ESTIMATOR = "adjudge_grpo"
"""Leaves missing rewards out exactly."""

STOCK_ESTIMATOR = "grpo"
"""Gets the group's mean instead, which inflates the others by a logged factor."""


def find_caller_local(function: str, name: str) -> Any:
    """A variable of the nearest call of verl's ``function`` that we are inside of, or ``None``.

    For what verl has and does not hand over; each use says why nothing else gives it.
    """
    caller: FrameType | None = sys._getframe(1)  # noqa: SLF001  (verl passes no more)
    while caller is not None and caller.f_code.co_name != function:
        caller = caller.f_back
    return None if caller is None else caller.f_locals.get(name)


class MissingRewardUid(str):
    """A group's uid on a row whose reward is missing; groups with the others as ever.

    It is the one thing of a row that verl hands to an advantage estimator beside its numbers.
    """

    __slots__ = ()


_log = logging.getLogger("adjudge")


class TurnReward(float):
    """A reward that remembers what each event adds to it; to anybody else the number that it is.

    It is how a reward actor tells a rollout worker, which alone knows the response mask.
    """

    __slots__ = ("events",)
    events: tuple[float, ...]

    def __new__(cls, value: float, events: Sequence[float]) -> TurnReward:
        """``value`` is the reward, and ``events`` add up to a part of it."""
        made = super().__new__(cls, value)
        made.events = tuple(events)
        return made

    def __reduce__(self) -> tuple[type[TurnReward], tuple[float, tuple[float, ...]]]:
        return type(self), (float(self), self.events)


def make_turn_reward(result: RewardResult) -> float | None:
    """The result's score, with its events where it has any."""
    if result.score is None or not result.event_rewards:
        return result.score
    return TurnReward(result.score, result.event_rewards)


class TurnRewardPlacer:
    """Puts events' rewards on their turns; says once where they are no match."""

    def __init__(self) -> None:
        self._told = False

    def place(
        self, tensor: Any, last: Sequence[int], response_mask: Any, rewards: Sequence[float | None]
    ) -> None:
        """Spread ``rewards``, which stand on ``last`` of ``tensor``'s rows, over turns; in place.

        ``tensor`` and ``response_mask`` are ``[B, R]``. What has no events, or one turn, stays as
        it is; so does, with a warning, a reward whose events and turns are not equally many.
        """
        import torch  # noqa: PLC0415  (heavy)

        own = response_mask.bool()
        is_end = own & ~torch.nn.functional.pad(own[:, 1:], (0, 1))
        for row, reward in enumerate(rewards):
            if not isinstance(reward, TurnReward):
                continue
            ends, events = is_end[row].nonzero().flatten().tolist(), reward.events
            if len(ends) < 2:
                continue
            if len(events) == len(ends) and all(map(math.isfinite, events)):
                added = tensor.new_tensor(events)
                # Less what the turns get as the row rounds it, so that its sum is rounded once.
                tensor[row, last[row]] = reward - added.double().sum().item()
                tensor[row, ends] += added
            elif not self._told:
                self._told = True
                _log.warning(
                    "%d events do not fit a response of %d turns, or are no finite numbers. The "
                    "turns of such a rollout share one advantage.", len(events), len(ends),
                )  # fmt: skip


_EPSILON = 1e-6  # verl's own


def adjudge_grpo(
    token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Advantages and returns (the same) ``[B, R]``, as stock ``grpo`` gives for what is there.

    (r − mean)/(std + 1e-6) inside each group of ``index``, std with n − 1; without the division
    under ``norm_adv_by_std_in_grpo=False`` (Dr. GRPO, arXiv 2503.20783). Rows that the reward
    manager marked as missing, or whose reward is NaN, count in no mean or std and get 0. So does a
    reward that is alone in its group: it has nobody to be compared with (stock ``grpo`` takes the
    bare reward there). Raises :class:`~adjudge.errors.MissingRewardError` when all rows are NaN.

    A turn is a run of ones in ``response_mask``. Rewards that stand before a rollout's last turn
    are not credited to what came after: turns then have advantages of their own, of what was still
    to come when each was played. In a group without such rewards, all turns have the rollout's.

    Where verl's V1 trainers call, rows may be outputs of one rollout. As in verl's own ``grpo`` the
    last stands for it in its group, and the others get its advantage.
    """
    # An estimator gets no keys of its rows, and only they say which rows are of one rollout.
    keys = find_caller_local("compute_advantage_for_multi_trajectories", "batch_keys")
    last = find_last_outputs(keys or ())
    if len(last) != len(index) or last == list(range(len(last))):
        spread = _leave_missing_out(token_level_rewards, response_mask, index, config)
        return spread, spread
    rows = sorted(set(last))
    found = _leave_missing_out(token_level_rewards[rows], response_mask[rows], index[rows], config)
    spread = response_mask.new_zeros(response_mask.shape, dtype=found.dtype)
    spread[rows] = found
    outputs = Counter(last)
    for row, final in enumerate(last):
        if outputs[final] > 1:
            first = response_mask[final].int().argmax()
            spread[row] = found[rows.index(final), first] * response_mask[row]
    return spread, spread


def find_last_outputs(keys: Sequence[str]) -> list[int]:
    """For each key ``{uid}_{session}_{output}``, the row of that rollout's last output."""
    final: dict[str, int] = {}
    for row, key in enumerate(keys):
        rollout, _, output = key.rpartition("_")
        if rollout not in final or int(keys[final[rollout]].rpartition("_")[2]) < int(output):
            final[rollout] = row
    return [final[key.rpartition("_")[0]] for key in keys]


def _leave_missing_out(rewards: Any, response_mask: Any, index: Any, config: Any) -> Any:
    import torch  # noqa: PLC0415  (heavy)

    divide = True if config is None else config.get("norm_adv_by_std_in_grpo", True)
    with torch.no_grad():
        scores = rewards.sum(dim=-1)
        turn, ahead = _rewards_to_go(rewards, response_mask)
        advantages = torch.zeros_like(ahead, dtype=scores.dtype)
        missing = scores.isnan()
        if missing.any() and bool((missing | ~response_mask.bool().any(dim=-1)).all()):
            raise MissingRewardError(  # rows without a token are a trainer's padding
                "not one reward of this batch is there; the logs of reward workers say why", []
            )
        groups: dict[Any, list[int]] = defaultdict(list)
        for row, (uid, gone) in enumerate(zip(index, missing.tolist(), strict=True)):
            if not (gone or isinstance(uid, MissingRewardUid)):
                groups[uid].append(row)
        for rows in groups.values():
            if len(rows) > 1:
                advantages[rows] = _group_advantages(scores[rows], ahead[rows], divide=divide)
        return advantages.gather(1, turn) * response_mask


def _rewards_to_go(rewards: Any, response_mask: Any) -> tuple[Any, Any]:
    """Each token's turn ``[B, R]``, and what is still to come at each turn ``[B, T]``, float64.

    What stands behind a turn, up to the next, is that turn's. A rollout of fewer turns, or none,
    has its last turn's number in all further places.
    """
    import torch  # noqa: PLC0415  (heavy)

    own = response_mask.bool()
    starts = own & ~torch.nn.functional.pad(own[:, :-1], (1, 0))
    turn = (starts.cumsum(dim=-1) - 1).clamp(min=0)
    last = (starts.sum(dim=-1) - 1).clamp(min=0)
    turns = int(last.max()) + 1 if len(last) else 1
    added = rewards.new_zeros(len(rewards), turns, dtype=torch.float64)
    added.scatter_add_(1, turn, rewards.double())
    past = torch.nn.functional.pad(added.cumsum(dim=-1)[:, :-1], (1, 0))
    ahead = added.sum(dim=-1, keepdim=True) - past
    places = torch.arange(turns, device=ahead.device)
    return turn, ahead.gather(1, torch.minimum(places, last.unsqueeze(-1)))


def _group_advantages(scores: Any, ahead: Any, *, divide: bool) -> Any:
    """Advantages ``[n, T]``, or ``[n, 1]`` for all turns where no reward came before the last."""
    import torch  # noqa: PLC0415  (heavy)

    if bool((ahead == ahead[:, :1]).all()):  # stock GRPO, to the bit
        centred = scores - torch.mean(scores)
        return (centred / (torch.std(scores) + _EPSILON) if divide else centred).unsqueeze(-1)
    centred = ahead - ahead.mean(dim=0)
    scale = ahead.std(dim=0).max() + _EPSILON if divide else 1.0
    return (centred / scale).to(scores.dtype)
