"""Multi-turn environments: text in, text out, and episodes that become rollouts.

Write one by the :class:`Environment` protocol; ``CrafterEnvironment`` ships with the package
(``pip install crafter``). A task app serves environments over HTTP; its names here are imported
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adjudge_lab.environments.crafter import CrafterEnvironment
from adjudge_lab.environments.tasks import (
    DatasetTask,
    Environment,
    EnvironmentTask,
    Episode,
    OutOfContext,
    Policy,
    Step,
    Task,
    play,
    play_many,
)

if TYPE_CHECKING:
    from adjudge_lab.environments.gateway import PolicyGateway
    from adjudge_lab.environments.task_app import TaskAppConfig, build_app, serve_task_app
    from adjudge_lab.environments.task_client import TaskAppTask, fetch_rubrics

__all__ = [
    "CrafterEnvironment",
    "DatasetTask",
    "Environment",
    "EnvironmentTask",
    "Episode",
    "OutOfContext",
    "Policy",
    "PolicyGateway",
    "Step",
    "Task",
    "TaskAppConfig",
    "TaskAppTask",
    "build_app",
    "fetch_rubrics",
    "play",
    "play_many",
    "serve_task_app",
]


_HOME = {
    "gateway": ("PolicyGateway",),
    "task_app": ("TaskAppConfig", "build_app", "serve_task_app"),
    "task_client": ("TaskAppTask", "fetch_rubrics"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'adjudge_lab.environments' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge_lab.environments.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
