"""A chat template of the run file's, in the policy that TRL trains: run by ``make test-trl``."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge.errors import ConfigError
from adjudge_lab.rl.policy import build_first_policy, load_policy, save_policy
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} says: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant says: {% endif %}"
)
ASKED = [{"role": "user", "content": "Hello"}]


def policy_at(folder: Path, template: bool = True) -> None:
    tokenizer = build_tiny_tokenizer(["Hello, world. Lima is the capital."] * 4, vocabulary=300)
    model = build_tiny_model(tokenizer, seed=1, hidden=32)
    if not template:
        tokenizer.chat_template = None
    save_policy(model, tokenizer, folder)


def run_of(folder: Path, **model: Any) -> RunFile:
    return resolve_run_file({"model": {"base": "policy", **model}}, folder=folder)


def said(tokenizer: Any) -> str:
    text: str = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    return text


@pytest.mark.parametrize("has_one", [True, False])
def test_the_policy_speaks_by_it_and_keeps_it(tmp_path: Path, has_one: bool) -> None:
    policy_at(tmp_path / "policy", has_one)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    run = run_of(tmp_path, custom_chat_template="chat.jinja")
    model, tokenizer, _ = build_first_policy(run, str(tmp_path / "scratch"), lambda _: None)
    assert said(tokenizer) == f"user says: Hello{tokenizer.eos_token}assistant says: "
    save_policy(model, tokenizer, tmp_path / "saved")
    _, again = load_policy(tmp_path / "saved")
    assert said(again) == said(tokenizer)


def test_without_the_key_the_models_own_counts(tmp_path: Path) -> None:
    policy_at(tmp_path / "policy")
    _, tokenizer, _ = build_first_policy(
        run_of(tmp_path), str(tmp_path / "scratch"), lambda _: None
    )
    assert "says" not in said(tokenizer)
    policy_at(tmp_path / "bare", template=False)
    with pytest.raises(ConfigError, match="no chat template"):
        build_first_policy(run_of(tmp_path, base="bare"), str(tmp_path / "scratch"), lambda _: None)


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    policy_at(tmp_path / "policy")
    (tmp_path / "chat.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    run = run_of(tmp_path, custom_chat_template="chat.jinja")
    _, tokenizer, _ = build_first_policy(run, str(tmp_path / "scratch"), lambda _: None)
    with pytest.raises(Exception, match="unsafe"):
        said(tokenizer)
