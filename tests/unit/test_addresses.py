"""Which addresses a judge may have."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.e2e.helpers.command import invoke

from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback_header
from adjudge.judges.wire.transport import normalize_url
from adjudge.trainers.scoring import load_spec


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/v1", "must be http"),
        ("file:///etc/passwd", "must be http"),
        ("host:8000/v1", "must be http"),
        ("", "must be http"),
        ("http://", "must be http"),
        ("http://user:s3cret@host/v1", "user or password"),
        ("https://s3cret@host/v1", "user or password"),
        ("https://host/v1?key=s3cret", "query"),
        ("https://host/v1#x", "no fragment"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://[fe80::1]/v1", "link-local"),
        ("http://[::1", "must be http"),
        ("http://host/\x1b", "printable"),
    ],
)
def test_unusable_addresses_are_refused_without_showing_secrets(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        normalize_url(url)
    assert "s3cret" not in str(caught.value)


ADDRESSES = [
    "http://user:s3cret@127.0.0.1:9/v1",
    "HTTP://user:s3cret@127.0.0.1:9/v1",
    "hTTps://üser:s3cret@127.0.0.1:9/v1",
    "http://user:s3cret@s3cret@127.0.0.1:9/v1",
    "http://user:s3cret/s3cret@127.0.0.1:9/v1",
    "http://user:s3cret@127.0.0.1:9/v1?key=s3cret",
    "user:s3cret@127.0.0.1:9/v1",
    "//user:s3cret@127.0.0.1:9/v1",
    "//s3cret@127.0.0.1:9/v1",
    "ftp://user:s3cret@127.0.0.1:9/v1",
    "http:/user:s3cret@127.0.0.1",
    "http://user:s3cret@[::1",
]
SPEC = """
[[graders]]
name = "j"
type = "llm"
template = "{response} {reply_form}"
score_range = [0, 1]
[judges.main]
type = "vllm"
model = "m"
base_url = "ADDRESS"
"""


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_door_prints_the_password_of_an_address(address: str, tmp_path: Path) -> None:
    (tmp_path / "dump.jsonl").write_text('{"prompt": "p", "response": "r", "score": 1}\n')
    (tmp_path / "s.toml").write_text(SPEC.replace("ADDRESS", address))
    dump, spec, out = (str(tmp_path / name) for name in ("dump.jsonl", "s.toml", "out"))
    for words in (
        ["grade", dump, "-s", spec, "-o", out],
        ["grade", dump, "-s", address, "-o", out],
        ["grade", address, "-s", spec, "-o", out],
        ["grade", dump, "-s", spec, "--draws", address],
        ["doctor", spec],
        [address],
    ):
        said = invoke(*words)
        assert said.exit_code != 0, words
        assert "s3cret" not in said.output + said.stderr, words
    with pytest.raises(ConfigError) as caught:
        load_spec(address)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_usable_addresses_lose_their_slash() -> None:
    assert normalize_url("https://api.openai.com/v1/") == "https://api.openai.com/v1"
    assert normalize_url("http://[::1]:8000") == "http://[::1]:8000"


@pytest.mark.parametrize(
    "header",
    ["localhost", "LocalHost:8911", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:1", "[::1]", "[::1]:80",
     "[0:0:0:0:0:0:0:1]:65535", "localhost:"],
)  # fmt: skip
def test_this_machine_by_any_port(header: str) -> None:
    assert is_loopback_header(header)


@pytest.mark.parametrize(
    "header",
    ["", ":80", "localhost:8911@evil.com", "localhost@evil.com", "user@localhost", "[::1]evil.com",
     "[::1]@evil.com", "[::1]:80@evil.com", "[::1", "::1", "[127.0.0.1]", "[localhost]",
     "localhost:80:90", "localhost:80a", "localhost:-1", "localhost:٨٠", "localhost:800000",
     "localhost/..", "localhost#", "localhost?x", "localhost, evil.com", "localhost evil.com",
     " localhost", "localhost\n", "127.0.0.1\n", "127.0.0.1.evil.com", "localhost\\@evil.com",
     "http://localhost"],
)  # fmt: skip
def test_what_is_no_host_of_this_machine(header: str) -> None:
    assert not is_loopback_header(header)


@given(st.sampled_from(["localhost", "127.0.0.1", "[::1]"]), st.text(min_size=1))
def test_only_a_port_may_follow(host: str, rest: str) -> None:
    port = rest[1:]
    is_port = rest[0] == ":" and len(port) <= 5 and all(one in "0123456789" for one in port)
    digits = host == "127.0.0.1" and rest.partition(":")[0].isdigit()  # another address
    assert digits or is_loopback_header(host + rest) == is_port
