"""The judge service of a run: ``adjudge serve`` with the run's judged graders, and its client."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from adjudge.client.grader import ServedGrader
from adjudge.config import Interpolated
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.mock import start_mock
from adjudge.rewards.spec import RewardSpec
from adjudge.rubrics import RubricBundle
from adjudge.service.settings import KEY_VARIABLE
from adjudge.training.runfile import RunFile

__all__ = ["ServedJudge", "check_service", "listening_judge", "service_calls", "toml_text"]


class ServedJudge(ServedGrader):
    """A service whose spec averages normalised graders; range [0, 1]."""

    score_range = (0.0, 1.0)


@contextmanager
def listening_judge(run: RunFile, folder: Path) -> Iterator[tuple[RewardSpec, str | None]]:
    """The run's reward spec, with all that answers it listening, and the service's address if any.

    That is ``adjudge mock`` where the run starts its own judge, and ``adjudge serve`` in front of
    the judge under ``[services]``; its spec is left in ``folder`` as ``judge.toml``.
    """
    with ExitStack() as processes:
        base_url = None
        if run.starts_mock and run.judge.mock is not None:
            base_url = processes.enter_context(start_mock(run.judge.mock.settings()))
        rubric = _rubric(run)
        service_url = None
        if run.services.judge_url is not None:
            path = folder / "judge.toml"
            path.write_text(toml_text(run.served(base_url, rubric)), encoding="utf-8")
            service_url = processes.enter_context(_service(path, run))
        yield run.reward_spec(base_url, service_url, rubric), service_url


def _rubric(run: RunFile) -> RubricBundle | None:
    """What the task app has under the run's ``rubric_id``, where no file has it."""
    judge, url = run.judge, run.services.task_url
    if not judge.enabled or judge.rubric_id is None or run.rubric_file is not None or url is None:
        return None
    from adjudge.environments.task_client import fetch_rubrics  # noqa: PLC0415  (HTTP)

    bundle: RubricBundle = run_blocking(fetch_rubrics(url, run.services.task_key_env))
    named = bundle.global_rubric.id if bundle.global_rubric is not None else judge.rubric_id
    if named != judge.rubric_id:
        run.refuse(
            "judge.rubric_id", f"is {judge.rubric_id!r}; the task app at {url} has {named!r}"
        )
    return bundle


def service_calls(url: str) -> list[dict[str, Any]]:
    """What the judges behind a run's service were asked, as :meth:`CallCount.table` has it."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url}/calls", headers=headers)  # noqa: S310  (our own)
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        found: list[dict[str, Any]] = json.loads(response.read())
    return found


def check_service(run: RunFile) -> None:
    """Raise :class:`ConfigError` where the run wants a service and its libraries are missing."""
    if run.services.judge_url is not None:
        try:
            import adjudge.service.serving  # noqa: F401, PLC0415  (brings a web server)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"[services] judge_url needs {error.name}: pip install 'adjudge[server]'"
            ) from None


def _service(path: Path, run: RunFile) -> Any:
    from adjudge.service.serving import start_service  # noqa: PLC0415

    return start_service(str(path), deadline_s=run.training.judge_timeout_s)


def toml_text(data: dict[str, Any]) -> str:
    """Plain data as TOML: a line per key, tables inline; ``${NAME}`` where a file had it.

    >>> print(toml_text({"graders": [{"name": "a", "range": [0.0, 1.0]}], "strict": True}), end="")
    graders = [{name = "a", range = [0.0, 1.0]}]
    strict = true
    """
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in data.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_value(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return _text(value)


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _text(key)


def _text(value: Any) -> str:
    value = value.written if isinstance(value, Interpolated) else value
    # JSON is TOML if it escapes nothing by surrogates; DEL is the one character to be escaped, too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
