"""Crafter (Hafner 2021, arXiv 2109.06780) in words: survive, gather, craft; 22 achievements.

The package ``crafter`` is the game; here are its view as text and a reply's actions as steps.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from adjudge.errors import ConfigError
from adjudge_lab.environments.tasks import Step

_FACING = {
    "move_left": (-1, 0),
    "move_right": (1, 0),
    "move_up": (0, -1),
    "move_down": (0, 1),
}
_VITALS = ("health", "food", "drink", "energy")
_CREATURES = ("player", "cow", "zombie", "skeleton", "arrow", "plant")
_SIGHT_X, _SIGHT_Y = 4, 3
_LONGEST_REPLY = 4000
_WORDS = re.compile(r"[a-z_]+")

_INSTRUCTIONS = """\
You play Crafter, a world of grass, water, trees, stone, caves and animals, on a grid. Stay alive \
and unlock as many achievements as you can: {achievements}.
"do" acts on what you face: it collects, attacks, eats and drinks. Moving turns you, and moves you \
where the way is free. Tables and furnaces must be near for what they make.
Answer with your reasons, then a last line "Actions:" with 1 to {most} of these, separated by \
commas: {actions}."""

_making = threading.Lock()


class CrafterEnvironment:
    """Text Crafter; one reply is 1 to ``max_actions`` game steps.

    ``length``: game steps after which an episode is over (the game's own is 10,000). ``area``: the
    world's size. ``show_map``: whether observations end with a map. The environment's reward is
    Crafter's: 1 for each achievement unlocked for the first time, ±.1 per point of health.
    ``info``: ``achievements`` (unlocked, sorted), ``steps``, ``inventory``. The same seed gives the
    same world; how its creatures move may differ between processes, since the game keeps them in
    sets.

    Raises :class:`~adjudge.errors.ConfigError` where ``crafter`` is not installed.
    """

    name = "crafter"

    def __init__(
        self,
        *,
        length: int = 1000,
        max_actions: int = 5,
        area: tuple[int, int] = (64, 64),
        show_map: bool = True,
    ) -> None:
        try:
            import crafter  # noqa: PLC0415  (brings numpy and pictures)
            from crafter import constants  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"env_name 'crafter' needs {error.name}, which is not installed. Run: pip "
                "install crafter"
            ) from None
        self._make, self._constants = crafter.Env, constants
        self._length, self._most, self._area = length, max_actions, area
        self._show_map = show_map
        self._actions: list[str] = list(constants.actions)
        self._kinds = ["nothing", *constants.materials, *_CREATURES]
        self.instructions = _INSTRUCTIONS.format(
            achievements=", ".join(constants.achievements),
            actions=", ".join(self._actions),
            most=max_actions,
        )
        self._game: Any = None
        self._info: dict[str, Any] = {}
        self._facing = (0, 1)
        self._steps = 0

    def reset(self, seed: int) -> str:
        """Begin a world; returns what is around the player."""
        with _making:  # a group's episodes ask for the same world at the same time
            begun = _begun(self._make, self._area, self._length, seed)
        self._game = copy.deepcopy(begun)
        self._facing, self._steps = (0, 1), 0
        self._act("noop")
        return self._describe_state([])

    def step(self, reply: str) -> Step:
        """Do a reply's actions, until one of them ends the episode."""
        if self._game is None:
            raise RuntimeError("reset comes before step")
        wanted = self._parse_actions(reply)
        if isinstance(wanted, str):
            return Step(f"{wanted}\n\n{self._describe_state([])}", 0.0, False, self._facts())
        reward, done, happened = 0.0, False, []
        for action in wanted:
            gained, done, news = self._act(action)
            reward += gained
            happened += news
            if done:
                break
        if done:
            happened.append("The episode is over.")
        return Step(self._describe_state(happened), reward, done, self._facts())

    def _act(self, action: str) -> tuple[float, bool, list[str]]:
        before = set(self._unlocked())
        _, reward, done, self._info = self._game.step(self._actions.index(action))
        self._facing = _FACING.get(action, self._facing)
        self._steps += 1
        news = [f"Achievement: {name}." for name in self._unlocked() if name not in before]
        return float(reward), bool(done), news

    def _parse_actions(self, reply: str) -> list[str] | str:
        """The reply's actions, or why there are none: those of its last line that says any."""
        line = reply[-_LONGEST_REPLY:].rstrip().rpartition("\n")[2].lower()
        words = _WORDS.findall(
            line.partition("actions:")[2] or line.partition("action:")[2] or line
        )
        unknown = [word for word in words if word not in self._actions]
        if not words or unknown:
            shown = f"{unknown[0][:40]!r} is no action" if unknown else "no action"
            return f'Not understood ({shown}): end with a line "Actions:" and 1 to {self._most}.'
        if len(words) > self._most:
            return f"Not done: {len(words)} actions; at most {self._most} go."
        return words

    def _unlocked(self) -> list[str]:
        found: dict[str, int] = self._info.get("achievements", {})
        return sorted(name for name, count in found.items() if count)

    def _facts(self) -> dict[str, Any]:
        inventory = {name: int(count) for name, count in self._info["inventory"].items()}
        return {"achievements": self._unlocked(), "steps": self._steps, "inventory": inventory}

    def _describe_state(self, happened: list[str]) -> str:
        inventory = self._info["inventory"]
        vitals = ", ".join(f"{name} {inventory[name]}" for name in _VITALS)
        carried = ", ".join(
            f"{name} {count}" for name, count in inventory.items() if count and name not in _VITALS
        )
        dx, dy = self._facing
        lines = [
            *happened,
            f"Step {self._steps} of {self._length}. You: {vitals}.",
            f"You carry: {carried or 'nothing'}.",
            f"You face: {self._at(dx, dy)}.",
            f"Nearest: {self._nearest() or 'nothing of use'}.",
        ]
        if self._show_map:
            lines += ["Map (you are @, in the middle):", *self._map()]
        return "\n".join(lines)

    def _at(self, dx: int, dy: int) -> str:
        """What is so far from the player; beyond the world there is nothing."""
        x, y = (int(at) + by for at, by in zip(self._info["player_pos"], (dx, dy), strict=True))
        width, height = self._area
        if not (0 <= x < width and 0 <= y < height):
            return "nothing"
        kind: str = self._kinds[int(self._info["semantic"][x, y])]
        return kind

    def _around(self) -> Iterator[tuple[int, int, str]]:
        for dy in range(-_SIGHT_Y, _SIGHT_Y + 1):
            for dx in range(-_SIGHT_X, _SIGHT_X + 1):
                if dx or dy:
                    yield dx, dy, self._at(dx, dy)

    def _nearest(self) -> str:
        """The nearest of each kind but the ground, with the way there."""
        found: dict[str, tuple[int, str]] = {}
        for dx, dy, kind in self._around():
            if kind in ("grass", "sand", "path", "nothing"):
                continue
            way = abs(dx) + abs(dy)
            if kind not in found or way < found[kind][0]:
                found[kind] = way, _way(dx, dy)
        ordered = sorted(found.items(), key=lambda pair: pair[1][0])
        return ", ".join(f"{kind} {way}" for kind, (_, way) in ordered)

    def _map(self) -> list[str]:
        kinds = {(dx, dy): kind for dx, dy, kind in self._around()}
        return [
            " ".join(
                f"{kinds.get((dx, dy), '@'):<8}" for dx in range(-_SIGHT_X, _SIGHT_X + 1)
            ).rstrip()
            for dy in range(-_SIGHT_Y, _SIGHT_Y + 1)
        ]


@lru_cache(maxsize=64)
def _begun(make: Any, area: tuple[int, int], length: int, seed: int) -> Any:
    """A world nobody has acted in yet; making one takes a second, and groups begin alike."""
    # Each step draws a picture that nobody looks at: the smallest that the game can draw.
    game = make(area=area, size=(27, 27), length=length, seed=seed)
    game.reset()
    return game


def _way(dx: int, dy: int) -> str:
    """A distance in words.

    >>> _way(-2, 1), _way(0, 3)
    ('2 left 1 down', '3 down')
    """
    across = f"{abs(dx)} {'left' if dx < 0 else 'right'}" if dx else ""
    along = f"{abs(dy)} {'up' if dy < 0 else 'down'}" if dy else ""
    return f"{across} {along}".strip()
