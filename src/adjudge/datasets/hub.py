"""Data sets of the Hugging Face hub, by name: ``hf:OWNER/NAME[/FOLDER][#SPLIT]``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.installation import install_command

_PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}\Z")


def is_on_hub(name: str) -> bool:
    """Whether ``name`` is one of the hub's, not a file's."""
    return name.startswith(_PREFIX)


def resolve_data_file(name: str, beside: Path) -> Path:
    """The file of ``name``: relative to ``beside``, or what the hub has under it, as Parquet.

    ``hf:owner/name`` is the split ``train``, ``hf:owner/name#test`` another; what follows the name
    (``hf:owner/name/some/folder``) is a folder in it. It is fetched once and kept in the cache by
    its content. Raises :class:`ConfigError` for a name that is invalid,
    for one that cannot be fetched, and where ``datasets`` is not installed.
    """
    if not is_on_hub(name):
        return beside / name
    place, _, split = name.removeprefix(_PREFIX).partition("#")
    parts = place.split("/")
    repository, folder = "/".join(parts[:2]), "/".join(parts[2:])
    if not _NAME.match(repository) or ".." in parts:
        raise ConfigError(f"{name[:200]!r}: must be hf:OWNER/NAME, hf:OWNER/NAME/FOLDER#SPLIT, …")
    try:
        import datasets  # noqa: PLC0415  (heavy)
    except ImportError:
        raise ConfigError(
            f"{name}: fetching a dataset needs the package datasets, which is not installed. Give "
            f"a file, or run: {install_command('hub')}"
        ) from None
    try:
        found = datasets.load_dataset(repository, data_dir=folder or None, split=split or "train")
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # Files whose columns differ: the error itself says no more than that there was one.
        why = error.__cause__ or error
        first = (str(why).strip().splitlines() or [type(why).__name__])[0][:300]
        raise ConfigError(
            f"{name}: cannot be fetched: {first} (HF_HUB_OFFLINE=1 forbids fetching; gated "
            "datasets need HF_TOKEN)"
        ) from error
    return _cache_dataset(found, repository, split or "train")


def _cache_dataset(found: Any, repository: str, split: str) -> Path:
    """The rows in the cache, written whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adjudge" / "hub"
    name = f"{repository.replace('/', '--')}-{re.sub(r'[^0-9A-Za-z]', '_', split)}"
    path = cache / f"{name}-{found._fingerprint}.parquet"  # noqa: SLF001  (its public name is none)
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        found.to_parquet(str(part))
        part.rename(path)
    return path
