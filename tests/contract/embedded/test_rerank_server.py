"""Scalar judges behind llama.cpp's own server: run by `make test-embedded`.

Two tiny random rerankers, written here: a BERT with a classification head, whose scores are raw
outputs, and a Qwen3 with one output, to which llama.cpp applies a softmax.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

gguf: Any = pytest.importorskip("gguf", reason="not installed here; run `make test-embedded`")
numpy: Any = pytest.importorskip("numpy", reason="not installed here; run `make test-embedded`")

from adjudge import GradingRunner  # noqa: E402  (after what it needs)
from adjudge.engine.loop import run_blocking  # noqa: E402
from adjudge.errors import ConfigError, ErrorKind  # noqa: E402
from adjudge.graders import ScalarGrader  # noqa: E402
from adjudge.judges import ClassifierModel, ReplyCache  # noqa: E402
from adjudge.judges.feature_checks import check_judge_features  # noqa: E402
from adjudge.judges.table import build_judge  # noqa: E402
from adjudge.rewards.spec import RewardSpec  # noqa: E402
from adjudge.types import GraderError, GraderScore  # noqa: E402

WIDTH, INNER, CONTEXT, HEAD = 32, 64, 512, 16
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIGNS = [chr(code) for code in range(33, 127)]
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.embedding, params.ui = 2048, 4, True, False
params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("address", server.listening_address, flush=True)
sys.stdin.read()
"""


def bert_tensors(draw: Any) -> dict[str, Any]:
    ones = numpy.ones(WIDTH, numpy.float32)
    found = {
        "position_embd.weight": draw(CONTEXT, WIDTH),
        "token_types.weight": draw(2, WIDTH),
        "token_embd_norm.weight": ones,
        "token_embd_norm.bias": draw(WIDTH),
        "cls.weight": draw(WIDTH, WIDTH),
        "cls.bias": draw(WIDTH),
        "cls.output.weight": draw(1, WIDTH) * 4,
        "cls.output.bias": draw(1),
    }
    layer = {
        **{f"attn_{name}": draw(WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        "attn_output_norm": ones,
        "ffn_up": draw(INNER, WIDTH),
        "ffn_down": draw(WIDTH, INNER),
        "layer_output_norm": ones,
    }
    for name, weight in layer.items():
        found[f"blk.0.{name}.weight"] = weight
        found[f"blk.0.{name}.bias"] = draw(weight.shape[0])
    return found


def qwen3_tensors(draw: Any) -> dict[str, Any]:
    layer = {
        **{f"attn_{name}": draw(WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        **{f"{name}_norm": numpy.ones(WIDTH, numpy.float32) for name in ("attn", "ffn")},
        **{f"attn_{name}_norm": numpy.ones(HEAD, numpy.float32) for name in ("q", "k")},
        "ffn_gate": draw(INNER, WIDTH),
        "ffn_up": draw(INNER, WIDTH),
        "ffn_down": draw(WIDTH, INNER),
    }
    return {
        "output_norm.weight": numpy.ones(WIDTH, numpy.float32),
        "cls.output.weight": draw(1, WIDTH),
        **{f"blk.0.{name}.weight": weight for name, weight in layer.items()},
    }


def write_reranker(path: Path, architecture: str) -> None:
    """A random reranker of one layer, with a tokenizer of single characters."""
    generator = numpy.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return generator.normal(0, 0.5, shape).astype(numpy.float32)

    is_bert = architecture == "bert"
    words = ["▁" + sign for sign in SIGNS] + SIGNS if is_bert else [*SIGNS, "Ġ", "Ċ"]
    tokens = [*SPECIAL, *words]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["score"])
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(words))
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    if is_bert:
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(1e-12)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_type_count(2)
        writer.add_pad_token_id(0)
    else:
        writer.add_head_count_kv(WIDTH // HEAD)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["a b"])
    tensors = bert_tensors(draw) if is_bert else qwen3_tensors(draw)
    for name, tensor in {"token_embd.weight": draw(len(tokens), WIDTH), **tensors}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def served(folder: Path, architecture: str) -> Iterator[str]:
    path = folder / f"{architecture}.gguf"
    write_reranker(path, architecture)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[1] for line in process.stdout if line.startswith("address"))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("bert"), "bert") as found:
        yield found


def by_hand(url: str, prompt: str, response: str) -> float:
    """What the server says, without any of our code."""
    body = json.dumps({"query": prompt, "documents": [response]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/rerank", body)) as reply:
        return float(json.load(reply)["results"][0]["relevance_score"])


ROWS = [{"prompt": f"Name {n} colours.", "response": "red green blue " * n} for n in range(1, 9)]


def test_scores_are_the_servers_raw_outputs(url: str, tmp_path: Path) -> None:
    with_cache = ClassifierModel("rm", base_url=url, cache=ReplyCache(tmp_path / "tape.sqlite"))
    runner = GradingRunner({"rm": ScalarGrader(with_cache)}, show_progress=False)
    found: list[Any] = runner.run(ROWS)["rm"]
    scores = [one.score for one in found]
    alone = [by_hand(url, row["prompt"], row["response"]) for row in ROWS]
    assert scores == pytest.approx(alone, abs=0.1)  # they move with what is computed beside them
    assert len(set(scores)) == len(ROWS)
    assert any(not 0 <= score <= 1 for score in scores)
    with_cache._endpoint_key.cache.close()  # type: ignore[union-attr]
    tape = ReplyCache(tmp_path / "tape.sqlite", "replay")
    again = ScalarGrader(ClassifierModel("rm", base_url=url, cache=tape))
    replayed: list[Any] = GradingRunner({"rm": again}, show_progress=False).run(ROWS)["rm"]
    assert [one.score for one in replayed] == scores


def test_what_is_too_long_is_missing_and_nothing_is_cut(url: str) -> None:
    rows = [ROWS[0], {"prompt": "q", "response": "word " * 400}]
    grader = ScalarGrader(ClassifierModel("rm", base_url=url))
    found: list[Any] = GradingRunner({"rm": grader}, show_progress=False).run(rows)["rm"]
    assert isinstance(found[0], GraderScore)
    assert isinstance(found[1], GraderError)
    assert found[1].kind is ErrorKind.INVALID_INPUT


def test_a_softmax_over_one_output_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, "qwen3") as url:
        assert by_hand(url, "a", "b") == by_hand(url, "c", "something else") == 1.0
        with pytest.raises(ConfigError, match="gives every conversation the score 1"):
            ClassifierModel("rm", base_url=url).chat(
                [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
            )


def test_doctor(url: str) -> None:
    data = {
        "graders": [{"name": "rm", "type": "scalar"}],
        "reward": {"normalise": False},
        "judges": {"main": {"type": "classifier", "model": "rm", "base_url": url}},
    }
    table = RewardSpec.from_dict(data).judges["main"]
    found = run_blocking(
        check_judge_features(table, lambda variant: build_judge("main", variant, where="spec.toml"))
    )
    assert [(one.feature, one.honoured) for one in found] == [
        ("reply", "yes"),
        ("usage", "yes"),
        ("route", "yes"),
        ("raw output", "yes"),
        ("chat template", "not offered"),
        ("repeatable", "yes"),
    ]
