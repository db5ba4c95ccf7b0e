"""Loading a run file, and its checks beyond the types of its keys; each names key and remedy.

Among them: what goes with a trained judge's folder, and the rubrics that a scaffold needs to show.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import load_toml, suggest_name, unknown_key
from adjudge.errors import ConfigError, GradingFailure
from adjudge.extensions import check_extension_name
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.table import JUDGE_TABLES, SHIPPED_JUDGES
from adjudge.mock.server import serve
from adjudge.rewards.spec import RewardSpec
from adjudge_lab.environments.tasks import (
    RUBRIC_COLUMNS,
    has_rubrics,
    read_dataset,
    read_row_rubrics,
)
from adjudge_lab.rl.rewards import (
    asks_judge,
    build_reward_spec,
    build_service_spec,
    load_trained_judges,
    uses_only_rules,
)
from adjudge_lab.rl.runfile import (
    SHIPPED_ENVIRONMENTS,
    TINY_BASE,
    UNREACHABLE_URL,
    RunFile,
    RunJudgeTable,
)
from adjudge_lab.rl.sinks import SHIPPED_SINKS, SINK_GROUP
from adjudge_lab.rl.trainer_settings import (
    MODEL_OPTIONS,
    check_model_options,
    flatten_settings,
)
from adjudge_lab.rl.verl.settings import check_reserved_settings

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def load_run_file(path: Path | str) -> RunFile:
    """The run in ``path``; raises :class:`ConfigError` naming file, key and remedy.

    The ``config.toml`` of a run folder is read as if it still stood where it came from.
    """
    path = Path(path)
    return resolve_run_file(load_toml(path), where=str(path), folder=_run_file_folder(path))


def resolve_run_file(
    data: dict[str, Any], *, where: str = "run file", folder: Path | None = None
) -> RunFile:
    """A run from plain data, checked; ``where`` opens every complaint."""
    run = RunFile.read_tables(data, where, folder)
    check_run_file(run)
    return run


def _run_file_folder(path: Path) -> Path:
    """The folder that a run file's relative paths start from."""
    if path.name == "config.toml":
        try:
            facts = msgspec.json.decode(path.with_name("run.json").read_bytes(), type=_RunFacts)
        except (OSError, msgspec.MsgspecError):
            return path.parent
        return Path(facts.beside)
    return path.parent


class _RunFacts(msgspec.Struct):
    beside: str


def check_run_file(run: RunFile) -> None:
    """Raise :class:`ConfigError` for the first thing that does not fit.

    What only a real run needs (a key, a rubric's file, a task app, torch) is not looked for.
    """
    _check_judge_keys(run)
    _check_batches(run)
    _check_trainer_tables(run)
    _check_task(run)
    check_extension_name(
        SINK_GROUP, run.logging.to, where=f"{run.where}: logging.to", shipped=SHIPPED_SINKS
    )
    if run.judge.enabled:
        _check_judge(run)
        _check_mock(run)
    _check_rewards(run)
    _check_service(run)
    _check_gold(run)
    _check_held_out(run)
    check_run_budget(run)
    check_scaffold_rubrics(run)


def _check_batches(run: RunFile) -> None:
    training = run.training
    if training.batch_size % training.group_size:
        run.refuse(
            "training.batch_size",
            f"must be a multiple of group_size (found {training.batch_size}; group_size is "
            f"{training.group_size})",
        )


def _check_trainer_tables(run: RunFile) -> None:
    """The trainers' own settings: of the trainer that trains, and said in one place only.

    Their names are checked where the trainer is (a plan, a run): TRL takes seconds to load.
    """
    for name in ("verl", "trl"):
        if getattr(run, name) and run.backend != name:
            run.refuse(
                name, f"is for backend = {name!r} (found {run.backend!r}). Leave the table out."
            )
    check_model_options(run.trl, run.where)
    if run.trl.get(MODEL_OPTIONS) and run.model.base == TINY_BASE:
        run.refuse(f"trl.{MODEL_OPTIONS}", f"base = {TINY_BASE!r} is built, not loaded")
    given = flatten_settings(run.verl)
    check_reserved_settings(given, run.where)
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        count = given.get(key, 1)
        if type(count) is not int or count < 1:
            run.refuse(f"verl.{key}", f"must be a whole number from 1 (found {count!r:.80})")
    gpus, count = given.get("trainer.n_gpus_per_node"), run.compute.gpu_count
    if None not in (gpus, count) and gpus != count:
        run.refuse(
            "verl.trainer.n_gpus_per_node",
            f"must be compute.gpu_count, a machine's GPUs (found {gpus} and {count}). Leave one "
            "of the two out.",
        )


