"""Judges as users write them, good and bad, as the text of their file."""

__all__ = ["JUDGES"]

JUDGES = '''
import asyncio, itertools, threading
from adjudge import GradingFailure

class Typed:
    def __init__(self, size: int, share: float = 0.5, to: "Unknown" = "", *, loud=False):
        self.size, self.share, self.loud = size, share, loud

    def score(self, completion):
        assert type(self.size) is int and type(self.share) is float and type(self.loud) is bool
        return self.size * self.share

class ByType:
    def score(self, prompt, completion, answer, answer_type, metadata, images, request_id=None):
        return {
            "score": 1.0 if answer_type == "NUMBER" else 0.0,
            "detailed_scores": {"correctness": 1, "clarity": None},
            "explanation": f"{answer!r} {sorted(metadata)} {len(images)} {request_id}",
            "confidence": 0.25,
            "metadata": {"shard": 3},
        }

class Returns:
    def score_batch(self, requests):
        return {
            "places": {place: 0.5 for place in range(len(requests))},
            "set": {0.25, 0.75},
            "without end": itertools.repeat(0.5),
            "thread": (threading.current_thread().name == "adjudge-judge" for _ in requests),
        }[requests[0]["completion"]]

class Says:
    """Answers with what the completion names."""
    answers = {
        "nan": float("nan"), "inf": {"score": float("inf")}, "text": "0.5", "none": None,
        "no score": {"explanation": "x"}, "typo": {"score": 1, "explantion": "x"},
        "unsure": {"score": 1, "confidence": 1.5},
        "aspect": {"score": 1, "detailed_scores": {"a": float("nan")}},
        "list": [0.5], "wordless": {"score": 1, "explanation": 5}, "huge": 10**400, "empty": {},
        "object": {"score": 1, "metadata": {"x": object()}},
        "digits": {"score": 1, "metadata": {"x": 10**5000}},
        "halves": {"score": 1, "detailed_scores": {chr(0xD800): 1, chr(0xD801): 0}},
    }
    def score(self, completion):
        return self.answers[completion]

class Breaks:
    score_batch = start = None

    def close(self):
        raise SystemExit("closed in anger")

    def score(self, prompt, completion):
        if completion == "stop":
            raise StopIteration
        if completion == "exit":
            raise SystemExit(3)
        if completion == "interrupt":
            raise KeyboardInterrupt
        if completion == "refuse":
            raise GradingFailure("refused", "will not")
        if completion == "late":
            raise TimeoutError(prompt)
        if completion == "offline":
            raise ConnectionError(prompt)
        raise ValueError(f"cannot parse {prompt}")

class Many:
    def score_batch(self, requests):
        self.last = requests
        if any(one["completion"] == "poison" for one in requests):
            raise RuntimeError("poisoned by " + requests[0]["prompt"])
        if any(one["completion"] == "down" for one in requests):
            raise GradingFailure("server_error", "the model is gone")
        if any(one["completion"] == "empty" for one in requests):
            return []
        return [
            GradingFailure("refused", "no") if one["completion"] == "no" else len(one["completion"])
            for one in requests
        ]

class Waits:
    async def start(self):
        self.version = "w2"
        self.meeting = asyncio.Event()
        self.here = 0

    async def score(self, completion):
        if completion == "cancel":
            raise asyncio.CancelledError
        self.here += 1
        if self.here == 2:
            self.meeting.set()
        await self.meeting.wait()
        return float(completion)

    async def close(self):
        closed.append("waits")

class ManyWaits:
    async def score_batch(self, requests):
        await asyncio.sleep(0)
        return tuple(float(one["completion"]) for one in requests)

class Hangs:
    def score(self, completion):
        threading.Event().wait()

closed = []

class CannotBeMade(Breaks):
    def __init__(self):
        raise OSError("no weights here")

class CannotStart(Breaks):
    async def start(self):
        raise KeyboardInterrupt("no weights here")

class Unfillable:
    def score(self, prompt, completon):
        return 1.0

class PositionOnly:
    def score(self, prompt, /):
        return 1.0

class NoScore:
    pass

def function(completion):
    return 1.0
'''
