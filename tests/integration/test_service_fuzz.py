"""Random requests against a real process: each gets its right answer, or a refusal and no number.

`make test-service` sends the same 6,250 requests each time, `make test-random` 25,000 others.
"""

import http.client
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from adjudge.service.server import RunningService, start_service_process

pytestmark = pytest.mark.slow

BACKEND = str(Path(__file__).with_name("service_backend.py"))
REQUESTS = 250
FAULTS = {"poison": "bug", "exit": "bug", "short": "bug", "nan": "out_of_range", "neither": "bug"}
TEXTS = ("4", "x", "", "é 数 🙂", "[[A]]", "score: 1", 'a\\"\n\t', "null", *FAULTS)
ODD: tuple[Any, ...] = (None, True, 0, -1, 1e300, 10**30, [], {}, [1], {"a": 1}, "4", ["4"], [{}])


PNG = "iVBORw0KGgo="


def is_picture(image: Any) -> bool:
    found = isinstance(image, str) and re.fullmatch(r"iVBORw0KGg[o-r][A-Za-z0-9+/=]+", image)
    return bool(found)


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


FIELDS: dict[str, Callable[[Any], bool]] = {
    "prompt": lambda v: v is None or isinstance(v, str),
    "completion": lambda v: isinstance(v, str),
    "answer": lambda v: True,
    "answer_type": lambda v: v is None or isinstance(v, str),
    "request_id": lambda v: v is None or isinstance(v, str),
    "metadata": lambda v: v is None or isinstance(v, dict),
    "messages": lambda v: v is None or (isinstance(v, list) and all(map(is_message, v))),
    "images": lambda v: v is None or (isinstance(v, list) and all(map(is_picture, v))),
}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with start_service_process([sys.executable, BACKEND, '{"port": 0}']) as (running, _):
        yield running


def is_sample(row: Any) -> bool:
    """Whether this can be judged, by the page about the service and not by its code."""
    return (
        isinstance(row, dict)
        and {"prompt", "completion"} <= set(row)
        and all(check(row[name]) for name, check in FIELDS.items() if name in row)
    )


def make_sample(rng: random.Random, number: int) -> Any:
    row: dict[str, Any] = {"prompt": rng.choice(TEXTS), "completion": rng.choice(TEXTS)}
    more = {
        "answer": rng.choice([*TEXTS, *ODD, row["completion"]]),
        "answer_type": "NUMBER",
        "request_id": f"id {number}",
        "metadata": {"run_id": rng.choice(["a", "b", f"run {number}"]), "n": rng.choice(ODD)},
        "messages": [{"role": "user", "content": rng.choice(TEXTS)}],
        "images": [PNG],
    }
    row |= {name: value for name, value in more.items() if rng.random() < 0.4}
    if rng.random() < 0.15:
        row[rng.choice([*FIELDS, "unknown"])] = rng.choice(ODD)
    if rng.random() < 0.05:
        del row[rng.choice(list(row))]
    return rng.choice(ODD) if rng.random() < 0.02 else row


def check_answer(row: dict[str, Any], found: dict[str, Any]) -> str:
    """What is wrong with the answer to one sample; empty when nothing is."""
    if row.get("request_id") is not None and found.get("request_id") != row["request_id"]:
        return "the answer of another request"
    if (kind := FAULTS.get(row["completion"])) is not None:
        right = found.get("score") is None and found.get("error", {}).get("kind") == kind
        return "" if right else "a failed judge with a number, or of another kind"
    right = found.get("score") == float(row.get("answer") == row["completion"])
    return "" if right and "error" not in found else "a wrong score"


def check_refusal(status: int, body: bytes, allowed: set[int]) -> str:
    found = json.loads(body)
    if status not in allowed:
        return f"status {status}"
    right = set(found) == {"error"} and found["error"]["kind"] and found["error"]["message"]
    return "" if right else "a refusal with something else"


REFUSED = {400, 413, 422}


def check_judge(sent: Any, status: int, body: bytes) -> str:
    if not is_sample(sent):
        return check_refusal(status, body, REFUSED)
    if status == 503:
        right = sent["completion"] in FAULTS and "score" not in json.loads(body)
        return "" if right else "a good request that failed"
    return check_answer(sent, json.loads(body)) if status == 200 else f"status {status}"


