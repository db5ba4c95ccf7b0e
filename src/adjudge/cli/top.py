"""``adjudge top``: a live look at a judge service, from two readings of its ``/metrics``.

Rates, shares and quantiles are those between the two readings.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError, URLError

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from adjudge.cli.console import clean, output
from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.installation import install_command
from adjudge.report.table import Column, Table, numeric, styled
from adjudge.text import printable

_MAX_BYTES = 4 << 20

MetricLabels = tuple[tuple[str, str], ...]


class MetricsUnavailable(Exception):
    """The service gave no numbers; the message says why."""


@dataclass(frozen=True)
class MetricsSnapshot:
    """All numbers at one moment: ``values[name][labels]``; ``at`` is a monotonic time."""

    at: float
    values: Mapping[str, Mapping[MetricLabels, float]]

    def series(self, name: str) -> Mapping[MetricLabels, float]:
        """The values of one metric by their labels; empty when there is none."""
        return self.values.get(name, {})


@dataclass(frozen=True)
class MetricsInterval:
    """What happened between two readings; counters that fell started anew with the process."""

    before: MetricsSnapshot
    after: MetricsSnapshot

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.after.at - self.before.at

    def now(self, name: str) -> float:
        """A gauge, or a total, as it stands."""
        return sum(self.after.series(name).values())

    def change(self, name: str, **labels: str) -> float:
        """By how much a counter grew, summed over the series that have these labels."""
        return sum(self._grown(name, labels).values())

    def rate(self, name: str, **labels: str) -> float:
        """:meth:`change` per second."""
        return self.change(name, **labels) / self.seconds if self.seconds > 0 else 0.0

    def by(self, name: str, label: str) -> dict[str, float]:
        """A counter's totals by one label's values."""
        found: dict[str, float] = {}
        for labels, value in self.after.series(name).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """A histogram's quantile over the span, linear inside its bucket; ``None`` without values.

        Of what lies above the last bound only that bound is known, and given.
        """
        buckets: dict[float, float] = {}
        for found, count in self._grown(f"{name}_bucket", labels).items():
            bound = float(dict(found)["le"])
            buckets[bound] = buckets.get(bound, 0.0) + count
        return _bucket_quantile(sorted(buckets.items()), share)

    def mean(self, name: str, **labels: str) -> float | None:
        """A histogram's mean over the span; ``None`` without values."""
        count = self.change(f"{name}_count", **labels)
        return self.change(f"{name}_sum", **labels) / count if count else None

    def _grown(self, name: str, labels: Mapping[str, str]) -> dict[MetricLabels, float]:
        before = self.before.series(name)
        grown = {}
        for found, value in self.after.series(name).items():
            if labels.items() <= dict(found).items():
                earlier = before.get(found, 0.0)
                grown[found] = value - earlier if value >= earlier else value
        return grown


def _bucket_quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """From cumulative counts by upper bound, in ascending order."""
    if not buckets or not buckets[-1][1]:
        return None
    wanted, floor, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if bound == float("inf"):
                return floor
            return floor + (bound - floor) * max(0.0, wanted - below) / (count - below)
        floor, below = bound, count
    return floor


