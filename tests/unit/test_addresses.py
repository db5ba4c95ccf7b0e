"""Which addresses a judge may have."""

from __future__ import annotations

import pytest

from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback
from adjudge.judges.wire.transport import normalize_url


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
        ("https://host/v1#x", "query or a fragment"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://[fe80::1]/v1", "link-local"),
        ("http://[::1", "not a URL"),
        (None, "not a URL"),
    ],
)
def test_unusable_addresses_are_refused_without_showing_secrets(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        normalize_url(url)
    assert "s3cret" not in str(caught.value)


def test_usable_addresses_lose_their_slash() -> None:
    assert normalize_url("https://api.openai.com/v1/") == "https://api.openai.com/v1"
    assert normalize_url("http://[::1]:8000") == "http://[::1]:8000"


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.0.1", "::1"]))
    assert not any(map(is_loopback, ["localhost.example.com", "10.0.0.1", "example.com", ""]))
