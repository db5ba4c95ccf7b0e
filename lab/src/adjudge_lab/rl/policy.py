"""The policy at the start of a run: its model, chat template and demonstrations.

A model is built on the spot or loaded; a run file may name a chat template where the policy's
own does not fit. Demonstrations are what a tiny policy imitates before it learns from rewards. Of a
dataset with rubrics half of them have a scaffold. Without one the answers are drawn at random from
what all rubrics ask for, so the policy learns how one answers and nothing of which answer is right;
with one they follow what is shown, so that a scaffold is of use to it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, GradingFailure
from adjudge.files import atomic_path
from adjudge.judges.models.local_loading import (
    LOADING_LOCK,
    LocalModelSpec,
    hash_model_file,
    load_model,
)
from adjudge.judges.models.model_files import find_model_file, models_folder
from adjudge.messages import prompt_messages
from adjudge.rewards.spec import RewardSpec
from adjudge.rubrics import Criterion
from adjudge_lab.environments.tasks import has_rubrics, read_dataset, read_row_rubrics
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.runfile import CAPITALS_ENV, TINY_BASE, RunFile, ScaffoldTable
from adjudge_lab.rl.scaffold import add_scaffold_message, build_scaffold_message
from adjudge_lab.rl.tiny import (
    build_tiny_model,
    build_tiny_tokenizer,
    generate_capital_demonstrations,
)
from adjudge_lab.rl.trainer_settings import MODEL_OPTIONS
from adjudge_lab.rl.trl_backend import warm_start


def read_chat_template(run: RunFile) -> str | None:
    """The text of ``[model] custom_chat_template``, a file beside the run file; ``None`` without.

    It is Jinja, which transformers renders in a sandbox; here it is text. Raises
    :class:`~adjudge.errors.ConfigError` for a file that is not there, empty, or no such text.
    """
    name = run.model.custom_chat_template
    if name is None:
        return None
    key = f"{run.where}: model.custom_chat_template: {name}"
    try:
        text = (run.folder / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # not there, no name, not UTF-8
        raise ConfigError(
            f"{key}: the file cannot be read ({error}). Give its path relative to the run file."
        ) from None
    if not text.strip():
        raise ConfigError(
            f"{key}: the file is empty. Leave the key out to use the model's own template."
        )
    return text


_SCAFFOLD_SHARE = 0.5
# To be read in few steps it must be short.
_PLAIN_SCAFFOLD = ScaffoldTable(include_evaluation_warning=False)
_QUOTED = re.compile(r'"([^"\n]{1,200})"')


def generate_rubric_demonstrations(
    rows: Sequence[Mapping[str, Any]], rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Endless rows ``{messages}``; ``rows`` are a dataset's, all of them with rubrics.

    An answer has, a line each, as many words as its row's rubric quotes ("…") in criteria of
    positive points (the criteria themselves, where they quote nothing). What a scaffold shows is
    of any row: a policy that imitates learns to follow it, and nothing about the prompt. Raises
    :class:`~adjudge.errors.ConfigError` for rubrics that cannot be read, and where none has points.
    """
    read = [_scoring_criteria(row, number) for number, row in enumerate(rows)]
    rubrics = [criteria for criteria in read if criteria]
    if not rubrics:
        raise ConfigError(
            "rollout.dataset: no rubric has points, so there is nothing to demonstrate. Give the "
            "criteria points."
        )
    words = sorted({word for criteria in rubrics for word in _expected_words(criteria)})
    while True:
        prompt, criteria = rng.choice(rows), rng.choice(rubrics)
        shown: list[Criterion] = []
        if rng.random() < _SCAFFOLD_SHARE:
            shown = _draw_criteria(criteria, rng.randint(1, len(criteria)), rng)
        said = _expected_words(shown)
        others = [word for word in words if word not in said]
        lacking = max(len(_expected_words(criteria)) - len(said), 0)
        said += rng.sample(others, min(lacking, len(others)))
        messages = add_scaffold_message(
            prompt_messages(prompt["prompt"]), build_scaffold_message(shown, _PLAIN_SCAFFOLD)
        )
        yield {"messages": [*messages, {"role": "assistant", "content": "\n".join(said)}]}


def _scoring_criteria(row: Mapping[str, Any], number: int) -> list[Criterion]:
    try:
        return [one for one in read_row_rubrics(row) if one.worth]
    except GradingFailure as failure:
        raise ConfigError(f"rollout.dataset: row {number}: {failure}") from None


def _draw_criteria(
    criteria: Sequence[Criterion], count: int, rng: random.Random
) -> list[Criterion]:
    return [criteria[at] for at in sorted(rng.sample(range(len(criteria)), count))]