def _check_task(run: RunFile) -> None:
    rollout, name = run.rollout, run.env_name
    if rollout.dataset is not None and run.services.task_url is not None:
        run.refuse(
            "rollout.dataset",
            "cannot be used with services.task_url, because a task app has its own task. Leave "
            "one of them out.",
        )
    if run.services.task_url is not None or rollout.dataset is not None:
        return
    check_extension_name(
        "adjudge.environments",
        name,
        where=f"{run.where}: rollout.env_name",
        shipped=SHIPPED_ENVIRONMENTS,
    )
    own = name not in SHIPPED_ENVIRONMENTS
    if run.model.base == TINY_BASE and own and run.training.warm_start_iterations:
        run.refuse(
            "training.warm_start_iterations",
            f"must be 0, because {name!r} has no demonstrations (found "
            f"{run.training.warm_start_iterations}). Set it to 0, or use another model.base.",
        )


_ENDPOINT_LIMITS = {"judge_timeout_s": "deadline_s", "async_semaphore_max": "max_concurrency"}
"""What ``[training]`` says of the judge's endpoint."""


def _check_judge_keys(run: RunFile) -> None:
    """Refuse keys of ``[judge]`` that no judge has; a judge of the user's own may have any."""
    own, known = (
        RunJudgeTable.model_fields,
        {key for one in JUDGE_TABLES for key in one.model_fields},
    )
    for key in run.judge.model_extra or () if run.judge.type in SHIPPED_JUDGES else ():
        if key not in known and key != "api_key":  # of which the reader of judges has more to say
            run.refuse(f"judge.{key}", unknown_key(key, sorted({*own, *known})))
    try:
        EndpointSettings(**run.judge.endpoint)
    except ConfigError as error:
        raise ConfigError(f"{run.where}: judge.endpoint.{error}") from None
    for ours, theirs in _ENDPOINT_LIMITS.items():
        if ours in run.training.model_fields_set and theirs in run.judge.endpoint:
            run.refuse(f"judge.endpoint.{theirs}", f"is training.{ours}. Leave one of the two out.")


def check_run_budget(run: RunFile) -> None:
    """Raise :class:`ConfigError` for a budget that could not be held."""
    judge = run.judge
    if judge.budget_usd is None:
        return
    key = "judge.budget_usd"
    if not judge.enabled:
        run.refuse(key, "judge.enabled is false, so nothing is spent. Leave it out.")
    if run.backend == "verl" or run.services.judge_url is not None:
        run.refuse(
            key,
            "cannot be held where another process asks the judge (backend = 'verl', "
            "services.judge_url). Limit the judge's key at its provider.",
        )
    may_cost = judge.has_server and judge.type != "embedded" and not judge.folders
    if may_cost and judge.price is None:
        run.refuse(
            "judge.price",
            "is required with a budget. Give US dollars per million tokens: input, output.",
        )


def _check_judge(run: RunFile) -> None:
    judge = run.judge
    if judge.folders:
        check_trained_judges(run)
        return
    if uses_only_rules(run):
        _check_rules_only(run)
        return
    if judge.has_server and not judge.model:
        run.refuse(
            "judge.model",
            "the judge's model is missing. Give model, or folder (of a trained judge), or "
            "only [[graders]] that are rules, or set enabled = false to train without a judge.",
        )
    if judge.api_key_env is not None and not _VARIABLE_NAME.match(judge.api_key_env):
        run.refuse(  # the value may be the key
            "judge.api_key_env", "must be the name of an environment variable, not the key itself"
        )
    if judge.rubric_id is None and not run.graders:
        run.refuse(
            "judge.rubric_id",
            "is missing, and there are no [[graders]], so the judge has no criteria. Give one "
            "of the two.",
        )
    if judge.rubric_id is not None and not judge.outcome_weight and not judge.event_weight:
        run.refuse(
            "judge.outcome_weight",
            "this weight and event_weight are both 0, so nothing is judged. Set one of them.",
        )


def _check_rules_only(run: RunFile) -> None:
    for name in (*run.judge.judge_table(), *(["budget_usd"] if run.judge.budget_usd else [])):
        if name != "type":
            run.refuse(
                f"judge.{name}",
                "can only be used with a judge, and all [[graders]] are rules. Leave it out.",
            )


