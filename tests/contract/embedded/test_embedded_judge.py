"""A real small language model as a judge, in llama.cpp's own server."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed here; run `make test-embedded`")


import adjudge
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges import EndpointSettings, OpenAIChatModel, ReplyCache
from adjudge.judges.models import embedded
from adjudge.judges.models.embedded import EmbeddedChatModel
from adjudge.judges.models.model_files import MODEL_FILES, fetched_path
from adjudge.judges.wire.transport import AiohttpTransport

_QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["score"],
    "additionalProperties": False,
}
# One thread, which other processes on the machine slow down least.
_SMALL: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 512,
    "temperature": 0.0,
    "max_tokens": 12,
}


def _children(parent: int | None = None) -> set[int]:
    """The children of a process that run llama.cpp's server."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(above) == (parent or os.getpid()) and state != "Z" and "llama_server" in command:
            found.add(int(folder.name))
    return found


@pytest.fixture(scope="module", autouse=True)
def _stop() -> Iterator[None]:
    yield
    embedded.stop_servers()
    assert not _children()


@pytest.fixture
def judge() -> EmbeddedChatModel:
    return EmbeddedChatModel("smollm2", **_SMALL)


# ── what it answers ──────────────────────────────────────────────────────────────────────────


def test_it_answers_and_costs_nothing(judge: EmbeddedChatModel) -> None:
    reply = judge.chat(_QUESTION)
    assert "Paris" in reply.text
    assert reply.model == "smollm2"
    assert reply.ignored == ()
    assert reply.usage is not None
    assert reply.usage.cost_usd == 0.0
    assert reply.usage.input_tokens > 10


def test_a_schema_binds(judge: EmbeddedChatModel) -> None:
    reply = judge.chat(_QUESTION, schema=_SCHEMA, temperature=2.0, max_tokens=100)
    assert reply.ignored == ()
    assert json.loads(reply.text) in [{"score": score} for score in range(1, 6)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "no such type"},
    ],
)
def test_a_schema_that_is_no_grammar_is_refused(
    judge: EmbeddedChatModel, schema: dict[str, Any]
) -> None:
    with pytest.raises(GradingFailure, match="schema") as caught:
        judge.chat(_QUESTION, schema=schema)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert "suspect" not in caught.value.metadata


def test_a_choice_is_written_exactly(judge: EmbeddedChatModel) -> None:
    rng = random.Random(7)
    # Of the control characters those that the model's vocabulary can write.
    letters = [chr(c) for c in range(32, 127)] + list('\\"[]nux0\b\f\r\n\té日🎉\u2028\ufeff')

    async def ask() -> None:
        texts = ["".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(40)]
        asked = (judge.achat(_QUESTION, choices=[text], max_tokens=64) for text in texts)
        replies = await asyncio.gather(*asked)  # noqa: TID251  (the endpoint's limit is the point)
        assert [reply.text for reply in replies] == texts

    asyncio.run(ask())


def test_log_probabilities_of_20_tokens(judge: EmbeddedChatModel) -> None:
    reply = judge.chat(_QUESTION, logprobs=True)
    assert reply.logprobs is not None
    assert {len(token.top) for token in reply.logprobs} == {20}
    assert all(token.logprob <= 0 for token in reply.logprobs)
    assert "".join(token.token for token in reply.logprobs).strip() == reply.text.strip()


