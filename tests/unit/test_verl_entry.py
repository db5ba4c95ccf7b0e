"""verl's entry point: what is wrong with a spec ends in a sentence, before a model is loaded."""

from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, JudgeAuthError
from adjudge.trainers.verl.main_ppo import check_spec_file, ends_in_a_sentence

GRADER = '[[graders]]\nname = "q"\ntype = "json_valid"\n'


class OfRay(ConfigError):
    """As Ray gives an actor's error: of its class, with the trace as its text."""

    cause = ConfigError("spec.toml: graders: none")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("spec.toml: wrong"), 2, "adjudge: spec.toml: wrong\n"),
        (JudgeAuthError("the key is refused"), 3, "adjudge: the key is refused\n"),
        (OfRay("Traceback …"), 2, "adjudge: spec.toml: graders: none\n"),
    ],
)
def test_an_error_of_ours_is_one_sentence(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped, ends_in_a_sentence():
        raise error
    assert (stopped.value.code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize(
    "text",
    [
        None,
        GRADER.replace("json_valid", "json_vallid"),
        GRADER + "[reward]\nsample_rate = 0.5\n",
        GRADER + "weight = { from = 1.0, to = 0.0, steps = 3 }\n",
        GRADER + 'scheme = "points"\n',
    ],
)
def test_a_spec_that_no_run_could_use_is_refused_before_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "spec.toml").write_text(text)
    monkeypatch.setenv("ADJUDGE_SPEC", str(tmp_path / "spec.toml"))
    config: Any = {}
    with pytest.raises(ConfigError):
        check_spec_file(config)
    (tmp_path / "spec.toml").write_text(GRADER)
    check_spec_file(config)
