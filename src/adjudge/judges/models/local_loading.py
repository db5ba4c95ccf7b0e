"""A local model, its tokenizer and its chat template.

A model and its tokenizer are loaded from a folder or by name, on the model's device.
Conversations become token ids as the model's own template writes them, with nobody else's control
tokens: those are the strings that a tokenizer takes for structure, read off one that is loaded, or
from its files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import LocalDtype, LocalTask, TextTurns, read_text_turns
from adjudge.prompts.control_tokens import break_control_tokens, select_control_tokens
from adjudge.types import Message

LOADING_LOCK = threading.Lock()
"""Held while transformers loads something.

The library is not made for threads: its names come into being as they are asked for, and while a
model is loaded all modules of the process are made without weights.
"""

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tekken.json")
_ADDED = ("added_tokens", "added_tokens_decoder")
_NAMED = ("additional_special_tokens", "extra_special_tokens", "special_tokens")

_AddedToken = Iterator[tuple[str, bool]]
"""Tokens, and whether each is special."""


def get_special_tokens(tokenizer: Any) -> frozenset[str]:
    """The special tokens of a tokenizer of transformers."""
    return select_control_tokens(
        (token, True) for token, special in _added_tokens(tokenizer) if special
    )


def get_control_tokens(tokenizer: Any) -> frozenset[str]:
    """Its special tokens, and those that were added beside them (``<think>``, ``<tool_call>``)."""
    return select_control_tokens(_added_tokens(tokenizer))


def _added_tokens(tokenizer: Any) -> _AddedToken:
    for token in tokenizer.added_tokens_decoder.values():
        yield str(token), bool(token.special)
    for text in tokenizer.all_special_tokens:
        yield str(text), True


@lru_cache(maxsize=64)
def read_control_tokens(place: str) -> frozenset[str]:
    """The control tokens of a tokenizer, read once.

    ``place``: a folder with ``tokenizer.json`` or a file like it, which are read as JSON; or what
    else transformers can load, a name for example. Raises :class:`~adjudge.errors.ConfigError`.
    """
    path = Path(place)
    files = [file for name in _FILES if (file := path / name).is_file()]
    if path.is_file():
        files = [path]
    if not files:
        return get_control_tokens(read_tokenizer(place))
    found = select_control_tokens(added for file in files for added in _tokens_in_file(file))
    if not found:
        raise ConfigError(f"tokenizer: {place} has no special or added tokens")
    return found


def _tokens_in_file(file: Path) -> _AddedToken:
    """What ``tokenizer.json`` and the files beside it say, in the forms of several versions."""
    try:
        said = msgspec.json.decode(file.read_bytes(), type=Metadata)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"tokenizer: {file}: cannot be read as JSON: {error}") from None
    for key, value in said.items():
        if key in (*_ADDED, *_NAMED):
            tokens = value.values() if isinstance(value, dict) else value or ()
        else:
            tokens = [value] if key.endswith("_token") else ()
        for token in tokens:
            fields = token if isinstance(token, dict) else {"content": token}
            text = fields.get("content", fields.get("token_str"))
            if text and isinstance(text, str):  # no text: add_bos_token = true
                yield text, key not in _ADDED or bool(fields.get("special"))


def read_tokenizer(place: str) -> Any:
    """The tokenizer of a folder or name; :class:`~adjudge.errors.ConfigError` if there is none."""
    if find_spec("transformers") is None:
        raise ConfigError(
            f"tokenizer: {place} is neither a tokenizer.json nor a folder that has one. To load a "
            "tokenizer by name, run: pip install transformers"
        )
    with _loading("tokenizer", place) as transformers:
        return transformers.AutoTokenizer.from_pretrained(place)


@contextmanager
def _loading(key: str, place: str) -> Iterator[Any]:
    """transformers, while it loads something, without its bars and hints.

    What a trainer set of them holds again afterwards. Whatever the files are like: what goes wrong
    is a :class:`~adjudge.errors.ConfigError` at ``key``.
    """
    with LOADING_LOCK, ExitStack() as restore:
        try:
            import transformers  # noqa: PLC0415

            log = transformers.logging
            restore.callback(log.set_verbosity, log.get_verbosity())
            if log.is_progress_bar_enabled():
                restore.callback(log.enable_progress_bar)
            log.set_verbosity_error()
            log.disable_progress_bar()
            yield transformers
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:300]
            raise ConfigError(f"{key}: {place}: cannot be loaded: {first}") from error


def convert_to_turns(messages: Sequence[Message], special: Iterable[str]) -> TextTurns:
    """Messages as roles and texts, in which none of the tokens ``special`` stands.

    A policy that writes ``<|im_end|>`` could else end its own turn and begin the judge's. Raises as
    :func:`~adjudge.judges.base.read_text_turns`.
    """
    tokens = frozenset(special)
    return read_text_turns(messages, lambda text: break_control_tokens(text, tokens))


def apply_chat_template(
    tokenizer: Any, turns: TextTurns, *, reply: bool, **options: Any
) -> list[int]:
    """The token ids of a conversation; with ``reply`` the judge's turn is opened.

    Raises ``GradingFailure(invalid_input)`` for what the template refuses (roles that it does not
    know, two turns of one role).
    """
    try:
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=reply, **options
        )
    except Exception as error:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"the model's chat template does not take this conversation: {type(error).__name__}",
        ) from error
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


DTYPES = get_args(LocalDtype)

_BLOCKS, _BLOCK = 64, 4096
_NO_LIMIT = 1_000_000  # tokenizers without one say 1e30


@dataclass(frozen=True)
class LocalModelSpec:
    """What is to be loaded; equal ones of a process share one model.

    ``device``: ``None`` is a GPU (:func:`resolve_device`), else the CPU. ``dtype``: ``None`` is
    bfloat16 on a GPU, float32 on a CPU. ``max_length``: tokens of an input, ``None`` what the model
    was made for.
    ``chat_template``: Jinja for ``chat`` in place of the tokenizer's own.
    """

    path: str
    task: LocalTask
    device: str | None = None
    dtype: str | None = None
    max_length: int | None = None
    batch_size: int = 16
    chat_template: str | None = None


@dataclass
class LoadedModel:
    """A model ready to be asked; ``length`` is the most tokens it takes, ``None`` without a limit.

    ``special`` are the tokenizer's special tokens.
    """

    model: Any
    tokenizer: Any
    device: Any
    length: int | None
    special: frozenset[str]


def load_model(wanted: LocalModelSpec, **options: Any) -> LoadedModel:
    """Load it; raises :class:`ConfigError` with what is missing or wrong.

    ``options`` go to transformers' ``from_pretrained``, before what ``wanted`` says. Code that
    comes with a model is not run, and weights are read as safetensors only. Threads that load at
    once wait for each other.
    """
    check_device(wanted)
    import torch  # noqa: PLC0415

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(resolve_device(wanted.device, gpus))
    except RuntimeError as error:
        raise ConfigError(f"device: {error} (found {wanted.device!r})") from None
    dtype = wanted.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    kind = "SequenceClassification" if wanted.task == "score" else "CausalLM"
    with _loading("model", wanted.path) as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(wanted.path)
        model, found = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
            wanted.path,
            **{"dtype": getattr(torch, dtype), **options},
            use_safetensors=True,
            output_loading_info=True,
        )
        model = model.to(device).eval()
    if wanted.chat_template is not None:
        tokenizer.chat_template = wanted.chat_template
    if wanted.task == "score":
        _check_head(model, found, wanted.path)
    elif not tokenizer.chat_template:
        raise ConfigError(
            f"model: {wanted.path} has no chat template, so it cannot be a chat judge"
        )
    length = _max_length(wanted, model, tokenizer)
    return LoadedModel(model, tokenizer, device, length, get_special_tokens(tokenizer))


def check_device(wanted: LocalModelSpec) -> None:
    """Raise :class:`ConfigError` where the libraries or the device of ``wanted`` are not here."""
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise ConfigError(
            f"a local judge needs torch and transformers ({' and '.join(missing)} not installed). "
            "Run: pip install torch transformers"
        )
    if wanted.device is not None and wanted.device.startswith("cuda"):
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            raise ConfigError(
                f"device: torch finds no GPU on this machine (found {wanted.device!r}). Leave "
                "device out to run on the CPU, or check the driver with nvidia-smi."
            )
        resolve_device(wanted.device, torch.cuda.device_count())


def resolve_device(device: str | None, gpus: int) -> str:
    """The device that a judge is loaded on, where this process sees so many ``gpus``.

    ``None`` and ``"cuda"`` are the GPU of this process's ``LOCAL_RANK``, which torchrun, accelerate
    and DeepSpeed set: without an index torch would take the current device of the calling thread,
    which is GPU 0 in a judge's own thread, whatever the trainer has chosen in its. Ranks beyond the
    GPUs that are seen begin anew at 0, so a rank that is shown one GPU takes that. Raises
    :class:`ConfigError` for an index that is not there.

    >>> resolve_device(None, 0), resolve_device("cuda:1", 2)
    ('cpu', 'cuda:1')
    """
    if device is None and not gpus:
        return "cpu"
    if device in (None, "cuda") and gpus:
        rank = os.environ.get("LOCAL_RANK", "0")
        return f"cuda:{int(rank) % gpus if rank.isdecimal() else 0}"
    kind, _, index = (device or "").partition(":")
    if kind == "cuda" and index.isdecimal() and int(index) >= gpus > 0:
        raise ConfigError(
            f"device: this process sees {gpus} GPUs (found {device!r}; allowed: cuda:0 to "
            f"cuda:{gpus - 1}). Leave device out to use the GPU of LOCAL_RANK."
        )
    return device or "cpu"


def _check_head(model: Any, found: Any, path: str) -> None:
    """A head that was not in the file was made up, and its scores are noise."""
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"model: {path} is not a trained scalar judge: its weights lack "
            f"{', '.join(missing[:3])}. Set task = 'chat' for a language model."
        )
    if model.config.num_labels != 1:
        raise ConfigError(
            f"model: {path} must have one output to be a scalar judge (found "
            f"num_labels = {model.config.num_labels}; allowed: 1)"
        )


def _max_length(wanted: LocalModelSpec, model: Any, tokenizer: Any) -> int | None:
    config = model.config.get_text_config()
    own = [
        limit
        for limit in (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length)
        if limit and limit < _NO_LIMIT
    ]
    limits = own if wanted.max_length is None else [*own, wanted.max_length]
    return int(min(limits)) if limits else None


def compute_model_digest(path: str) -> str:
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
            hash_model_file(said, file)
    return said.hexdigest()


def hash_model_file(said: Any, file: Path) -> None:
    """Add a file's name, size and samples to a digest."""
    size = file.stat().st_size
    said.update(f"{file.name}\0{size}\0".encode())
    with file.open("rb") as content:
        step = max(size // _BLOCKS, _BLOCK)
        for start in range(0, size, step):
            content.seek(start)
            said.update(content.read(_BLOCK))
