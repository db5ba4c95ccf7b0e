"""Whatever comes when: a group that meets one by one is rewarded as if it had come at once."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from hypothesis import given, settings, strategies as st
from tests.unit.helpers.meeting import function, run_here, sample, settings as service_settings

from adjudge import ErrorKind, RewardResult
from adjudge.rewards.spec import GroupStep
from adjudge.service.rendezvous import Rendezvous
from adjudge.service.spec_backend import request_to_sample
from adjudge.wire import GroupRequest, JudgeResponse

TIMEOUT_S = 50.0
KINDS = ("invalid_input", "budget", "unparsable", "timeout")


class Member(NamedTuple):
    value: float | str
    fate: str
    comes_at: float
    takes: float
    leaves_after: float | None


members = st.builds(
    Member,
    st.one_of(st.floats(0, 1, allow_subnormal=False), st.sampled_from(KINDS)),
    st.sampled_from(["there", "there", "there", "aborted", "absent"]),
    st.sampled_from([0.0, 1.0, 7.0, 49.0]),
    st.sampled_from([0.0, 2.0, 20.0]),
    st.sampled_from([None, None, 0.5, 3.0]),
)
STEPS = get_args(GroupStep)


def request(place: int, member: Member, size: int, *, aborted: bool = False) -> GroupRequest:
    completion = "x" * (1 + place % 3)
    return sample(
        f"s{place}",
        member.value,
        size=size,
        wait=member.takes,
        completion=completion,
        aborted=aborted,
    )


async def visit(place: Rendezvous, index: int, member: Member, size: int) -> JudgeResponse | None:
    """One sample's way: it may come late, be announced, lose its connection and come again."""
    await asyncio.sleep(member.comes_at)
    if member.fate == "absent":
        return None
    asked = request(index, member, size, aborted=member.fate == "aborted")
    if member.leaves_after is not None and member.fate == "there":
        first = asyncio.create_task(place.join(asked))
        await asyncio.wait([first], timeout=member.leaves_after)
        first.cancel()
    return await place.join(asked)


async def at_once(made: Any, group: Sequence[GroupRequest]) -> dict[str, RewardResult]:
    """The same samples by the reward function itself."""
    named = sorted(group, key=lambda one: one.request_id or "")
    samples = [request_to_sample(one, place) for place, one in enumerate(named)]
    results = await made.compute_batch_scores({"g": samples})
    by_place = {result.original_index: result for result in results}
    return {one.request_id or "": by_place[place] for place, one in enumerate(named)}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(members, min_size=1, max_size=6),
    st.sampled_from(STEPS),
    st.sampled_from([{}, {"policy": "drop_group"}]),
    st.booleans(),
    st.integers(0, 2),
)
def test_rewards_are_those_of_the_group_at_once(
    group: list[Member], step: str, policy: dict[str, Any], listwise: bool, more: int
) -> None:
    size = len(group) + more

    async def main() -> None:
        def made() -> Any:
            return function(listwise=listwise, group=step, policy={**policy, "max_missing": 1.0})

        place = Rendezvous(made(), service_settings(group_timeout_s=TIMEOUT_S))
        visits = [asyncio.create_task(visit(place, i, m, size)) for i, m in enumerate(group)]
        answers = [await one for one in visits]
        come = [i for i, m in enumerate(group) if m.fate != "absent"]
        first = min((group[i].comes_at for i in come), default=0.0)
        # All tasks end by the deadline of the last that was let in.
        assert asyncio.get_running_loop().time() <= 49 + TIMEOUT_S + 60
        await asyncio.sleep(TIMEOUT_S)  # a group of announcements alone waits on, for nobody
        assert not place._open
        in_time = [i for i in come if group[i].comes_at < first + TIMEOUT_S]
        there = [i for i in in_time if group[i].fate == "there"]
        whole = await at_once(made(), [request(i, group[i], size) for i in there]) if there else {}
        for index, answer in enumerate(answers):
            check(index, group[index], answer, whole)
        counts = [
            (one.metadata or {}).get("group") for i, one in enumerate(answers) if one and i in there
        ]
        aborted = len(in_time) - len(there)
        stated = {
            "size": size,
            "present": len(there),
            "aborted": aborted,
            "absent": size - len(in_time),
        }
        # After a failure that may pass, those that it concerned and that come again meet anew.
        meets_again = any(group[i].value == "timeout" for i in there)
        assert meets_again or all(one == stated for one in counts)

    run_here(main())


def check(
    index: int, member: Member, answer: JudgeResponse | None, whole: dict[str, RewardResult]
) -> None:
    if answer is None:
        assert member.fate == "absent"
        return
    assert answer.request_id == f"s{index}"
    wanted = whole.get(f"s{index}")
    if wanted is None:
        assert answer.score is None
        assert answer.error is not None
        expected = ErrorKind.CANCELLED if member.fate == "aborted" else ErrorKind.INCOMPLETE
        assert answer.error.kind is expected
        return
    assert answer.score == wanted.score
    kinds = answer.error and answer.error.kind, wanted.missing and wanted.missing.kind
    assert kinds[0] == kinds[1]
