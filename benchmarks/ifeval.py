"""IFEval scoring: ours beside lm-eval's, in one run.

    python benchmarks/ifeval.py [--peer-python PATH] [--data FOLDER] [--rounds N] [--json FILE]

PATH is the Python of an environment with the peer; its task files alone are imported, so
``pip install --no-deps lm-eval`` beside ``nltk==3.9.1 langdetect immutabledict packaging`` is
enough. Without NLTK's trained splitter (a download) the peer splits sentences untrained, and
language detection has seed 0. FOLDER has ``ifeval/input_data.jsonl`` and
``ifeval/responses_*.jsonl``; without it prompts and responses are generated, in the proportions
of the published prompts. Both score every response strictly and loosely, in one thread. Rounds
alternate; the table shows the medians of CPU time and of the rounds' ratios, and how many of the
labels agree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# How often each type stands in the published prompts, with the arguments that are made up here.
TYPES: list[tuple[str, int, dict[str, Any]]] = [
    ("keywords:existence", 39, {"keywords": ["river", "bridge"]}),
    ("keywords:frequency", 42, {"keyword": "boat", "frequency": 3, "relation": "at least"}),
    ("keywords:forbidden_words", 49, {"forbidden_words": ["storm", "rain"]}),
    (
        "keywords:letter_frequency",
        31,
        {"letter": "q", "let_frequency": 4, "let_relation": "less than"},
    ),
    ("language:response_language", 31, {"language": "de"}),
    ("length_constraints:number_sentences", 52, {"num_sentences": 20, "relation": "less than"}),
    ("length_constraints:number_paragraphs", 27, {"num_paragraphs": 4}),
    ("length_constraints:number_words", 52, {"num_words": 300, "relation": "at least"}),
    (
        "length_constraints:nth_paragraph_first_word",
        12,
        {"num_paragraphs": 4, "nth_paragraph": 2, "first_word": "the"},
    ),
    ("detectable_content:number_placeholders", 27, {"num_placeholders": 3}),
    ("detectable_content:postscript", 26, {"postscript_marker": "P.S."}),
    ("detectable_format:number_bullet_lists", 31, {"num_bullets": 3}),
    ("detectable_format:constrained_response", 10, {}),
    ("detectable_format:number_highlighted_sections", 48, {"num_highlights": 3}),
    (
        "detectable_format:multiple_sections",
        14,
        {"section_spliter": "Section", "num_sections": 3},
    ),
    ("detectable_format:json_format", 17, {}),
    ("detectable_format:title", 37, {}),
    ("combination:two_responses", 24, {}),
    ("combination:repeat_prompt", 41, {"prompt_to_repeat": "Write about a river."}),
    ("startend:end_checker", 26, {"end_phrase": "That is all."}),
    ("startend:quotation", 41, {}),
    (
        "change_case:capital_word_frequency",
        25,
        {"capital_frequency": 5, "capital_relation": "at least"},
    ),
    ("change_case:english_capital", 25, {}),
    ("change_case:english_lowercase", 39, {}),
    ("punctuation:no_comma", 66, {}),
]
ENGLISH = [
    "the",
    "river",
    "was",
    "calm",
    "in",
    "the",
    "morning",
    "and",
    "nobody",
    "stood",
    "on",
    "the",
    "old",
    "bridge",
    "a",
    "small",
    "boat",
    "moved",
    "slowly",
    "under",
    "it",
    "while",
    "children",
    "called",
    "from",
    "the",
    "bank",
    "where",
    "their",
    "mother",
    "waited",
    "with",
    "bread",
    "and",
    "cheese",
]
GERMAN = [
    "der",
    "Fluss",
    "war",
    "am",
    "Morgen",
    "ruhig",
    "und",
    "niemand",
    "stand",
    "auf",
    "der",
    "alten",
    "Brücke",
    "ein",
    "kleines",
    "Boot",
    "fuhr",
    "langsam",
    "darunter",
    "hindurch",
    "während",
    "Kinder",
    "vom",
    "Ufer",
    "riefen",
    "wo",
    "ihre",
    "Mutter",
    "mit",
    "Brot",
    "wartete",
]


def generated() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prompts with one or two instructions, and responses of some 250 words each."""
    draws = random.Random(1)
    pool = [(name, kwargs) for name, times, kwargs in TYPES for _ in range(times)]
    draws.shuffle(pool)
    inputs: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    while pool:
        taken = [pool.pop() for _ in range(min(len(pool), draws.choice((1, 1, 2))))]
        names = [name for name, _ in taken]
        prompt = f"prompt {len(inputs)}"
        kwargs = [dict(arguments) for _, arguments in taken]
        inputs.append(
            {"key": len(inputs), "prompt": prompt, "instruction_id_list": names, "kwargs": kwargs}
        )
        responses.append({"prompt": prompt, "response": _response(names, draws)})
    return inputs, responses


