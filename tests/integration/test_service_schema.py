"""The OpenAPI document against the running service: nothing undocumented, whatever is sent."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from adjudge.service.server import RunningService, start_service_process

pytestmark = pytest.mark.slow

BACKEND = str(Path(__file__).with_name("service_backend.py"))
SETTINGS = {"port": 0, "batch_timeout": 0.0, "max_body_mb": 2.0}
ROUTES = ("/judge", "/batch_judge", "/group_judge")
LESSER = ("/health", "/ready", "/metrics", "/calls", "/reverify_mode", "/docs", "/openapi.json")


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    command = [sys.executable, BACKEND, msgspec.json.encode(SETTINGS).decode()]
    with start_service_process(command) as (running, _):
        yield running


@pytest.fixture(scope="module")
def document(service: RunningService) -> dict[str, Any]:
    with urllib.request.urlopen(f"{service.url}/openapi.json") as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_every_route_is_described(service: RunningService, document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {*ROUTES, *LESSER, *service.routes}
    for path in service.routes:
        assert {"200", "400", "401", "413", "422", "429", "503"} <= set(
            document["paths"][path]["post"]["responses"]
        )


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, "positive") for path in (*ROUTES, "formats", *LESSER)]
    + [(path, "negative") for path in ROUTES],  # elsewhere nothing can be said wrongly
)
def test_what_comes_back_is_what_is_described(
    service: RunningService, document: dict[str, Any], path: str, mode: str
) -> None:
    # Imported late: it takes every worker two seconds, and most of them run none of this.
    import schemathesis
    from schemathesis.checks import not_a_server_error, positive_data_acceptance

    formats = [one for one in service.routes if one not in ROUTES]
    schema = schemathesis.openapi.from_dict(document)
    excluded = [not_a_server_error]
    if path in {"formats", "/group_judge"}:  # more is asked of these than a schema says
        excluded.append(positive_data_acceptance)
    for one in formats if path == "formats" else [path]:
        operation = schema[one]["POST" if path not in LESSER else "GET"]

        @settings(
            max_examples=30, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def ask(case: Any) -> None:
            response = case.call(base_url=service.url)
            assert response.status_code < 500 or response.status_code == 503, response.text
            case.validate_response(response, excluded_checks=excluded)

        ask()
