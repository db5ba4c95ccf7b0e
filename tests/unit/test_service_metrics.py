"""The service's metrics: the page on them names all, the dashboard and the alerts no others."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from adjudge.service.metrics import ServiceMetrics
from adjudge.service.queue import FairQueue

DOCS = Path(__file__).parents[2] / "docs"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "summary": ("_sum", "_count"),
    "histogram": ("_bucket", "_sum", "_count"),
}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type and labels of each metric in the page's table."""
    rows = re.findall(
        r"^\|`(judge_\w+)`\|(\w+)\|(.*?)\|", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def queries() -> Iterator[str]:
    """Those of the Grafana dashboard, and of the alerts on the page for operators."""
    dashboard = json.loads((DOCS / "assets" / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    page = (DOCS / "many-machines.md").read_text()
    alerts = yaml.safe_load(page.partition("```yaml")[2].partition("\n")[2].partition("```")[0])
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


async def served() -> dict[str, tuple[str, set[str]]]:
    metrics: Any = ServiceMetrics()  # the names of labels are a private part of the library
    gauges: Any = SimpleNamespace(waiting=0, judging=0, queue=FairQueue(1))
    metrics.watch(gauges)
    families: Any = metrics.registry.collect()  # the names of labels have no public name
    return {
        family.name: (family.type, set(family._labelnames))
        for family in families
        if family.name.startswith("judge_")
    }


def test_the_page_has_each_metric_with_its_type_and_labels() -> None:
    assert documented() == asyncio.run(served())


def test_the_dashboard_and_the_alerts_ask_for_metrics_and_labels_that_exist() -> None:
    labels_of = {
        name + suffix: labels | ({"le"} if suffix == "_bucket" else set())
        for name, (kind, labels) in documented().items()
        for suffix in SUFFIXES[kind]
    }
    for query in queries():
        names = re.findall(r"\bjudge_\w+", query)
        assert names
        labels = re.findall(r"by \((\w+)\)", query)
        for metric, label in re.findall(r"(judge_\w+)\{(\w+)=", query):
            assert label in labels_of[metric], query
        assert all(set(labels) <= labels_of[name] for name in names), query
