"""Where the files of a run's model are, and their digests: a folder, or a name of the hub's."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from adjudge.judges.models.local_loading import hash_model_file

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
