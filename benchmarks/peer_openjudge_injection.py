"""py-openjudge's RelevanceGrader on the same completions; run by its own interpreter.

Reads one JSON object (url, model, query, corpus); prints the scores by class, ``null`` for errors.
"""

import asyncio
import json
import sys

from loguru import logger
from openjudge.graders.common.relevance import RelevanceGrader
from openjudge.models.openai_chat_model import OpenAIChatModel


async def main() -> None:
    asked = json.load(sys.stdin)
    model = OpenAIChatModel(model=asked["model"], base_url=asked["url"])
    grader = RelevanceGrader(model=model)
    scores: dict[str, list[float | None]] = {}
    for name, several in asked["corpus"].items():
        scores[name] = []
        for text in several:
            result = await grader.aevaluate(query=asked["query"], response=text)
            scores[name].append(getattr(result, "score", None))
    print(json.dumps(scores))


logger.remove()
asyncio.run(main())
