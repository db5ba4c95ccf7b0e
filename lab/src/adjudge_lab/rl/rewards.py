"""The rewards of a run: its reward spec, what answers it, and the run's own graders.

The spec is made from ``[[graders]]`` and ``[judge]``, from the folders of trained judges that
``[judge] folder`` names, or, without a judge, from the environment's reward. A plan sees it before
there is a rubric's file, a key, or a single episode. What answers it: ``adjudge mock`` and
``adjudge serve`` with the run's judged graders, and the service's client.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.client.grader import ServedGrader
from adjudge.config import InterpolatedText, load_toml
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.registry import list_parameters, load_grader_class
from adjudge.installation import install_command
from adjudge.judges.presets import PRESETS
from adjudge.judges.table import SHIPPED_JUDGES
from adjudge.mock import start_mock
from adjudge.rewards.spec import JudgedReward, RewardSpec, is_trained_judge
from adjudge.rubrics import GlobalRubric, RubricBundle, find_bundle, load_bundle
from adjudge.types import GraderScore
from adjudge.wire import JUDGE_KEY_VARIABLE
from adjudge_lab.environments.tasks import DatasetTask, read_dataset
from adjudge_lab.rl.runfile import UNREACHABLE_URL, RunFile
from adjudge_lab.rl.tiny import CapitalsTask

_REWARD_KEYS = set(JudgedReward.model_fields)
_SPEC_FILE = "reward.toml"
_UNSAFE_IN_NAME = re.compile(r"[^\w.-]", re.ASCII)


def build_reward_spec(
    run: RunFile,
    base_url: str | None = None,
    service_url: str | None = None,
    rubric: RubricBundle | None = None,
) -> RewardSpec:
    """The reward spec of ``run``, its judge at ``base_url`` (default: the file's).

    With ``service_url`` what :func:`build_service_spec` holds is asked there. ``rubric`` is what a
    task app has under ``rubric_id``. Raises :class:`ConfigError`.
    """
    if not run.judge.enabled:
        return _environment_spec(run)
    training = run.training
    graders = _build_graders(run, rubric)
    spec: dict[str, Any] = {
        "graders": graders,
        "judges": _build_judges(run, base_url),
        "reward": {**run.judge.model_dump(include=_REWARD_KEYS), "seed": training.seed},
        "max_concurrency": training.async_semaphore_max,
    }
    if service_url is not None:
        judged = _judged_graders(run, graders)
        spec["graders"] = [
            _served_grader(run, judged, service_url),
            *(one for one in graders if one not in judged),
        ]
        del spec["judges"]
    return _resolve_spec(run, spec)


def build_service_spec(
    run: RunFile, base_url: str | None = None, rubric: RubricBundle | None = None
) -> dict[str, Any]:
    """The reward spec, as plain data, of the judge service that ``[services]`` asks for."""
    return {
        "graders": _judged_graders(run, _build_graders(run, rubric)),
        "judges": _build_judges(run, base_url),
        "reward": {"aggregate": run.judge.aggregate},
        "max_concurrency": run.training.async_semaphore_max,
    }


def asks_judge(run: RunFile, grader: dict[str, Any]) -> bool:
    """Whether an entry of ``[[graders]]`` asks the judge; raises :class:`ConfigError`."""
    where = f"{run.where}: graders.{grader.get('name')}: type"
    kind = load_grader_class(str(grader.get("type", "")), run.source_folder, where=where)
    return any(parameter.is_judge for parameter in list_parameters(kind))


def uses_only_rules(run: RunFile) -> bool:
    """Whether rules alone make the judge's part, so that no judge is named or asked."""
    judge = run.judge
    if not judge.enabled or judge.folders or judge.model or judge.rubric_id is not None:
        return False
    return bool(run.graders) and not _judged_graders(run, run.graders)


def find_judge_key_env(run: RunFile) -> str | None:
    """The variable with the judge's key; ``None`` where none is needed."""
    judge, preset = run.judge, PRESETS.get(run.judge.type)
    if not judge.enabled or run.starts_mock or judge.folders or uses_only_rules(run):
        return None
    if judge.api_key_env is None and preset is not None and preset.needs_key:
        return preset.key_env
    return judge.api_key_env


def name_judge(run: RunFile) -> str | None:
    """What the judge is called in reports; ``None`` without one."""
    judge = run.judge
    if not judge.enabled:
        return None
    if judge.folders:
        return ", ".join(Path(folder).name for folder in judge.folders)
    return "rules" if uses_only_rules(run) else judge.model or judge.type


def _resolve_spec(run: RunFile, data: dict[str, Any]) -> RewardSpec:
    try:
        return RewardSpec.from_dict(data, where=run.where, folder=run.source_folder)
    except ConfigError as error:  # the file has one judge, in a table of this name
        theirs, ours = f"{run.where}: judges.judge", f"{run.where}: judge."
        lines = (
            ours + line.removeprefix(theirs).lstrip(".: ") if line.startswith(theirs) else line
            for line in str(error).split("\n")
        )
        raise ConfigError("\n".join(lines)) from None


def _environment_spec(run: RunFile) -> RewardSpec:
    """The environment's reward alone, with the rules that are only watched."""
    judged = _judged_graders(run, run.graders)
    watched = [one for one in run.graders if one not in judged]
    env = {"name": "environment", "type": "adjudge_lab.rl.rewards:EnvironmentReward"}
    return _resolve_spec(
        run,
        {
            "graders": [env, *({**one, "weight": 0.0} for one in watched)],
            "reward": {"normalise": False, "seed": run.training.seed},
        },
    )


def _build_graders(run: RunFile, rubric: RubricBundle | None) -> list[dict[str, Any]]:
    """The file's graders, and those that its rubric makes."""
    judge = run.judge
    if judge.enabled and judge.folders:
        return [*load_trained_judges(run)["graders"], *run.graders]
    if judge.rubric_id is None:
        return run.graders
    source: dict[str, Any] = {"rubric_id": judge.rubric_id, "rubric_dir": judge.rubric_dir}
    if run.rubric_file is None and rubric is not None:
        source = {"criteria": msgspec.to_builtins(rubric)}
    made = []
    if judge.outcome_weight:
        show = "trajectory" if run.is_multi_turn else "auto"
        made.append({"name": "rubric", "type": "rubric", "show": show, **source})
    if judge.event_weight:
        known = rubric if run.rubric_file is None else load_bundle(run.rubric_file)
        part = "events" if known is not None and known.events is not None else "outcome"
        made.append(
            {
                "name": "rubric_event", "type": "rubric", "scope": "event", "show": "event",
                "part": part, **source,
            }
        )  # fmt: skip
    return [*made, *run.graders]


def _served_grader(run: RunFile, judged: list[dict[str, Any]], url: str) -> dict[str, Any]:
    training = run.training
    return {
        "name": judged[0]["name"] if len(judged) == 1 else "judged",
        "type": "adjudge_lab.rl.rewards:ServedJudge",
        "url": url,
        "timeout": training.judge_timeout_s,
        "max_concurrent_requests": training.async_semaphore_max,
        "weight": sum(float(one.get("weight", 1.0)) for one in judged),
    }


def _judged_graders(run: RunFile, graders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of ``graders`` that ask the judge."""
    return [one for one in graders if asks_judge(run, one)]


def _build_judges(run: RunFile, base_url: str | None) -> dict[str, Any]:
    if run.judge.folders:
        judges: dict[str, Any] = load_trained_judges(run)["judges"]
        return judges
    if uses_only_rules(run):
        return {}
    return {"judge": _judge_table(run, base_url)}


def _judge_table(run: RunFile, base_url: str | None) -> dict[str, Any]:
    """What the file says; for a server with temperature 0 and the limits of ``[training]``.

    Files beside the run file are named by their whole paths, for a service or verl elsewhere.
    """
    most, table = run.training.async_semaphore_max, run.judge.judge_table()
    if run.judge.type not in SHIPPED_JUDGES:  # the keys are its class's own
        return table
    loaded = run.judge.type in ("local", "embedded")
    for key in ("cache", "cassette", "tokenizer", *(["model"] if loaded else [])):
        beside = run.folder.resolve() / str(table.get(key, ""))
        if key in table and (key in ("cache", "cassette") or beside.exists()):
            table[key] = str(beside)
    if base_url is not None:
        table["base_url"] = base_url
    if run.judge.has_server:
        limits = {"deadline_s": run.training.judge_timeout_s, "max_concurrency": most}
        table.setdefault("endpoint", {})
        if isinstance(table["endpoint"], dict):
            table["endpoint"] = limits | table["endpoint"]
        if run.judge.type != "classifier":  # it does not sample
            table.setdefault("temperature", 0.0)
    return table


def load_trained_judges(run: RunFile) -> dict[str, Any]:
    """``graders`` and ``judges`` of the spec in the judge's folder, its paths made absolute.

    Of a list of folders, all of theirs, called by the folders' names. Raises :class:`ConfigError`
    for a folder that is no trained judge's.
    """
    folders = [run.folder / folder for folder in run.judge.folders]
    if isinstance(run.judge.folder, str):
        return _read_judge_spec(run, folders[0])
    graders: list[dict[str, Any]] = []
    judges: dict[str, Any] = {}
    for name, folder in zip(_member_names(folders), folders, strict=True):
        spec = _read_judge_spec(run, folder)
        own = spec["judges"]
        graders += _rename_graders(name, spec)
        judges |= {_part_name(name, one, own): table for one, table in own.items()}
    return {"graders": graders, "judges": judges}


def _read_judge_spec(run: RunFile, folder: Path) -> dict[str, Any]:
    if not is_trained_judge(folder):
        run.refuse(
            "judge.folder", f"{folder} is not the folder of a trained judge (it has no judge.json)"
        )
    path = folder / _SPEC_FILE
    if not path.is_file():
        run.refuse(
            "judge.folder",
            f"{folder} has no {_SPEC_FILE}, the file that says how the judge is asked",
        )
    data = load_toml(path)
    RewardSpec.from_dict(data, where=str(path), folder=folder)
    judges = {
        name: {**table, "model": str(folder.resolve() / str(table["model"]))}
        if table.get("type") == "local"
        else table
        for name, table in data.get("judges", {}).items()
    }
    return {"graders": data["graders"], "judges": judges}


def _member_names(folders: list[Path]) -> list[str]:
    """What the members of a panel are called: by their folders, numbered where those are alike."""
    names: list[str] = []
    for folder in folders:
        plain = _UNSAFE_IN_NAME.sub("_", folder.resolve().name)
        if not plain[:1].isalpha() and plain[:1] != "_":
            plain = f"judge_{plain}"
        tries = (plain if n == 1 else f"{plain}_{n}" for n in range(1, len(folders) + 1))
        names.append(next(name for name in tries if name not in names))
    return names


def _rename_graders(name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The graders of a member, each with the judges that it asks there."""
    own, judges = spec["graders"], spec["judges"]
    made = []
    for grader in own:
        asked = grader.get("judge", list(judges))
        asked = [asked] if isinstance(asked, str) else asked
        places = [_part_name(name, one, judges) for one in asked]
        of_judge = {"judge": places[0] if len(places) == 1 else places} if places else {}
        made.append({**grader, "name": _part_name(name, grader["name"], own), **of_judge})
    return made


def _part_name(name: str, part: str, among: Any) -> str:
    """What a part of a member is called: by the member, if it is the only one."""
    return name if len(among) == 1 else f"{name}.{part}"


class EnvironmentReward(RuleGrader):
    """The environment's own reward as a score, for runs that ask no judge.

    Any finite number. A rollout without one is ``invalid_input``.
    """

    type_name = "environment"

    def evaluate(self, env_reward: float | None = None) -> GraderScore:
        """The score of one rollout."""
        if env_reward is None:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "the environment gave this rollout no reward"
            )
        return self._score(env_reward)


STAND_IN_RUBRIC = RubricBundle(
    global_rubric=GlobalRubric(
        criteria=tuple("a criterion of about a dozen words " for _ in "12345")
    )
)
"""For a rubric that is not there yet: judged by one call, as a rubric with a guide is."""


def load_rubric_or_stand_in(run: RunFile) -> RubricBundle | None:
    """The rubric of ``rubric_id``, a placeholder where its file is missing; ``None`` without one.

    Raises :class:`~adjudge.errors.ConfigError` for a file that is no rubric.
    """
    judge = run.judge
    if not judge.enabled or judge.rubric_id is None:
        return None
    if run.rubric_file is None:
        return STAND_IN_RUBRIC
    return find_bundle(judge.rubric_id, run.folder / judge.rubric_dir)


def dry_run_spec(run: RunFile) -> RewardSpec:
    """The reward spec of the run; its judge's address is unreachable.

    Raises :class:`~adjudge.errors.ConfigError`.
    """
    return build_reward_spec(
        run, UNREACHABLE_URL if run.starts_mock else None, rubric=load_rubric_or_stand_in(run)
    )


def build_single_turn_task(run: RunFile) -> DatasetTask | CapitalsTask:
    """The task of a run without environment; a dataset's rows pay nothing here.

    Raises :class:`~adjudge.errors.ConfigError` where the dataset cannot be read.
    """
    dataset = run.rollout.dataset
    if dataset is None:
        return CapitalsTask()
    rows = read_dataset(run.folder / dataset)
    held_out = run.evaluation.held_out if run.evaluation.seeds is not None else ()
    if beyond := [seed for seed in held_out if seed >= len(rows)]:
        run.refuse(
            "evaluation.seeds",
            f"a seed is not a row of the dataset (found {beyond[0]}; allowed: 0 to "
            f"{len(rows) - 1})",
        )
    return DatasetTask(rows, name=run.env_name, pay=None)


def check_run_machine(run: RunFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for what this machine lacks to judge the run."""
    report = run.report_spec_file
    for spec in (dry_run_spec(run), *([] if report is None else [RewardSpec.load(report)])):
        spec.check_machine(spec.build_graders())


def is_stand_in_rubric(criteria: Any) -> bool:
    """Whether a grader's ``criteria`` are those of :data:`STAND_IN_RUBRIC`."""
    return bool(criteria == msgspec.to_builtins(STAND_IN_RUBRIC))


class ServedJudge(ServedGrader):
    """A service with a spec that averages normalised graders; range [0, 1]."""

    score_range = (0.0, 1.0)


@contextmanager
def start_run_judge(run: RunFile, folder: Path) -> Iterator[tuple[RewardSpec, str | None]]:
    """The run's reward spec, with all that answers it listening, and the service's address if any.

    That is ``adjudge mock`` where the run starts its own judge, and ``adjudge serve`` in front of
    the judge under ``[services]``; its spec is left in ``folder`` as ``judge.toml``.
    """
    with ExitStack() as processes:
        base_url = None
        if run.starts_mock and run.judge.mock is not None:
            base_url = processes.enter_context(start_mock(run.judge.mock.settings()))
        rubric = _fetch_task_rubric(run)
        service_url = None
        if run.services.judge_url is not None:
            path = folder / "judge.toml"
            spec = format_toml(build_service_spec(run, base_url, rubric))
            path.write_text(spec, encoding="utf-8")
            service_url = processes.enter_context(_start_judge_service(path, run))
        yield build_reward_spec(run, base_url, service_url, rubric), service_url


def _fetch_task_rubric(run: RunFile) -> RubricBundle | None:
    """What the task app has under the run's ``rubric_id``, where no file has it."""
    judge, url = run.judge, run.services.task_url
    if not judge.enabled or judge.rubric_id is None or run.rubric_file is not None or url is None:
        return None
    from adjudge_lab.environments.task_client import fetch_rubrics  # noqa: PLC0415  (HTTP)

    bundle: RubricBundle = run_blocking(fetch_rubrics(url, run.services.task_key_env))
    named = bundle.global_rubric.id if bundle.global_rubric is not None else judge.rubric_id
    if named != judge.rubric_id:
        run.refuse(
            "judge.rubric_id",
            f"must be the rubric of the task app at {url} (found {judge.rubric_id!r}; allowed: "
            f"{named!r})",
        )
    return bundle


def fetch_service_calls(url: str) -> list[dict[str, Any]]:
    """What the judges behind a run's service were asked, as :meth:`CallCounter.table` has it."""
    key = os.environ.get(JUDGE_KEY_VARIABLE, "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url}/calls", headers=headers)  # noqa: S310  (our own)
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        found: list[dict[str, Any]] = json.loads(response.read())
    return found


def check_service_libraries(run: RunFile) -> None:
    """Raise :class:`ConfigError` where the run wants a service and its libraries are missing."""
    if run.services.judge_url is not None:
        try:
            import adjudge.service.server  # noqa: F401, PLC0415  (brings a web server)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"[services] judge_url: {error.name} is not installed. Run: "
                + install_command("server")
            ) from None


def _start_judge_service(path: Path, run: RunFile) -> Any:
    from adjudge.service.server import start_service  # noqa: PLC0415

    return start_service(str(path), deadline_s=run.training.judge_timeout_s)


def format_toml(data: dict[str, Any]) -> str:
    """Plain data as TOML: a line per key, tables inline; ``${NAME}`` where a file had it.

    >>> spec = {"graders": [{"name": "a", "range": [0.0, 1.0]}], "strict": True}
    >>> print(format_toml(spec), end="")
    graders = [{name = "a", range = [0.0, 1.0]}]
    strict = true
    """
    return "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in data.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_toml_key(key)} = {_toml_value(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return _toml_string(value)


def _toml_key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _toml_string(key)


def _toml_string(value: Any) -> str:
    value = value.written if isinstance(value, InterpolatedText) else value
    # JSON is TOML if it escapes nothing by surrogates; DEL is the one character to be escaped, too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
