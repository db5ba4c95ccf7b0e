"""The client's configuration: keys, environment, what is refused and how."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.client import JudgeRewardSystem
from adjudge.client.settings import VARIABLES, ClientSettings
from adjudge.errors import ConfigError
from adjudge.wire import JUDGE_KEY_VARIABLE

URL = "http://127.0.0.1:8888"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (JUDGE_KEY_VARIABLE, *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)


def settings(**config: Any) -> ClientSettings:
    return ClientSettings.from_config({"judge_url": URL, **config})


def test_defaults() -> None:
    found = settings()
    assert (found.use_cache, found.cache_size) == (True, 5000)
    assert (found.max_batch_size, found.batch_timeout) == (16, 0.05)
    assert (found.max_concurrent_requests, found.timeout, found.max_retries) == (32, 30.0, 3)
    assert (found.circuit_breaker_threshold, found.circuit_breaker_timeout) == (10, 60.0)
    assert found.fallback_to_rule is False
    assert found.judge_url == URL


def test_the_environment_fills_in_what_the_config_leaves_out_as_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_MODEL_URL", URL + "/")
    monkeypatch.setenv("JUDGE_MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("JUDGE_MAX_CONCURRENT", "64")
    found = ClientSettings.from_config({})
    assert found.judge_url == URL
    assert (found.max_batch_size, found.max_concurrent_requests) == (8, 64)
    assert type(found.max_batch_size) is int
    assert ClientSettings.from_config({"max_batch_size": 4, "timeout": None}).max_batch_size == 4


def test_variables_in_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_OF_MINE", "127.0.0.1")
    monkeypatch.setenv("SIZE", "32")
    found = settings(
        judge_url="http://${HOST_OF_MINE}:1", max_batch_size="${SIZE}", use_cache="False"
    )
    assert (found.judge_url, found.max_batch_size) == ("http://127.0.0.1:1", 32)
    assert found.use_cache is False
    with pytest.raises(ConfigError, match="judge_url: environment variable 'JUDGE_MODEL_URL'"):
        settings(judge_url="${JUDGE_MODEL_URL}")


def test_a_key_is_named_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "k3y-of-the-judge"
    with pytest.raises(ConfigError, match="api_key_env") as caught:
        settings(api_key=secret)
    assert secret not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        settings(api_key="Bearer ${JUDGE_MODEL_API_KEY}")
    with pytest.raises(ConfigError) as caught:
        settings(api_key_env=secret)
    assert secret not in str(caught.value)
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", secret)
    assert settings(api_key="${JUDGE_MODEL_API_KEY}").api_key_env == "JUDGE_MODEL_API_KEY"
    assert settings(api_key=secret).api_key_env == "JUDGE_MODEL_API_KEY"  # its reader filled it in
    assert settings(api_key="${MY_KEY}").api_key_env == "MY_KEY"
    system = JudgeRewardSystem({"judge_url": URL, "api_key": secret})
    assert secret.encode() not in pickle.dumps(system)
    assert pickle.loads(pickle.dumps(system)).settings == system.settings
    with pytest.raises(ConfigError, match="one of them"):
        settings(api_key="${A}", api_key_env="B")


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("max_batchsize", {"max_batchsize": 8}),
        *[("max_batch_size", {"max_batch_size": one}) for one in (129, 0, 1.5, "many", True)],
        *[("timeout", {"timeout": one}) for one in ("soon", -1)],
        ("timeout", {"timeout": 0.02}),
        ("timeout", {"timeout": float("nan")}),
        ("use_cache", {"use_cache": "maybe"}),
        *[("judge_url", {"judge_url": one}) for one in
          ("localhost:8888", "http://u:p@h", URL + "/judge", None, 5)],
        ("max_retries", {"max_retries": -1}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(key: str, config: dict[str, Any]) -> None:
    with refuses(f"config.{key}"):
        settings(**config)
    with pytest.raises(ConfigError, match="must be a mapping"):
        ClientSettings.from_config([key])  # type: ignore[arg-type]  # (the point)
