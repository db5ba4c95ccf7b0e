"""The service's metrics: the dashboard and the alerts name only those of the page."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

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
