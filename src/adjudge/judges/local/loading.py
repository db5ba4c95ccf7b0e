"""A model and its tokenizer, from a folder or by name, on its device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from adjudge.errors import ConfigError
from adjudge.judges.local.tokenizers import LOADING, special_tokens_of

__all__ = ["DTYPES", "Loaded", "Task", "Wanted", "digest", "load", "model_files"]

Task = Literal["chat", "score"]
DTYPES = ("float32", "bfloat16", "float16")

_BLOCKS, _BLOCK = 64, 4096
_MODEL_FILE = re.compile(
    r"(?:config|generation_config|adapter_|model|pytorch_model|tokenizer|special_tokens|added_tokens"
    r"|vocab|merges|chat_template).*\.(?:safetensors|bin|json|jinja|model|txt)"
)
_NO_LIMIT = 1_000_000  # tokenizers without one say 1e30


@dataclass(frozen=True)
class Wanted:
    """What is to be loaded; equal ones of a process share one model.

    ``device``: ``None`` is the first GPU, else the CPU. ``dtype``: ``None`` is bfloat16 on a GPU,
    float32 on a CPU. ``max_length``: tokens of an input, ``None`` what the model was made for.
    ``chat_template``: Jinja for ``chat`` in place of the tokenizer's own.
    """

    path: str
    task: Task
    device: str | None = None
    dtype: str | None = None
    max_length: int | None = None
    batch_size: int = 16
    chat_template: str | None = None


@dataclass
class Loaded:
    """A model ready to be asked; ``length`` is the most tokens it takes, ``None`` without a limit.

    ``special`` are the tokenizer's special tokens.
    """

    model: Any
    tokenizer: Any
    device: Any
    length: int | None
    special: frozenset[str]


def load(wanted: Wanted) -> Loaded:
    """Load it; raises :class:`ConfigError` with what is missing or wrong.

    Code that comes with a model is not run, and weights are read as safetensors only. Threads that
    load at once wait for each other.
    """
    with LOADING:
        return _load(wanted)


def _load(wanted: Wanted) -> Loaded:
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"a local judge needs torch and transformers ({error}): pip install torch transformers"
        ) from None
    device = torch.device(wanted.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = wanted.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    kind = (
        transformers.AutoModelForSequenceClassification
        if wanted.task == "score"
        else transformers.AutoModelForCausalLM
    )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(wanted.path)
        model, found = kind.from_pretrained(
            wanted.path,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            output_loading_info=True,
        )
        model = model.to(device).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise ConfigError(f"model: {wanted.path}: cannot be loaded: {first}") from error
    if wanted.chat_template is not None:
        tokenizer.chat_template = wanted.chat_template
    if wanted.task == "score":
        _check_head(model, found, wanted.path)
    elif not tokenizer.chat_template:
        raise ConfigError(f"model: {wanted.path} has no chat template, so it cannot be asked")
    length = _length(wanted, model, tokenizer)
    return Loaded(model, tokenizer, device, length, special_tokens_of(tokenizer))


def _check_head(model: Any, found: Any, path: str) -> None:
    """A head that was not in the file was made up, and its scores are noise."""
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"model: {path} is no trained scalar judge: its weights lack {', '.join(missing[:3])} "
            "(task = 'chat' asks a language model)"
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            f"model: {path} has {model.config.num_labels} outputs, a scalar judge has one "
            "(num_labels = 1)"
        )


def _length(wanted: Wanted, model: Any, tokenizer: Any) -> int | None:
    config = model.config.get_text_config()
    own = [
        limit
        for limit in (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length)
        if limit and limit < _NO_LIMIT
    ]
    limits = own if wanted.max_length is None else [*own, wanted.max_length]
    return int(min(limits)) if limits else None


def digest(path: str) -> str:
    """What a folder's model is made of, ``""`` for a name: small files whole, weights by samples.

    Weights count by size and 64 blocks of 4 kB, so that gigabytes are not read for it; other
    weights of the same model differ in them.
    """
    folder = Path(path)
    if not folder.is_dir():
        return ""
    said = sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            _add_file(said, file)
    return said.hexdigest()


def model_files(path: str) -> dict[str, str]:
    """The digest of each file that a model or its tokenizer is read from, as in :func:`digest`.

    A change to 1/64 of a file's bytes in one piece is always seen.
    ``path`` is a folder, or a name whose files the hub's cache has; else there are none.
    """
    folder = Path(path)
    if not folder.is_dir():
        snapshot = _cached(path)
        if snapshot is None:
            return {}
        folder = snapshot
    found = {}
    for file in sorted(folder.iterdir()):
        if _MODEL_FILE.match(file.name) and file.is_file():
            said = sha256()
            _add_file(said, file)
            found[file.name] = said.hexdigest()[:16]
    return found


def _cached(name: str) -> Path | None:
    """The folder of the hub's cache from which a name is loaded."""
    try:
        hub: Any = import_module("huggingface_hub")  # comes with transformers
        config = hub.try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # not installed; no name of the hub's
        return None
    return Path(config).parent if isinstance(config, str) else None


def _add_file(said: Any, file: Path) -> None:
    size = file.stat().st_size
    said.update(f"{file.name}\0{size}\0".encode())
    with file.open("rb") as content:
        step = max(size // _BLOCKS, _BLOCK)
        for start in range(0, size, step):
            content.seek(start)
            said.update(content.read(_BLOCK))