def _expected_words(criteria: Sequence[Criterion]) -> list[str]:
    """What an answer that meets ``criteria`` has."""
    good = [one.text for one in criteria if one.worth > 0]
    return [word for text in good for word in _QUOTED.findall(text) or [text]]


_ROWS, _EPISODES = 2400, 64

_REASONS = (
    "I look around.",
    "I go on, because resting gains nothing.",
    "I try what is in front of me, because it may be of use.",
)
_ACTIONS = ("do", "do", "do", "move_left", "move_right", "move_up", "place_plant", "noop")


def build_demonstrations(run: RunFile) -> list[dict[str, Any]]:
    """Rows ``{messages}`` for the run's task, the same for the same seed.

    For a question: right and wrong answers in three styles. For a dataset with rubrics: those of
    :func:`generate_rubric_demonstrations`. For an environment: episodes of a player that gives one
    of three reasons and acts at random, so that a policy learns to take part, and nothing of what
    is worth doing.
    """
    seed = run.training.seed
    if run.env_name == CAPITALS_ENV and run.services.task_url is None:
        rng = random.Random(seed)  # noqa: S311  (no secret)
        return list(islice(generate_capital_demonstrations(rng), _ROWS))
    if run.rollout.dataset is not None:
        data = read_dataset(run.folder / run.rollout.dataset)
        if all(has_rubrics(row) for row in data):
            rng = random.Random(seed)  # noqa: S311  (no secret)
            return list(islice(generate_rubric_demonstrations(data, rng), _ROWS))
    return run_blocking(_play_demonstrations(run, seed))


async def _play_demonstrations(run: RunFile, seed: int) -> list[dict[str, Any]]:
    nobody = RewardSpec.from_dict({"graders": [{"name": "none", "type": "length"}]})
    task = build_task(run, nobody)
    rows = []
    for number in range(_EPISODES):
        rng = random.Random(f"demonstration {seed} {number}")  # noqa: S311  (no secret)

        def walk(_: Sequence[Any], rng: random.Random = rng) -> str:
            actions = rng.choices(_ACTIONS, k=rng.randint(1, 5))
            return f"{rng.choice(_REASONS)}\nActions: {', '.join(actions)}"

        episode = await task.play(rng.randrange(task.size or 2**31), walk)
        # An environment has the last word; of a dataset's row the answer is the last.
        rows.append({"messages": episode.messages[: -1 if task.size is None else None]})
        await asyncio.sleep(0)
    return rows


def build_first_policy(
    run: RunFile, scratch: str, on_step: Callable[[int], None]
) -> tuple[Any, Any, list[float]]:
    """Model, tokenizer and the losses of the warm start.

    ``tiny`` is built, and imitates demonstrations of the task; any other base is loaded as it is.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    training = run.training
    if run.model.base != TINY_BASE:
        place, options = resolve_base_model(run), run.trl.get(MODEL_OPTIONS)
        return *load_policy(place, read_chat_template(run), options), []
    rows = build_demonstrations(run)
    wordy = run.is_multi_turn or any(len(row["messages"]) > 2 for row in rows)
    tokenizer = build_tiny_tokenizer(_demonstration_texts(rows), vocabulary=1000 if wordy else 420)
    model = build_tiny_model(tokenizer, seed=training.seed)
    losses = warm_start(
        model, tokenizer, rows,
        steps=training.warm_start_iterations, seed=training.seed, folder=scratch, on_step=on_step,
    )  # fmt: skip
    return model, tokenizer, losses


def load_policy(
    place: str | Path, template: str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """A language model and its tokenizer, from a folder or by name, to be trained.

    ``template``: a chat template in place of the tokenizer's own; it is saved with it.
    ``options``: of transformers' ``from_pretrained``; without a ``dtype`` the weights are float32,
    since small steps are lost in 16 bits. Raises :class:`~adjudge.errors.ConfigError`.
    """
    spec = LocalModelSpec(str(place), "chat", dtype="float32", chat_template=template)
    loaded = load_model(spec, **options or {})
    loaded.tokenizer.padding_side = "left"
    if loaded.tokenizer.pad_token_id is None:
        loaded.tokenizer.pad_token = loaded.tokenizer.eos_token
    return loaded.model, loaded.tokenizer


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write both where :func:`load_policy`, a server or another trainer can load them.

    ``folder`` is there whole or not at all; what it held before is gone.
    """
    with atomic_path(folder) as part:
        model.save_pretrained(str(part))
        tokenizer.save_pretrained(str(part))


def needs_hub(run: RunFile) -> bool:
    """Whether the run begins with a model that is named, not lying here."""
    here = run.model.base == TINY_BASE or run.is_gguf
    return not here and not Path(resolve_base_model(run)).is_dir()