def read_metrics(url: str, key_env: str, *, timeout_s: float = 5.0) -> MetricsSnapshot:
    """The numbers of the service at ``url``; the key in ``key_env``, if it is set, is shown to it.

    Blocks. Raises :class:`MetricsUnavailable`, and :class:`~adjudge.errors.ConfigError` for an
    address that is none and where ``prometheus_client`` is not installed.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r}: must be the address of a service, such as http://host:8888")
    if "@" in url.split("/")[2]:
        # Not shown: that is a key.
        raise ConfigError(
            "the address contains a user name or a key. Put the key into the environment variable "
            f"{key_env}."
        )
    key = os.environ.get(key_env, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"the environment variable {key_env} contains characters that are not printable ASCII. "
            "Set it to the service's key."
        )
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url.rstrip("/") + "/metrics", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            text = response.read(_MAX_BYTES).decode("utf-8", "replace")
    except HTTPError as error:
        hint = f" (the key is read from {key_env})" if error.code == 401 else ""
        raise MetricsUnavailable(f"the service answered {error.code}{hint}") from None
    except HTTPException as error:
        raise MetricsUnavailable(f"the reply is not valid HTTP ({type(error).__name__})") from None
    except (URLError, OSError, ValueError) as error:
        raise MetricsUnavailable(str(getattr(error, "reason", error))) from None
    return MetricsSnapshot(time.monotonic(), _parse_values(text))


def _parse_values(text: str) -> dict[str, dict[MetricLabels, float]]:
    values: dict[str, dict[MetricLabels, float]] = {}
    for name, labels, value in _parse_samples(text):
        values.setdefault(name, {})[tuple(sorted(labels.items()))] = value
    return values


def _parse_samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"adjudge top needs {error.name}. Run: {install_command('server')}"
        ) from error
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, dict(sample.labels), float(sample.value)
    except (ValueError, IndexError, KeyError) as error:
        raise MetricsUnavailable(f"the reply holds no readable metrics ({error})") from None


_SPARK_CHARACTERS = " ▁▂▃▄▅▆▇█"
_DURATION_METRIC = "judge_request_duration_seconds"
_HISTORY_LENGTH = 60
_KEY_VARIABLE = "ADJUDGE_SERVICE_KEY"


def top(
    url: Annotated[str, typer.Argument(help="The service's address.")] = "http://127.0.0.1:8888",
    interval: Annotated[
        float, typer.Option(min=0.1, help="How many seconds to wait between two readings.")
    ] = 1.0,
    api_key_env: Annotated[
        str, typer.Option(help="The environment variable with the service's key, if it needs one.")
    ] = _KEY_VARIABLE,
    once: Annotated[bool, typer.Option("--once", help="Print one interval and stop.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each interval.")
    ] = False,
) -> None:
    """Watch a judge service: throughput, latency, cost, failures.

    Example: adjudge top http://127.0.0.1:8888 --interval 2

    Also shows queue, cache and breakers. Rates and quantiles are of the last interval; totals count
    from the start of the service. Into a file or a pipe it prints a line for each interval, with
    the time. Everything is read from the service's /metrics. Ctrl-C stops it.

    Exit code: 3 when the service does not answer at the start.
    """
    try:
        before = read_metrics(url, api_key_env)
    except MetricsUnavailable as error:
        raise JudgeUnavailable(f"{url}: {error}") from None
    if once:
        time.sleep(interval)
        looks = _LookHistory(url, before)
        looks.look(api_key_env)
        _print(looks, as_json)
        return
    _watch(_LookHistory(url, before), interval, api_key_env, as_json)


def _watch(looks: _LookHistory, interval: float, key_env: str, as_json: bool) -> None:
    on_terminal = output().is_terminal
    try:
        if as_json or not on_terminal:
            while True:
                time.sleep(interval)
                looks.look(key_env)
                if as_json:
                    _print(looks, as_json)
                else:
                    now = datetime.now().astimezone()
                    typer.echo(f"{now:%Y-%m-%d %H:%M:%S} {printable(looks.line())}")
        with Live(Text(f"reading {looks.url} …"), console=output(), auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                looks.look(key_env)
                live.update(looks.drawn(), refresh=True)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # whoever read has read enough; the interpreter flushes once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(looks: _LookHistory, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(looks.plain()))
    else:
        output().print(looks.drawn())


class _LookHistory:
    """One look after another, and what the last one found."""

    def __init__(self, url: str, first: MetricsSnapshot) -> None:
        self.url = url
        self._last = first
        self._span: MetricsInterval | None = None
        self._past: deque[float] = deque(maxlen=_HISTORY_LENGTH)
        self._problem = ""

    def look(self, key_env: str) -> None:
        """Read again; a service that does not answer is said so, and looked at again."""
        try:
            reading = read_metrics(self.url, key_env)
        except MetricsUnavailable as error:
            self._problem = str(error)
            self._span = None
            return
        self._problem = ""
        self._span = MetricsInterval(self._last, reading)
        self._last = reading
        self._past.append(self._span.rate("judge_requests_total"))

    def plain(self) -> dict[str, Any]:
        """The last look as plain data."""
        span = self._span
        if span is None:
            return {"url": self.url, "problem": self._problem}
        return {
            "url": self.url,
            "requests_per_s": span.rate("judge_requests_total"),
            "outcomes": span.by("judge_requests_total", "outcome"),
            "queue": span.now("judge_queue_size"),
            "in_flight": span.now("judge_inflight"),
            "batch_mean": span.mean("judge_batch_size"),
            **{f"p{q}_s": span.quantile(_DURATION_METRIC, q / 100) for q in (50, 95, 99)},
            "failures": span.by("judge_failures_total", "kind"),
            "cost_usd": span.now("judge_cost_usd_total"),
            "upstream": _upstream(span),
        }

    def line(self) -> str:
        """The last look as one line of a log."""
        span = self._span
        if span is None:
            return f"{self.url}: no answer: {self._problem}"
        parts = [
            f"{span.rate('judge_requests_total'):,.1f} req/s",
            f"queue {span.now('judge_queue_size'):,.0f}",
            f"in flight {span.now('judge_inflight'):,.0f}",
            *(f"p{q} {_ms(span.quantile(_DURATION_METRIC, q / 100))}" for q in (50, 95)),
            f"${span.now('judge_cost_usd_total'):,.4f}",
        ]
        failures = [
            f"{kind} {total:,.0f} (+{span.change('judge_failures_total', kind=kind):,.0f})"
            for kind, total in sorted(span.by("judge_failures_total", "kind").items())
            if total
        ]
        if failures:
            parts.append(f"failed: {', '.join(failures)}")
        if down := [name for name, found in _upstream(span).items() if found.get("up") == 0]:
            parts.append(f"breaker open: {', '.join(down)}")
        return ", ".join(parts)

    def drawn(self) -> Group:
        """The last look as tables."""
        span = self._span
        if span is None:
            return Group(Text(f"{self.url}: no answer: {clean(self._problem)}", style="red"))
        rate = span.rate("judge_requests_total")
        numbers = (
            f"{rate:,.1f} req/s",
            f"queue {span.now('judge_queue_size'):,.0f}",
            f"in flight {span.now('judge_inflight'):,.0f}",
            f"batch {_or_dash(span.mean('judge_batch_size'), '.1f')}",
            f"${span.now('judge_cost_usd_total'):,.4f}",
        )
        head = Text.assemble((self.url, "bold"), *(f"   {one}" for one in numbers))
        parts: list[Any] = [head, Text(_sparkline(self._past), style="cyan"), _routes(span)]
        failures = span.by("judge_failures_total", "kind")
        if any(failures.values()):
            parts.append(_failures(span, failures))
        if upstream := _upstream(span):
            parts.append(_endpoints(upstream))
        return Group(*parts)


_OUTCOMES = ("answered", "failed", "refused", "queue_full", "unavailable", "disconnected")


def _routes(span: MetricsInterval) -> Table:
    totals: dict[str, dict[str, float]] = {}
    for labels, value in span.after.series("judge_requests_total").items():
        found = dict(labels)
        totals.setdefault(found["route"], {})[found["outcome"]] = value
    rows = [
        [
            route,
            f"{span.rate('judge_requests_total', route=route):,.1f}",
            *(_ms(span.quantile(_DURATION_METRIC, q, route=route)) for q in (0.5, 0.95, 0.99)),
            *(f"{outcomes.get(name, 0):,.0f}" for name in _OUTCOMES),
        ]
        for route, outcomes in totals.items()
        if any(outcomes.values())
    ]
    headings = [name.replace("_", " ") for name in _OUTCOMES[:-1]]
    numbers = numeric("req/s", "p50", "p95", "p99", *headings, "left")
    seldom = ("p50", "p99", "left", "refused", "unavailable", "queue full")
    return Table(
        [Column("route", wrap=False), *numbers],
        rows,
        drop=seldom,
        keep=("req/s", "answered", "failed"),
    )


def _failures(span: MetricsInterval, failures: dict[str, float]) -> Table:
    rows = [
        [kind, f"{total:,.0f}", f"{span.rate('judge_failures_total', kind=kind):,.2f}"]
        for kind, total in sorted(failures.items(), key=lambda pair: -pair[1])
    ]
    return Table([Column("failed as", wrap=False), *numeric("total", "per s")], rows)


def _upstream(span: MetricsInterval) -> dict[str, dict[str, float]]:
    """What the judges' endpoints have counted, by endpoint."""
    found: dict[str, dict[str, float]] = {}
    for name in ("calls", "cache_hits", "retries", "timeouts", "circuit_opened"):
        for endpoint, total in span.by(f"judge_upstream_{name}_total", "endpoint").items():
            found.setdefault(endpoint, {})[name] = total
    for endpoint, counts in found.items():
        counts["calls_per_s"] = span.rate("judge_upstream_calls_total", endpoint=endpoint)
    for name in ("limit", "up"):
        for endpoint, value in span.by(f"judge_upstream_{name}", "endpoint").items():
            found.setdefault(endpoint, {})[name] = value
    return found


def _endpoints(upstream: dict[str, dict[str, float]]) -> Table:
    rows = []
    for endpoint, found in upstream.items():
        counts = Counter(found)
        calls, opened = counts["calls"], f"opened {counts['circuit_opened']:,.0f} ×"
        share = counts["cache_hits"] / calls if calls else 0.0
        rows.append(
            [
                endpoint,
                f"{counts['calls_per_s']:,.1f}",
                f"{calls:,.0f}",
                f"{share:.0%}",
                *(f"{counts[name]:,.0f}" for name in ("retries", "timeouts", "limit")),
                styled("open", "bad") if found.get("up") == 0 else opened,
            ]
        )
    numbers = numeric("calls/s", "calls", "cache hits", "retries", "re-sends", "limit", "breaker")
    return Table(["judge", *numbers], rows, keep=("calls/s", "breaker"))


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _sparkline(values: deque[float]) -> str:
    """The past as a line of bars, the highest of it full.

    >>> _sparkline(deque([0.0, 2.0, 4.0]))
    ' ▄█'
    """
    most = max(values, default=0.0)
    if not most:
        return ""
    return "".join(
        _SPARK_CHARACTERS[round(value / most * (len(_SPARK_CHARACTERS) - 1))] for value in values
    )
