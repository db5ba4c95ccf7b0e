import pytest
from hypothesis import given, strategies as st

from adjudge.hosts import is_loopback_header


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