def resolve_base_model(run: RunFile) -> str:
    """The folder of the model that the run begins with, or its name on the hub.

    For a GGUF file, or a name that ``adjudge models fetch`` knows, it is the folder that
    :func:`prepare_base_model` fills. Raises :class:`~adjudge.errors.ConfigError` where that file is
    not on this machine.
    """
    if run.is_gguf:
        return str(_training_folder(_find_gguf(run)))
    beside = run.folder / run.model.base
    return str(beside) if beside.is_dir() else run.model.base


def prepare_base_model(run: RunFile) -> None:
    """Where the run begins with a GGUF file, write its weights as they are trained, once.

    They lie in the user's cache as float32 (four bytes a weight), under the file's name and
    digest. Raises :class:`~adjudge.errors.ConfigError` where the package gguf is not installed,
    and for a file that transformers cannot read.
    """
    if not run.is_gguf:
        return
    source = _find_gguf(run)
    folder = _training_folder(source)
    if not folder.is_dir():
        write_gguf_weights(source, folder)


def write_gguf_weights(source: Path, folder: Path) -> None:
    """Write the model and the tokenizer in the GGUF file ``source`` to ``folder``, in float32.

    ``folder`` is there whole or not at all. Raises :class:`~adjudge.errors.ConfigError`.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    options = {"gguf_file": source.name}
    try:
        with LOADING_LOCK:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(source.parent), **options)
            read = transformers.AutoModelForCausalLM.from_pretrained(
                str(source.parent), dtype=torch.float32, **options
            )
    except ImportError as error:
        raise ConfigError(
            f"model.base: {source.name}: the package gguf is not installed ({error.name}). Run: "
            "pip install gguf"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise ConfigError(f"model.base: {source}: cannot be read: {first}") from error
    config = read.config
    # transformers refuses to save a model that it calls quantised; these weights are plain numbers.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with LOADING_LOCK:
        plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    save_policy(plain, tokenizer, folder)


def _find_gguf(run: RunFile) -> Path:
    try:
        return find_model_file(run.model.base, run.folder)
    except ConfigError as error:
        raise ConfigError(f"{run.where}: model.base: {error}") from None


def _training_folder(source: Path) -> Path:
    seen = source.stat()
    digest = _digest_file(source, seen.st_size, seen.st_mtime_ns)
    return models_folder() / f"{source.stem}-{digest[:12]}-float32"


@lru_cache(maxsize=16)
def _digest_file(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _demonstration_texts(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (turn["content"] for row in rows for turn in row["messages"])


_MODEL_FILE = re.compile(
    r"(?:config|generation_config|adapter_|model|pytorch_model|tokenizer|special_tokens|added_tokens"
    r"|vocab|merges|chat_template).*\.(?:safetensors|bin|json|jinja|model|txt)"
)


def hash_model_files(path: str) -> dict[str, str]:
    """The digest of each file that a model or its tokenizer is read from.

    The digests are those of :func:`~adjudge.judges.models.local_loading.compute_model_digest`.
    A change to 1/64 of a file's bytes in one piece is always seen.
    ``path`` is a folder, or a name with files in the hub's cache; else no digests.
    """
    folder = Path(path)
    if not folder.is_dir():
        snapshot = _hub_snapshot(path)
        if snapshot is None:
            return {}
        folder = snapshot
    found = {}
    for file in sorted(folder.iterdir()):
        if _MODEL_FILE.match(file.name) and file.is_file():
            said = sha256()
            hash_model_file(said, file)
            found[file.name] = said.hexdigest()[:16]
    return found


def _hub_snapshot(name: str) -> Path | None:
    """The folder of the hub's cache from which a name is loaded."""
    try:
        hub: Any = import_module("huggingface_hub")  # comes with transformers
        config = hub.try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # not installed; no name of the hub's
        return None
    return Path(config).parent if isinstance(config, str) else None


def describe_hub_problem(name: str) -> str | None:
    """Why a model cannot be said to load by its name; ``None`` where the cache or the hub has it.

    A file of its own in the hub's cache answers; else the hub is asked, for five seconds at most.
    Nothing is said where the package huggingface_hub, which loads it, is not installed.
    """
    if _hub_snapshot(name) is not None:
        return None
    try:
        hub: Any = import_module("huggingface_hub")
        errors: Any = import_module("huggingface_hub.errors")
    except ImportError:
        return None
    try:
        hub.HfApi().model_info(name, timeout=5)
    except errors.GatedRepoError:
        return f"{name} is gated on the hub. Ask for access there, and set HF_TOKEN."
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return (
            f"{name} is no folder here, and the hub has no model of this name that HF_TOKEN may "
            "read. Check the spelling."
        )
    except Exception as error:  # noqa: BLE001  (of one HTTP library or another, by its version)
        return f"{name} is not in the cache, and the hub cannot be asked ({type(error).__name__})"
    return None
