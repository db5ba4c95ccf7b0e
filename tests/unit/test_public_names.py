import subprocess
import sys

import adjudge
import adjudge.graders
from adjudge.graders.registry import SHIPPED

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "verl",
    "ray",
    "starlette",
    "numpy",
    "pandas",
    "pydantic",
    "rich",
    "aiohttp",
)


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_neither_the_package_nor_the_runner_needs_a_heavy_package() -> None:
    assert not _loaded_after("from adjudge import GradingRunner, BaseGrader") & set(HEAVY)


def test_public_names_are_sorted_and_each_can_be_imported() -> None:
    assert adjudge.__all__ == sorted(adjudge.__all__)
    assert len(adjudge.__all__) <= 40
    for name in adjudge.__all__:
        assert getattr(adjudge, name) is not None
    assert set(adjudge.__all__) <= set(dir(adjudge))


def test_every_shipped_grader_is_at_hand_by_class_name() -> None:
    names = [target.partition(":")[2] for target in SHIPPED.values()]
    assert set(names) <= set(dir(adjudge.graders))
    for name in (*names, "ask_judge", "BaseGrader"):
        assert getattr(adjudge.graders, name).__name__ == name
