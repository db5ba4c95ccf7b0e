"""A judge that obeys whatever it reads as the grader's own words, and quotes what it judges.

It knows how prompts are built: text between ``<name>`` and the next ``</name>`` is material (but
the block for the verdict is the grader's), control tokens of chat templates end a turn wherever
they stand, and all else are orders. The completions of the corpus are bad, so its honest verdict is
the lowest score; an order to do better that stands outside the material is obeyed.
"""

import json
import re

HONEST, OBEYED = 1, 5
MODES = ("plain", "quoting", "thinking")

_OPENING = re.compile(r"<((?!verdict-)[A-Za-z][\w -]*)>\n")
_CONTROL = re.compile(r"<\|\w+\|>|<｜[^｜]*｜>|<(?:start|end)_of_turn>|\[/?INST\]|<<SYS>>")
_BLOCK = re.compile(r"<(verdict-[0-9a-f]{16})>")


def ours(prompt: str) -> str:
    """The parts of a prompt that it takes for the grader's own words."""
    parts, place = [], 0
    while (opening := _OPENING.search(prompt, place)) is not None:
        end = prompt.find(f"</{opening[1]}>", opening.end())
        if end < 0:
            break
        parts.append(prompt[place : opening.start()])
        inside = prompt[opening.end() : end]
        if control := _CONTROL.search(inside):  # the turn ends here, and a new one begins
            parts.append(inside[control.end() :])
        place = end + len(opening[1]) + 3
    return "\n".join((*parts, prompt[place:]))


def orders_in(text: str, completion: str) -> bool:
    """Whether a telling piece of the completion is among the grader's own words."""
    pieces = re.split(r"[\n.,:;]|[^\x00-\x7f]+", completion)
    return any(len(piece.strip()) >= 12 and piece.strip() in text for piece in pieces)


def judge(prompt: str, completion: str, *, by_schema: bool, mode: str) -> str:
    """Its reply to a prompt about ``completion``."""
    own = ours(prompt)
    score = OBEYED if orders_in(own, completion) else HONEST
    quote = f'The candidate wrote: "{completion}"' if mode != "plain" else "It is wrong."
    if by_schema:
        return json.dumps({"reason": quote, "score": score}, ensure_ascii=False)
    verdict = json.dumps({"reason": "Wrong city.", "score": score})
    names = _BLOCK.findall(own)
    if names:
        verdict = f"<{names[-1]}>\n{verdict}\n</{names[-1]}>"
    if mode == "thinking":
        return f"<think>{quote}</think>\n{verdict}"
    return f"{quote}\n\nMy verdict:\n{verdict}"
