"""Cards of judges that nobody trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from adjudge.graders.llm.trained_judge_card import CARD_FILE, JudgeCard


def make_card(**more: Any) -> JudgeCard:
    """A card of a scalar judge without any facts but ``more``."""
    given: dict[str, Any] = {
        "adjudge": "0", "kind": "scalar", "method": "bradley_terry", "mode": None, "label": "mine",
        "created": "", "base": {}, "data": {}, "config": {}, "validation": {}, "max_length": 64,
    }  # fmt: skip
    return JudgeCard(**(given | more))


def write_card(folder: Path, **more: Any) -> JudgeCard:
    """Such a card, written into ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    card = make_card(**more)
    (folder / CARD_FILE).write_bytes(msgspec.json.encode(card))
    return card
