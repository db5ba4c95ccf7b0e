"""What judges are validated on: files of a benchmark, or a self-made sample of its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.items import (
    KINDS,
    Benchmark,
    BestOfItem,
    Item,
    Kind,
)
from adjudge.judge_training.benchmarks.local import local_rows
from adjudge.judge_training.benchmarks.read import benchmark_of, read_benchmark
from adjudge.judge_training.data.hub import data_file

__all__ = ["LOCAL", "Material", "file_facts", "item_digest", "kind_of", "read_material"]

LOCAL = "local"
"""What stands for files: a sample made on the spot."""


@dataclass(frozen=True)
class Material:
    """Items, and the ``files`` (name, bytes, SHA-256) that they were read from.

    ``local``: the items are self-made and of the benchmark's shape only.
    """

    benchmark: Benchmark
    files: list[dict[str, Any]]
    local: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these items from others, for a manifest: hashes and not places."""
        hashes = [one["sha256"] for one in self.files]
        return {"kind": self.benchmark.kind, "files": hashes, "local": self.local}


def read_material(names: Sequence[str], kind: str | None = None) -> Material:
    """The items of files, or of a local sample (``names`` is ``["local"]``, ``kind`` its shape).

    Raises :class:`~adjudge.errors.ConfigError` for an unknown kind, for files that cannot be read,
    are of another kind than ``kind``, or hold no item.
    """
    wanted = kind_of(kind)
    if LOCAL in names:
        if len(names) > 1:
            raise ConfigError(f"--data {LOCAL}: goes with no file; give one of the two")
        return _local(wanted)
    paths = [data_file(name, Path()) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("--data: names the same file twice")
    try:
        benchmark = read_benchmark(paths, wanted)
    except ConfigError as error:
        raise _of_another_kind(paths, wanted) or error from None
    return Material(benchmark, [file_facts(path) for path in paths])


def file_facts(path: Path) -> dict[str, Any]:
    """A file by name, size and SHA-256."""
    said = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            said.update(block)
    return {"file": str(path), "bytes": path.stat().st_size, "sha256": said.hexdigest()}


def item_digest(item: Item) -> str:
    """A digest of all that a judge is shown of an item, wherever the item was read."""
    if isinstance(item, BestOfItem):
        shown: Any = [item.prompt, item.answers, item.correct]
    else:
        shown = [item.prompt, item.a, item.b]
    data = msgspec.json.encode(shown, order="deterministic")
    return blake2b(data, digest_size=12).hexdigest()


def kind_of(kind: str | None) -> Kind | None:
    """The kind of benchmark that is asked for; raises :class:`ConfigError` for an unknown one."""
    if kind is None:
        return None
    if kind not in KINDS:
        hint = nearest(kind, KINDS)
        raise ConfigError(f"--benchmark: found {kind!r}{hint}, allowed: {', '.join(KINDS)}")
    return kind


def _local(kind: Kind | None) -> Material:
    if kind is None:
        raise ConfigError(f"--data {LOCAL}: needs --benchmark: one of {', '.join(KINDS)}")
    rows = enumerate(local_rows(kind), start=1)
    benchmark = benchmark_of(((f"{LOCAL}:{number}", row, LOCAL) for number, row in rows), kind)
    title = f"{kind}-shaped local sample (no benchmark)"
    return Material(msgspec.structs.replace(benchmark, title=title), [], local=True)


def _of_another_kind(paths: Sequence[Path], kind: Kind | None) -> ConfigError | None:
    """The complaint where files would be fine as another kind than the one asked for."""
    if kind is None:
        return None
    try:
        found = read_benchmark(paths).kind
    except ConfigError:
        return None
    if found == kind:
        return None
    names = ", ".join(map(str, paths))
    return ConfigError(f"--benchmark {kind}: {names} has the columns of {found}")
