"""A look at a service's numbers: rates, quantiles, restarts, and services that do not answer."""

import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.cli.top import (
    MetricsInterval,
    MetricsSnapshot,
    MetricsUnavailable,
    _parse_values,
    read_metrics,
)
from adjudge.errors import ConfigError
from adjudge.judges.endpoint.stats import EndpointStats
from adjudge.service.metrics import RouteMetrics, ServiceMetrics

SECONDS = "judge_request_duration_seconds"


def served() -> tuple[ServiceMetrics, RouteMetrics]:
    metrics = ServiceMetrics()
    metrics.watch(SimpleNamespace(waiting=3, judging=5))
    return metrics, metrics.route("/judge")


def reading(at: float, metrics: ServiceMetrics) -> MetricsSnapshot:
    return MetricsSnapshot(at, _parse_values(metrics.text().decode()))


@pytest.fixture(autouse=True)
def no_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjudge.service.metrics.open_connections", list)


def test_rates_are_of_the_interval_and_totals_of_the_service() -> None:
    metrics, route = served()
    route.count("answered", 0.01)
    first = reading(10.0, metrics)
    for _ in range(6):
        route.count("answered", 0.02)
    route.count("failed", 0.5)
    metrics.failed("timeout")
    span = MetricsInterval(first, reading(12.0, metrics))
    assert span.rate("judge_requests_total", outcome="answered") == 3.0
    assert span.rate("judge_requests_total") == 3.5
    assert span.by("judge_requests_total", "outcome")["answered"] == 7
    assert span.by("judge_failures_total", "kind") == {"timeout": 1}
    assert (span.now("judge_queue_size"), span.now("judge_inflight")) == (3, 5)


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], share: float) -> None:
    metrics, route = served()
    first = reading(0.0, metrics)
    for one in seconds:
        route.count("answered", one)
    found = MetricsInterval(first, reading(1.0, metrics)).quantile(SECONDS, share, route="/judge")
    true = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    bounds = [0.0, *route.seconds._bounds]
    place = next(i for i, bound in enumerate(bounds) if bound >= true)
    assert found is not None
    assert bounds[place - 1] <= found <= bounds[place] * (1 + 1e-9)


def test_without_requests_there_is_no_quantile() -> None:
    metrics, _ = served()
    span = MetricsInterval(reading(0.0, metrics), reading(1.0, metrics))
    assert span.quantile(SECONDS, 0.5) is None
    assert span.mean("judge_batch_size") is None
    assert span.rate("judge_requests_total") == 0.0


def test_a_restarted_service_counts_from_nothing() -> None:
    old, route = served()
    for _ in range(10):
        route.count("answered", 0.01)
    new, route = served()
    route.count("answered", 0.01)
    span = MetricsInterval(reading(0.0, old), reading(1.0, new))
    assert span.change("judge_requests_total") == 1


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def not_http(reply: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sec\nret", "sec\u20acret"):
        monkeypatch.setenv("SERVICE_KEY", key)
        with pytest.raises(ConfigError, match="SERVICE_KEY contains characters") as caught:
            read_metrics("http://127.0.0.1:9", "SERVICE_KEY")
        assert "sec" not in str(caught.value)


def connection(*closed: bool) -> SimpleNamespace:
    breakers = [SimpleNamespace(closed=one) for one in closed]
    return SimpleNamespace(
        endpoint=SimpleNamespace(stats=EndpointStats(), breakers=breakers),
        endpoint_key=SimpleNamespace(base_urls=["http://judge/v1"]),
    )


def test_an_endpoint_is_up_while_one_of_its_breakers_lets_calls_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [connection(), connection(False, True), connection(False)]
    monkeypatch.setattr("adjudge.service.metrics.open_connections", lambda: found)
    metrics, _ = served()
    up = reading(0.0, metrics).series("judge_upstream_up")
    assert {dict(labels)["endpoint"]: value for labels, value in up.items()} == {
        "1:http://judge/v1": 1.0, "2:http://judge/v1": 1.0, "3:http://judge/v1": 0.0,
    }  # fmt: skip
    with answering(metrics.text()) as url:
        command = ["top", url, "--once", "--interval", "0.1"]
        assert len(re.findall(r" open\s", CliRunner().invoke(app, command).stdout)) == 1


def test_what_is_no_service_is_said() -> None:
    with (
        answering(b"{not metrics} at all") as url,
        pytest.raises(MetricsUnavailable, match="no readable metrics"),
    ):
        read_metrics(url, "NO_KEY")
    with (
        answering(b"", 401) as url,
        pytest.raises(MetricsUnavailable, match="401 .the key is read from"),
    ):
        read_metrics(url, "SERVICE_KEY")
    with pytest.raises(MetricsUnavailable, match="refused"):
        read_metrics(url, "NO_KEY")
    with (
        not_http(b"SSH-2.0-Server\r\n") as url,
        pytest.raises(MetricsUnavailable, match="not valid HTTP"),
    ):
        read_metrics(url, "NO_KEY")
    cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    with not_http(cut) as url, pytest.raises(MetricsUnavailable, match="not valid HTTP"):
        read_metrics(url, "NO_KEY")
    with pytest.raises(ConfigError, match="address of a service"):
        read_metrics("file:///etc/passwd", "NO_KEY")
    with pytest.raises(ConfigError, match="(?i)put the key into .*SERVICE_KEY") as caught:
        read_metrics("http://any:hush@127.0.0.1:8888", "SERVICE_KEY")
    assert "hush" not in str(caught.value)


def test_one_look_from_the_command_line() -> None:
    metrics, route = served()
    route.count("answered", 0.03)
    metrics.failed("[red]odd")
    with answering(metrics.text()) as url:
        command = ["top", url, "--once", "--interval", "0.1"]
        shown = CliRunner().invoke(app, command)
        plain = CliRunner().invoke(app, [*command, "--json"])
    assert shown.exit_code == 0
    assert "/judge" in shown.stdout
    assert "[red]odd" in shown.stdout
    found = msgspec.json.decode(plain.stdout)
    assert found["outcomes"]["answered"] == 1
    assert found["queue"] == 3
    nobody = CliRunner().invoke(app, command)
    assert nobody.exit_code == 3


def test_into_a_pipe_goes_a_line_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, route = served()
    route.count("answered", 0.03)
    naps = iter(range(3))

    def sleep(_: float) -> None:
        nap = next(naps)
        if nap == 2:
            raise KeyboardInterrupt
        for _ in range(4):
            route.count("answered", 0.02)
        metrics.failed("odd\x1b[31m")
        body[0] = metrics.text() if nap == 0 else b"{not metrics}"

    body = [metrics.text()]
    monkeypatch.setattr("adjudge.cli.top.time.sleep", sleep)
    monkeypatch.setattr(
        "adjudge.cli.top.read_metrics",
        lambda *_: MetricsSnapshot(time.monotonic(), _parse_values(body[0].decode())),
    )
    done = CliRunner().invoke(app, ["top", "http://judge"])
    assert done.exit_code == 0
    first, second = done.stdout.splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [\d,.]+ req/s, queue 3, in flight 5, "
        r"p50 [\d.]+ ms, p95 [\d.]+ ms, \$0\.0000, failed: odd\\x1b\[31m 1 \(\+1\)",
        first,
    )
    assert "http://judge: no answer: the reply holds no readable metrics" in second