_OVER_GROUPS = {"scale_rewards": "batch", "multi_objective_aggregation": "normalize_then_sum"}
"""Settings of TRL under which rewards of several groups are compared."""


def _check_drawn_groups(run: RunFile) -> None:
    judge = run.judge
    if not judge.enabled or judge.sample_rate == 1:
        return
    if judge.undrawn_problem is not None:
        run.refuse("judge.sample_rate", judge.undrawn_problem)
    for key, value in _OVER_GROUPS.items():
        if run.trl.get(key) == value:
            run.refuse(
                "judge.sample_rate",
                f"must be 1 beside trl.{key} = {value!r}, which compares the rewards of several "
                f"groups, and only the drawn ones have the judge's part (found "
                f"{judge.sample_rate:g}). Set 1, or leave trl.{key} out.",
            )


def _check_rewards(run: RunFile) -> None:
    judge, rollout = run.judge, run.rollout
    _check_drawn_groups(run)
    pays = rollout.dataset is None or rollout.env_grader is not None
    if not pays and (not judge.enabled or judge.combine_mode != "replace"):
        mode = (
            f"combine_mode = {judge.combine_mode!r}" if judge.enabled else "judge.enabled = false"
        )
        run.refuse(
            "rollout.env_grader",
            f"{mode} needs the environment's reward, and a dataset gives none. Name the grader "
            "(a rule) that gives it, or set judge.combine_mode = 'replace'.",
        )
    if rollout.env_grader is not None:
        names = [str(one.get("name")) for one in run.graders]
        if rollout.env_grader not in names:
            run.refuse(
                "rollout.env_grader",
                f"there is no grader of this name{suggest_name(rollout.env_grader, names)} "
                f"(found {rollout.env_grader!r})",
            )
        if asks_judge(run, run.graders[names.index(rollout.env_grader)]):
            run.refuse(
                "rollout.env_grader", f"must name a rule, and {rollout.env_grader!r} asks a judge"
            )
    if run.judge.rubric_id is not None and run.rubric_file is None:
        return  # a real run looks for it, or asks the task app
    if run.lacks_trained_judge:
        return  # it may not be trained yet
    build_reward_spec(run, UNREACHABLE_URL if run.starts_mock else None)


def _check_service(run: RunFile) -> None:
    if run.services.judge_url is None:
        return
    if not run.judge.enabled:
        run.refuse(
            "services.judge_url",
            "judge.enabled is false, so there is nothing to serve. Leave judge_url out.",
        )
    if run.judge.event_weight:
        run.refuse(
            "services.judge_url",
            "the service does not judge events, and event_weight is not 0. Set event_weight to 0, "
            "or leave judge_url out.",
        )
    if run.judge.folders:
        return
    for name in run.scheduled_weights:
        if any(name == one["name"] for one in build_service_spec(run, UNREACHABLE_URL)["graders"]):
            run.refuse(
                f"graders.{name}.weight",
                "is a schedule over training steps, and the judge service knows of no step. Give "
                "a number, or leave services.judge_url out.",
            )
    if run.judge.rubric_id is None and not build_service_spec(run, UNREACHABLE_URL)["graders"]:
        run.refuse(
            "services.judge_url",
            "no grader asks the judge, so there is nothing to serve. Leave judge_url out.",
        )


def _check_mock(run: RunFile) -> None:
    mock = run.judge.mock
    if (mock is not None) != run.starts_mock:
        run.refuse(
            "judge.mock",
            'judge.mock and base_url = "mock" can only be used together. Give both, or neither.',
        )
    if mock is None:
        return
    if run.judge.type != "openai":
        run.refuse(
            "judge.type", f"must be 'openai' beside base_url = 'mock' (found {run.judge.type!r})"
        )
    try:
        serve(mock.settings())  # complains, if it must; nothing starts
    except ConfigError as error:
        run.refuse("judge.mock", str(error))


def _check_gold(run: RunFile) -> None:
    gold = run.sentinel.gold
    if gold is None:
        return
    weights = {str(one.get("name")): one.get("weight", 1.0) for one in run.graders}
    if gold not in weights:
        run.refuse(
            "sentinel.gold",
            f"there is no grader of this name{suggest_name(gold, weights)} (found {gold!r})",
        )
    if weights[gold] != 0:
        run.refuse(
            "sentinel.gold",
            f"the grader {gold!r} must have weight 0, because a gold reward is not trained on "
            f"(found {weights[gold]}). Set weight = 0.0.",
        )


