"""Who may ask the service: keys, and without one the headers of a request."""

import base64

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind
from adjudge.service import ServiceSettings
from adjudge.service.requests import ApiKeyAuth, RequestRefused, read_service_keys

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize("host", [b"127.0.0.1:8888", b"localhost", b"LOCALHOST:1", b"[::1]:8888"])
def test_without_a_key_programs_of_this_machine_may_ask(host: bytes) -> None:
    ApiKeyAuth({}).check([(b"host", host), (b"content-type", b"text/plain")])
    ApiKeyAuth({}).check([])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"127.0.0.1:8888"), (b"origin", b"https://example.org")],
        [(b"host", b"127.0.0.1:8888"), (b"origin", b"null")],
        [(b"host", b"example.org:8888")],
        [(b"host", b"127.0.0.1.example.org")],
        [(b"host", b"localhost@example.org")],
        [(b"host", b"\xff")],
        [(b"host", b"")],
        [(b"host", b"localhost"), (b"host", b"example.org")],
    ],
)
def test_without_a_key_no_web_page_may_ask(headers: Headers) -> None:
    with pytest.raises(RequestRefused) as refused:
        ApiKeyAuth({}).check(headers)
    assert (refused.value.status, refused.value.kind) == (401, ErrorKind.AUTH)


def test_a_key_is_compared_whole() -> None:
    auth = ApiKeyAuth({"K": "sësame"})
    auth.check([(b"authorization", "Bearer sësame".encode())])
    auth.check([(b"host", b"x"), (b"authorization", "bearer sësame".encode())])
    right = (b"authorization", "Bearer sësame".encode())
    wrongs = [(b"",), (b"Bearer ",), (b"Bearer s",), ("Bearer sësame2".encode(),), (right[1],) * 2]
    for wrong in wrongs:
        with pytest.raises(RequestRefused) as refused:
            auth.check([(b"authorization", one) for one in wrong])
        assert refused.value.status == 401
        assert "sësame" not in str(refused.value)


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


def test_a_key_may_come_as_the_password_of_an_address() -> None:
    auth = ApiKeyAuth({"K": "së:same"})
    for right in ("x:së:same", ":së:same"):
        auth.check([(b"authorization", basic(right))])
        auth.check([(b"authorization", basic(right).replace(b"Basic", b"bASIC "))])
    wrong = [basic(text) for text in ("së:same", "x:së", "x:së:same2", "x:", "", "x")]
    wrong += [b"Basic", b"Basic !!!!", b"Basic eDo", "Basic ë".encode(), basic("x:së:same")[1:]]
    for one in wrong:
        with pytest.raises(RequestRefused) as refused:
            auth.check([(b"authorization", one)])
        assert refused.value.status == 401
        assert "same" not in str(refused.value)


@given(st.binary(max_size=60))
def test_no_header_but_the_right_one_lets_in(header: bytes) -> None:
    for start in (b"", b"Basic ", b"Bearer "):
        with pytest.raises(RequestRefused):
            ApiKeyAuth({"K": "a long key"}).check([(b"authorization", start + header)])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "judge.example"])
def test_a_public_address_needs_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="JUDGE_MODEL_API_KEY"):
        read_service_keys(ServiceSettings(host=host))
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "  ")
    with pytest.raises(ConfigError, match="JUDGE_MODEL_API_KEY"):
        read_service_keys(ServiceSettings(host=host))
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "k")
    assert read_service_keys(ServiceSettings(host=host)) == {"JUDGE_MODEL_API_KEY": "k"}
    monkeypatch.delenv("JUDGE_MODEL_API_KEY")
    for here in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert read_service_keys(ServiceSettings(host=here)) == {}


def test_each_client_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    settings = ServiceSettings(client=("TEAM_A=2", "TEAM_B"))
    monkeypatch.setenv("TEAM_A", "a")
    with refuses("--client"):
        read_service_keys(settings)
    monkeypatch.setenv("TEAM_B", "a")
    with refuses("--client"):
        read_service_keys(settings)
    monkeypatch.setenv("TEAM_B", "b")
    auth = ApiKeyAuth(read_service_keys(settings))
    assert auth.check([(b"authorization", b"Bearer b")]) == "TEAM_B"
    with pytest.raises(RequestRefused):
        auth.check([(b"authorization", b"Bearer c")])


@pytest.mark.parametrize("client", ["a key with spaces", "A=0", "A=x", "=1", "A=-1", "A=nan"])
def test_a_client_that_cannot_be_read_is_refused_and_not_shown(client: str) -> None:
    with refuses("client") as refused:
        ServiceSettings(client=(client,))
    assert client not in str(refused.value)