def _response(names: list[str], draws: random.Random) -> str:
    words = GERMAN if "language:response_language" in names else ENGLISH
    lines = ["Sure, here it is:"] if draws.random() < 0.2 else []
    for _ in range(draws.randint(3, 6)):
        sentences = [" ".join(draws.choices(words, k=draws.randint(6, 16))) for _ in range(5)]
        lines.append(" ".join(f"{sentence.capitalize()}." for sentence in sentences))
    text = "\n\n".join(lines)
    if "change_case:english_capital" in names:
        return text.upper()
    return text.lower() if "change_case:english_lowercase" in names else text


def stored(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The prompts of a folder with all responses to them, each set under prompts of its own."""
    inputs: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    prompts = _lines(folder / "ifeval" / "input_data.jsonl")
    for file in sorted((folder / "ifeval").glob("responses_*.jsonl")):
        inputs += [{**row, "prompt": f"{file.stem} {row['prompt']}"} for row in prompts]
        responses += [
            {"prompt": f"{file.stem} {row['prompt']}", "response": row["response"]}
            for row in _lines(file)
        ]
    given = {row["prompt"] for row in responses}
    return [row for row in inputs if row["prompt"] in given], responses


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


Labels = list[tuple[list[bool], list[bool]]]


class Ours:
    name = "adjudge"

    def __init__(self, inputs: list[dict[str, Any]], responses: list[dict[str, Any]]) -> None:
        self.inputs, self.responses = inputs, responses

    def score(self) -> tuple[float, Labels]:
        from adjudge.graders.instructions.text_analysis import _answer_for_words
        from adjudge_lab.evaluation.ifeval.report import score_ifeval

        _answer_for_words.cache_clear()
        start = time.process_time()
        rows = score_ifeval(self.inputs, self.responses).rows
        return time.process_time() - start, [(row.strict, row.loose) for row in rows]


class Peer:
    """lm-eval in a process of its own; one line in, one line out for each round."""

    def __init__(self, python: str, inputs: list[Any], responses: list[Any]) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--as-peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.name = self._ask({"inputs": inputs, "responses": responses})["name"]

    def _ask(self, message: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the peer ended: are its packages installed?")
        return json.loads(line)

    def score(self) -> tuple[float, Labels]:
        answer = self._ask("score")
        return answer["seconds"], [(strict, loose) for strict, loose in answer["labels"]]


def serve_as_peer() -> None:
    """What the peer's Python runs: lm-eval's own two functions on every row."""
    name, utils = _lm_eval()
    given = json.loads(sys.stdin.readline())
    answers = {row["prompt"]: row["response"] for row in given["responses"]}
    fields = ("key", "instruction_id_list", "prompt", "kwargs")
    examples = [utils.InputExample(**{f: row[f] for f in fields}) for row in given["inputs"]]
    print(json.dumps({"name": name}), flush=True)
    for _ in sys.stdin:
        random.seed(0)
        labels = []
        start = time.process_time()
        for one in examples:
            strict = utils.test_instruction_following_strict(one, answers[one.prompt])
            loose = utils.test_instruction_following_loose(one, answers[one.prompt])
            labels.append((strict.follow_instruction_list, loose.follow_instruction_list))
        seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "labels": labels}), flush=True)


def _lm_eval() -> tuple[str, Any]:
    """The peer's scoring module, without the packages that its other tasks need."""
    import importlib
    import importlib.metadata
    import types

    distribution = importlib.metadata.distribution("lm_eval")
    root = Path(str(distribution.locate_file("lm_eval")))
    for module, folder in (("lm_eval", root), ("lm_eval.tasks", root / "tasks")):
        sys.modules[module] = types.ModuleType(module)
        sys.modules[module].__path__ = [str(folder)]
    import langdetect  # type: ignore[import-untyped,import-not-found,unused-ignore]  # the peer's
    import nltk  # type: ignore[import-untyped,import-not-found,unused-ignore]  # the peer's

    langdetect.DetectorFactory.seed = 0
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        _untrained(nltk)
    utils = importlib.import_module("lm_eval.tasks.ifeval.utils")
    return f"lm-eval {distribution.version}", utils


def _untrained(nltk: Any) -> None:
    """Sentences and words as NLTK splits them without its trained model."""
    from nltk.tokenize.destructive import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        NLTKWordTokenizer,
    )
    from nltk.tokenize.punkt import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        PunktSentenceTokenizer,
    )

    splitter, words = PunktSentenceTokenizer(), NLTKWordTokenizer()
    nltk.data.find = lambda *_, **__: ""
    nltk.data.load = lambda *_, **__: splitter
    nltk.word_tokenize = lambda text: [
        word for sentence in splitter.tokenize(text) for word in words.tokenize(sentence)
    ]