def check_batch(sent: Any, status: int, body: bytes) -> str:
    rows = sent.get("requests") if isinstance(sent, dict) else None
    if not isinstance(rows, list) or not 1 <= len(rows) <= 128 or not all(map(is_sample, rows)):
        return check_refusal(status, body, REFUSED)
    found = json.loads(body).get("responses") if status == 200 else None
    if found is None or len(found) != len(rows):
        return f"status {status}, or not an answer to each"
    problems = [check_answer(*pair) for pair in zip(rows, found, strict=True)]
    return next(filter(None, problems), "")


def check_slime(sent: Any, status: int, body: bytes) -> str:
    good = isinstance(sent, dict) and isinstance(sent.get("response"), str)
    if status == 200:
        label = sent.get("label") or None
        right = good and json.loads(body) == float(label == sent["response"])
        return "" if right else "a wrong reward"
    if status == 503 and good:
        return "" if sent["response"] in FAULTS else "a good request that failed"
    return check_refusal(status, body, REFUSED)


def make_request(rng: random.Random, number: int) -> tuple[str, Any, Callable[..., str]]:
    kind = rng.random()
    if kind < 0.4:
        return "/judge", make_sample(rng, number), check_judge
    if kind < 0.8:
        size = rng.choice([0, 1, 1, 2, 3, 5, 17, 128, 129])
        rows = [make_sample(rng, number * 1000 + place) for place in range(size)]
        if size > 5:
            rows = [row if is_sample(row) else {"prompt": "", "completion": "4"} for row in rows]
        batch = {"requests": rows} if rng.random() < 0.97 else rng.choice(ODD)
        return "/batch_judge", batch, check_batch
    text = rng.choice(TEXTS)
    row = {"prompt": "p", "response": text, "label": rng.choice([text, "4", None, "no"])}
    if rng.random() < 0.2:
        row[rng.choice(list(row))] = rng.choice(ODD)
    return "/slime", row, check_slime


def spoil(rng: random.Random, body: bytes) -> bytes:
    """The body with bytes changed, lost or doubled."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data) + 1)
        how = rng.randrange(3)
        if how == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            del data[place : place + rng.randint(1, 20)]
        else:
            data[place:place] = data[place : place + rng.randint(1, 20)]
    return bytes(data)


def check_one(line: http.client.HTTPConnection, rng: random.Random, number: int) -> str:
    path, sent, check = make_request(rng, number)
    body = json.dumps(sent, ensure_ascii=rng.random() < 0.5).encode()
    headers, method, allowed = {"host": "localhost"}, "POST", set[int]()
    how = rng.random()
    if how < 0.02:
        headers["host"], allowed = "judge.example", {401}
    elif how < 0.04:
        headers["origin"], allowed = "https://example.org", {401}
    elif how < 0.06:
        method, allowed = rng.choice(["GET", "PUT", "DELETE"]), {405}
    elif how < 0.08:
        path, allowed = path + "x", {404}
    elif how < 0.3:
        body = spoil(rng, body)
    line.request(method, path, body, headers)
    reply = line.getresponse()
    status, answer = reply.status, reply.read()
    if allowed:
        line.close()  # refused before the body had come
        return check_refusal(status, answer, allowed)
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        if status != 200:
            return check_refusal(status, answer, REFUSED)
        sent = json.loads(body, strict=False)  # control characters under a key that nothing reads
    if 0.08 <= how < 0.3 and status in REFUSED:  # Python reads NaN
        return check_refusal(status, answer, REFUSED)
    return check(sent, status, answer)


@pytest.mark.timeout(600)  # 25,000 requests of `make test-random` on a busy machine
@given(st.integers(0, 2**32))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_no_random_request_gets_a_wrong_answer(service: RunningService, seed: int) -> None:
    rng = random.Random(seed)
    line = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    wrong = []
    try:
        for number in range(REQUESTS):
            state = rng.getstate()
            if problem := check_one(line, rng, number):
                rng.setstate(state)
                wrong.append((problem, make_request(rng, number)[:2]))
    finally:
        line.close()
    assert not wrong, f"{len(wrong)} of {REQUESTS} answers are wrong, the first: {wrong[0]}"[:2000]