def _check_held_out(run: RunFile) -> None:
    """The columns that the held-out prompts are compared by, and the graders that only report."""
    evaluation = run.evaluation
    columns = [("split", evaluation.split), *(("baselines", name) for name in evaluation.baselines)]
    named = [(key, name) for key, name in columns if name is not None]
    if named and run.rollout.dataset is None:
        run.refuse(
            f"evaluation.{named[0][0]}",
            "names a column of rollout.dataset, and there is no dataset. Leave it out.",
        )
    path = run.folder / (run.rollout.dataset or "")
    if named and path.is_file():
        rows = read_dataset(path)
        for key, name in named:
            for n in evaluation.held_out:
                if n < len(rows) and name not in rows[n]:
                    run.refuse(
                        f"evaluation.{key}",
                        f"row {n} of {path} has no column {name!r} (columns: "
                        f"{', '.join(sorted(rows[n]))})",
                    )
                if n < len(rows) and key == "baselines" and not isinstance(rows[n][name], str):
                    run.refuse(
                        "evaluation.baselines",
                        f"row {n} of {path}: column {name!r} must be a text, the answer that the "
                        f"policy is compared with (found {rows[n][name]!r:.100})",
                    )
    if run.report_spec_file is not None:
        try:
            spec = RewardSpec.load(run.report_spec_file)
        except ConfigError as error:
            run.refuse("evaluation.report_spec", str(error))
        trained = {one.get("name") for one in run.graders}
        if twice := [one.name for one in spec.graders if one.name in trained]:
            run.refuse(
                "evaluation.report_spec",
                f"its grader {twice[0]!r} has the name of a grader of this run, and verdicts are "
                "kept by name. Rename one of the two.",
            )
    elif evaluation.report_instances is not None:
        run.refuse(
            "evaluation.report_instances",
            "can only be used with report_spec. Give report_spec, or leave it out.",
        )


def check_trained_judges(run: RunFile) -> None:
    """Raise :class:`ConfigError` for what does not go with ``judge.folder``."""
    judge = run.judge
    own = [name for name in judge.judge_table() if name != "type"]
    given = own + [name for name in ("rubric_id", "mock") if getattr(judge, name) is not None]
    if given:
        run.refuse(f"judge.{given[0]}", "the judge's folder sets this value. Leave it out.")
    if judge.event_weight:
        run.refuse(
            "judge.event_weight",
            "must be 0, because a trained judge judges only whole answers (found "
            f"{judge.event_weight})",
        )
    if asking := [one.get("name") for one in run.graders if asks_judge(run, one)]:
        run.refuse(
            f"graders.{asking[0]}",
            "asks a judge, and judge.folder has its own graders. Remove this grader.",
        )
    if not run.lacks_trained_judge:
        try:
            load_trained_judges(run)
        except ConfigError as error:
            raise ConfigError(f"{run.where}: judge.folder: {error}") from None


def check_scaffold_rubrics(run: RunFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a scaffold on rows without rubrics.

    Held-out rows are never shown any, so they need none. A dataset that is not there is complained
    of by the run itself.
    """
    rollout = run.rollout
    if rollout.scaffold is None:
        return
    if rollout.dataset is None:
        run.refuse(
            "rollout.scaffold",
            "can only be used with a dataset of single turns with rubrics, and an environment "
            "has no rubrics. Leave it out.",
        )
    path = run.folder / rollout.dataset
    if not path.is_file():
        return
    kept = set(run.evaluation.held_out)
    for number, row in enumerate(read_dataset(path)):
        if number in kept:
            continue
        if not has_rubrics(row):
            run.refuse(
                "rollout.scaffold",
                f"row {number} of {path} has no rubrics (looked for in "
                f"{', '.join(RUBRIC_COLUMNS)}), so the scaffold would show nothing. Give every "
                "row rubrics, or leave the table out.",
            )
        try:
            rubrics = read_row_rubrics(row)
        except GradingFailure as failure:
            run.refuse("rollout.scaffold", f"row {number} of {path}: {failure}")
        if not any(one.worth for one in rubrics):
            run.refuse(
                "rollout.scaffold",
                f"row {number} of {path}: no rubric has points, so the scaffold would show "
                "nothing. Give the criteria points.",
            )
