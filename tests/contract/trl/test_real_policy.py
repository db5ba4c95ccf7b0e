"""What a real small policy needs: its weights from a GGUF file, few layers trained, a comparison.

Run by ``make test-trl``. A tiny model stands for the real one where its size does not matter.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch
import transformers

from adjudge.errors import ConfigError
from adjudge.judges.models.model_files import MODEL_FILES, fetched_path
from adjudge_lab.rl.local_player import draw_replies
from adjudge_lab.rl.policy import build_first_policy, load_policy, prepare_base_model, save_policy
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer
from adjudge_lab.rl.trl_backend import freeze_below

TEXTS = ["Name a fruit.", "Use no comma.", "plums are sweet", "yes, no, yes", "one two three"]


def tiny() -> tuple[Any, Any]:
    tokenizer = build_tiny_tokenizer(TEXTS, vocabulary=300)
    return build_tiny_model(tokenizer, seed=4, hidden=32, layers=3).eval(), tokenizer


def drawn(model: Any, tokenizer: Any, prompts: list[list[int]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    draw_replies(
        model, tokenizer, prompts, max_tokens=6, temperature=1.0, seed=3,
        on_end=lambda row, ids, logprobs: found.update({row: (list(ids), list(logprobs))}),
    )  # fmt: skip
    return found


def test_a_groups_prompt_is_read_once_and_the_draws_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokenizer = tiny()
    prompts = [[5, 6, 7, 8, 9]] * 3 + [[5, 6]] * 3 + [[9, 9, 9]]
    read: list[int] = []
    hook = (
        model.get_decoder()
        .layers[0]
        .register_forward_hook(
            lambda _module, _args, output: read.append(
                (output[0] if isinstance(output, tuple) else output).shape[:2].numel()
            )
        )
    )
    shared = drawn(model, tokenizer, prompts)
    hook.remove()
    # Three prompts but their last tokens (padded to five); then those; then a token a reply.
    assert read[:3] == [3 * 4, 7, 7]
    monkeypatch.setattr("adjudge_lab.rl.local_player._read_shared_prompts", lambda *_: None)
    apart = drawn(model, tokenizer, prompts)
    assert {row: ids for row, (ids, _) in shared.items()} == {
        row: ids for row, (ids, _) in apart.items()
    }
    for row, (_, logprobs) in shared.items():
        assert logprobs == pytest.approx(apart[row][1], abs=1e-4)


@pytest.mark.parametrize("kind", ["Mamba", "Mistral"])
def test_models_that_remember_otherwise_draw_as_they_did(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A state in place of keys and values, or keys and values of a window: nothing is shared."""
    _, tokenizer = tiny()
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "hidden_size": 32}
    if kind == "Mistral":
        sizes |= {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
        sizes["sliding_window"] = 4
    config = getattr(transformers, f"{kind}Config")(num_hidden_layers=2, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    prompts = [[5, 6, 7, 8, 9, 5, 6, 7]] * 3 + [[5, 6]] * 2
    shared = drawn(model, tokenizer, prompts)
    monkeypatch.setattr("adjudge_lab.rl.local_player._read_shared_prompts", lambda *_: None)
    assert drawn(model, tokenizer, prompts) == shared


def test_only_the_last_layers_learn() -> None:
    model, _ = tiny()
    freeze_below(model, 1, where="run.toml")
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learning
    assert all(".layers.2." in name for name in learning)
    with pytest.raises(ConfigError, match=r"trained_layers: .*found 4; the model has 3"):
        freeze_below(model, 4, where="run.toml")


RUN = """
[model]
base = "start"
[[graders]]
name = "instructions"
type = "ifeval"
[judge]
combine_mode = "replace"
[rollout]
dataset = "rows.jsonl"
max_tokens = 6
[training]
iterations_per_epoch = 3
batch_size = 8
group_size = 4
trained_layers = 1
save_every_n_iters = 1
[evaluation]
seeds = "0-9"
split = "split"
baselines = ["template"]
report_spec = "report.toml"
report_instances = 6
[logging]
to = "none"
"""
REPORT = '[[graders]]\nname = "repeats"\ntype = "ngram_repetition"\n'


def write_run(folder: Path) -> Path:
    model, tokenizer = tiny()
    save_policy(model, tokenizer, folder / "start")
    rows: list[dict[str, Any]] = [
        {
            "prompt": "Name a fruit. Use no comma.",
            "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}],
            "split": "odd" if n % 2 else "even", "template": "yes" if n % 2 else "yes, no",
        }
        for n in range(30)
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "report.toml").write_text(REPORT)
    source = folder / "run.toml"
    source.write_text(RUN)
    return source


def test_a_run_compares_what_it_learned(tmp_path: Path) -> None:
    source = write_run(tmp_path)
    job = TrainingJob(load_run_file(source), source, tmp_path / "run")
    train_run(job)
    whole, even, odd = job.summary["held_out"]["splits"]
    assert [(one["split"], one["prompts"]) for one in (whole, even, odd)] == [
        ("all", 10), ("even", 5), ("odd", 5)
    ]  # fmt: skip
    assert (even["baselines"], odd["baselines"]) == ({"template": 0.0}, {"template": 1.0})
    gain = whole["after"] - whole["before"]
    assert whole["gain"]["value"] == pytest.approx(gain)
    (repeats,) = job.summary["held_out"]["graders"]
    assert (repeats["name"], repeats["n"], repeats["missing"]) == ("repeats", 12, 0.0)
    page = (job.folder / "report.html").read_text()
    assert "Held-out prompts" in page
    # The layers that do not learn are those of the start, bit for bit.
    before, _ = load_policy(tmp_path / "start")
    after, _ = load_policy(job.folder / "model")
    changed = {
        name
        for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(old, new)
    }
    assert changed  # else nothing was learned, and this test would say nothing
    assert all(".layers.2." in name for name in changed)


def test_few_trained_layers_are_gone_on_with_as_they_were(tmp_path: Path) -> None:
    """The optimiser's state is that of the layers that learn, and comes back to the same ones."""
    source = write_run(tmp_path)

    def end_at_the_second_step(step: int, _row: Any) -> None:
        if step == 2:
            raise KeyboardInterrupt

    killed = TrainingJob(
        load_run_file(source), source, tmp_path / "killed", on_row=end_at_the_second_step
    )
    with pytest.raises(KeyboardInterrupt):
        train_run(killed)
    for name in ("killed", "plain"):
        train_run(TrainingJob(load_run_file(source), source, tmp_path / name))
    weights = [load_policy(tmp_path / name / "model")[0] for name in ("killed", "plain")]
    for one, other in zip(*(model.parameters() for model in weights), strict=True):
        assert torch.equal(one, other)
    found = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("killed", "plain")
    ]
    assert found[0]["resumed_from"] == 1
    assert found[0]["held_out"] == found[1]["held_out"]


@pytest.mark.slow
def test_the_weights_of_a_gguf_file_become_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fetched_path(MODEL_FILES["smollm2"])
    if not source.is_file():
        pytest.skip("the model is not on this machine; run `adjudge models fetch smollm2`")
    (tmp_path / "own.gguf").symlink_to(source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = {"model": {"base": "own.gguf"}, "rollout": {"env_name": "capitals"}}
    run = resolve_run_file(data, folder=tmp_path)
    prepare_base_model(run)
    model, tokenizer, losses = build_first_policy(run, str(tmp_path), lambda _: None)
    assert losses == []
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    found: dict[int, Any] = {}
    ask = [{"role": "user", "content": "What is the capital of France? One word."}]
    ids = tokenizer.apply_chat_template(ask, add_generation_prompt=True, return_dict=False)
    draw_replies(
        model, tokenizer, [ids], max_tokens=12, temperature=0.1, seed=1,
        on_end=lambda row, ids, _: found.update({row: tokenizer.decode(ids)}),
    )  # fmt: skip
    assert "Paris" in found[0]
    written = list((tmp_path / "cache" / "adjudge" / "models").iterdir())
    changed = [path.stat().st_mtime_ns for path in written]
    prepare_base_model(run)
    assert [path.stat().st_mtime_ns for path in written] == changed