def agreement(ours: Labels, theirs: Labels) -> tuple[int, int]:
    """How many labels are equal, and how many there are, over both readings."""
    pairs = [
        (a, b)
        for mine, their in zip(ours, theirs, strict=True)
        for reading in (0, 1)
        for a, b in zip(mine[reading], their[reading], strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer-python", help="Python of an environment with lm-eval")
    parser.add_argument("--data", type=Path, help="folder with ifeval/ (or ADJUDGE_DATA)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.as_peer:
        serve_as_peer()
        return
    folder = options.data or os.environ.get("ADJUDGE_DATA")
    inputs, responses = stored(Path(folder)) if folder else generated()
    report(inputs, responses, options.peer_python, options.rounds, options.json)


def report(
    inputs: list[Any], responses: list[Any], python: str | None, rounds: int, file: Path | None
) -> None:
    """Run the rounds, print the table, write the numbers."""
    ours, peer = Ours(inputs, responses), Peer(python, inputs, responses) if python else None
    ours.score()  # warm: profiles loaded
    if peer:
        peer.score()
    mine, theirs, equal = [], [], (0, 0)
    for _ in range(rounds):
        seconds, labels = ours.score()
        mine.append(seconds)
        if peer:
            seconds, others = peer.score()
            theirs.append(seconds)
            equal = agreement(labels, others)
    numbers: dict[str, Any] = {
        "responses": len(inputs),
        "instructions": sum(len(row["instruction_id_list"]) for row in inputs),
        "ours_s": statistics.median(mine),
    }
    print(f"{len(inputs)} responses, {numbers['instructions']} instructions, strict and loose")
    print(f"{ours.name:<16}{numbers['ours_s'] * 1e3:9.1f} ms CPU")
    if peer:
        ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
        numbers |= {
            "peer": peer.name,
            "peer_s": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "labels_equal": equal[0],
            "labels": equal[1],
        }
        print(f"{peer.name:<16}{numbers['peer_s'] * 1e3:9.1f} ms CPU")
        print(
            f"ratio {numbers['ratio']:.1f}x ({min(ratios):.1f} to {max(ratios):.1f}), "
            f"labels equal {equal[0]} of {equal[1]}"
        )
    if file:
        file.write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