def test_a_seed_repeats_and_a_draw_differs(judge: EmbeddedChatModel) -> None:
    words = [{"role": "user", "content": "Write eight random words."}]
    sampling = {"seed": 7, "temperature": 1.0, "max_tokens": 16}
    texts = [judge.chat(words, draw=draw, **sampling).text for draw in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_a_prompt_that_does_not_fit_is_never_cut(judge: EmbeddedChatModel) -> None:
    with pytest.raises(GradingFailure, match="context size") as caught:
        judge.chat([{"role": "user", "content": "word " * 2000}])
    assert caught.value.kind is ErrorKind.TOO_LONG
    assert caught.value.metadata["attempts"] == 1


def test_an_image_is_refused_at_once(judge: EmbeddedChatModel) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    with pytest.raises(GradingFailure, match="not supported") as caught:
        judge.chat([{"role": "user", "content": [image]}])
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert caught.value.metadata["attempts"] == 1


# ── one process ──────────────────────────────────────────────────────────────────────────────


def test_threads_and_loops_share_one_server() -> None:
    embedded.stop_servers()
    replies = []

    def ask() -> None:
        model = EmbeddedChatModel("smollm2", **_SMALL)
        replies.append(asyncio.run(model.ask(_call(model))))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 4
    assert len(_children()) == 1


def _call(model: EmbeddedChatModel) -> adjudge.judges.ChatCall:
    return adjudge.judges.ChatCall(model=model.model, messages=_QUESTION, sampling=model.sampling)


def test_a_server_that_is_killed_is_started_again(judge: EmbeddedChatModel) -> None:
    judge.chat(_QUESTION)
    (pid,) = _children()
    os.kill(pid, signal.SIGKILL)
    assert "Paris" in judge.chat(_QUESTION).text
    assert len(_children() - {pid}) == 1


def _kill_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is held up, so that it cannot answer before it is killed."""
    (pid,) = _children()
    os.kill(pid, signal.SIGSTOP)
    send = AiohttpTransport.post

    async def post(*arguments: Any) -> Any:
        monkeypatch.undo()
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        return await send(*arguments)

    monkeypatch.setattr(AiohttpTransport, "post", post)


def test_a_server_that_is_killed_while_it_answers_is_asked_again(
    judge: EmbeddedChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.chat(_QUESTION)
    _kill_when_it_is_asked(monkeypatch)
    reply = judge.chat(_QUESTION)
    assert "Paris" in reply.text
    assert reply.provenance.attempts == 2


def test_what_ended_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    once = EndpointSettings(max_attempts=1)
    judge = EmbeddedChatModel("smollm2", **{**_SMALL, "max_length": 768}, settings=once)
    embedded.stop_servers()
    judge.chat(_QUESTION)
    _kill_when_it_is_asked(monkeypatch)
    with pytest.raises(
        GradingFailure, match=r"llama.cpp's server for smollm2 ended .signal 9."
    ) as e:
        judge.chat(_QUESTION)
    assert e.value.kind is ErrorKind.CONNECTION


# ── files that are none ──────────────────────────────────────────────────────────────────────


def test_why_a_file_cannot_be_loaded(tmp_path: Path) -> None:
    embedded.stop_servers()
    real = fetched_path(MODEL_FILES["smollm2"])
    half, text = tmp_path / "half.gguf", tmp_path / "te\x1b[31mxt.gguf"
    with real.open("rb") as whole:
        half.write_bytes(whole.read(3_000_000))
    text.write_text("GGUF is what it says")
    with pytest.raises(ConfigError, match="cannot load .*half.gguf.*(corrupt|bounds|failed)"):
        EmbeddedChatModel(str(half)).chat(_QUESTION)
    with pytest.raises(ConfigError, match="cannot load .*(GGUF|failed)") as caught:
        EmbeddedChatModel(str(text)).chat(_QUESTION)
    assert "\x1b" not in str(caught.value)
    assert not _children()


# ── its end ──────────────────────────────────────────────────────────────────────────────────

_START = """
    import os, sys, time
    from adjudge.judges.models import embedded
    from adjudge.judges.models.embedded import EmbeddedChatModel
    if __name__ == "__main__":
        judge = EmbeddedChatModel("smollm2", batch_size=2, max_length=512, max_tokens=200)
        judge.chat([{"role": "user", "content": "hello"}], max_tokens=1)
        (server,) = embedded._servers.value.values()
        print(server._process.pid, flush=True)
"""


def _run(rest: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(_START) + textwrap.indent(textwrap.dedent(rest), "    ")
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_until_dead(pid: int) -> None:
    for _ in range(100):
        if not _is_alive(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"{pid} is still there")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals) -> None:
    parent = _run('judge.chat([{"role": "user", "content": "Tell a story."}], max_tokens=400)')
    pid = int(_read_line(parent))
    time.sleep(0.3)
    parent.send_signal(number)
    parent.wait(20)
    _wait_until_dead(pid)


def test_it_ends_with_its_parent_while_a_forked_child_goes_on() -> None:
    parent = _run(
        """
        child = os.fork()
        if child == 0:
            time.sleep(60)
        print(child, flush=True)
        time.sleep(60)
        """
    )
    pid, child = int(_read_line(parent)), int(_read_line(parent))
    parent.kill()
    parent.wait(20)
    _wait_until_dead(pid)
    os.kill(child, signal.SIGKILL)


def test_a_forked_child_has_a_server_of_its_own() -> None:
    parent = _run(
        """
        import multiprocessing
        def ask(queue):
            reply = judge.chat([{"role": "user", "content": "hello"}], max_tokens=3)
            (own,) = embedded._servers.value.values()
            queue.put((reply.text, own._process.pid))
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=ask, args=(queue,))
        child.start()
        text, pid = queue.get(timeout=100)
        child.join()
        print(pid, flush=True)
        judge.chat([{"role": "user", "content": "hello"}], max_tokens=1)
        print(server._process.poll(), [*embedded._servers.value.values()] == [server], flush=True)
        """
    )
    first, second = int(_read_line(parent)), int(_read_line(parent))
    assert first != second
    assert _read_line(parent) == "None True\n"
    _wait_until_dead(second)
    parent.wait(20)
    _wait_until_dead(first)


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
    reason="Ctrl-C is ignored here, and by every process that is started from here",
)
def test_grade_leaves_no_process_after_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        '[[graders]]\nname = "good"\ntype = "helpfulness"\n'
        '[judges.smol]\ntype = "embedded"\nmodel = "smollm2"\n'
        "batch_size = 2\nmax_length = 1024\n"
    )
    row = '{"prompt": "What is the capital of France?", "response": "Paris, number %d."}'
    (tmp_path / "rows.jsonl").write_text("\n".join(row % n for n in range(50)))
    command = [sys.executable, "-m", "adjudge", "grade", "-s", "spec.toml", "rows.jsonl"]
    # As in a terminal: Ctrl-C goes to the whole process group.
    grade = subprocess.Popen(
        [*command, "-o", "out"], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    server = _server_of(grade.pid)
    time.sleep(3)
    os.killpg(grade.pid, signal.SIGINT)
    grade.wait(60)
    _wait_until_dead(server)


def _server_of(parent: int) -> int:
    for _ in range(1200):
        if found := _children(parent):
            return found.pop()
        time.sleep(0.05)
    raise AssertionError("no server was started")


# ── recorded ─────────────────────────────────────────────────────────────────────────────────


def test_replies_of_a_file_are_cached_by_its_digest(tmp_path: Path) -> None:
    real = fetched_path(MODEL_FILES["smollm2"])
    first, second = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"
    for place in (first, second):
        place.parent.mkdir()
        place.symlink_to(real)
    path = tmp_path / "calls.sqlite"
    with closing(ReplyCache(path)) as cache:
        text = EmbeddedChatModel(str(first), cache=cache, **_SMALL).chat(_QUESTION).text
    with closing(ReplyCache(path, "replay")) as cache:
        assert EmbeddedChatModel(str(second), cache=cache, **_SMALL).chat(_QUESTION).text == text


# ── a server of the user's ───────────────────────────────────────────────────────────────────

_SERVE = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_parallel, params.n_ctx, params.cpuparams.n_threads = 2, 1024, 1
server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
sys.stdin.read()
"""


def test_type_llamacpp_asks_a_server_that_runs_already() -> None:
    model = str(fetched_path(MODEL_FILES["smollm2"]))
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE, model],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        while not (address := _read_line(server)).startswith("listening at"):
            assert server.poll() is None
        judge = OpenAIChatModel(
            "smollm2", preset="llamacpp", base_url=f"{address.split()[-1]}/v1", max_tokens=12,
            temperature=0.0,
        )  # fmt: skip
        assert "Paris" in judge.chat(_QUESTION).text
        assert judge.chat(_QUESTION, choices=["Rome", "Oslo"]).text in ("Rome", "Oslo")
        reply = judge.chat(_QUESTION, schema=_SCHEMA, logprobs=True)
        assert reply.ignored == ()
    finally:
        server.kill()
        server.wait()
