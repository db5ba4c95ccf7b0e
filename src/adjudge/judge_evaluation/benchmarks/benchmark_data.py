"""What judges are evaluated on: files of a benchmark with their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.files import hash_content
from adjudge.datasets.hub import resolve_data_file
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    BestOfItem,
)
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark


@dataclass(frozen=True)
class BenchmarkData:
    """Items, and the ``files`` (name, bytes, SHA-256) that they were read from."""

    benchmark: Benchmark
    files: list[dict[str, Any]]

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these items from others, for a manifest: hashes and not places."""
        hashes = [one["sha256"] for one in self.files]
        return {"kind": self.benchmark.kind, "files": hashes}


def read_benchmark_data(names: Sequence[str], kind: str | None = None) -> BenchmarkData:
    """The items of files.

    Raises :class:`~adjudge.errors.ConfigError` for an unknown kind, and for files that cannot be
    read, are of another kind than ``kind``, or hold no item.
    """
    paths = [resolve_data_file(name, Path()) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("--data: names the same file twice")
    benchmark = read_benchmark(paths, parse_benchmark_kind(kind))
    return BenchmarkData(benchmark, [hash_file(path) for path in paths])


def hash_file(path: Path) -> dict[str, Any]:
    """A file by name, size and SHA-256."""
    return {"file": str(path)} | hash_content(path)


def item_digest(item: BenchmarkItem) -> str:
    """A digest of all that a judge is shown of an item, wherever the item was read."""
    if isinstance(item, BestOfItem):
        shown: Any = [item.prompt, item.answers, item.correct]
    else:
        shown = [item.prompt, item.a, item.b]
    data = msgspec.json.encode(shown, order="deterministic")
    return blake2b(data, digest_size=12).hexdigest()


def parse_benchmark_kind(kind: str | None) -> BenchmarkKind | None:
    """The kind of benchmark that is asked for; raises :class:`ConfigError` for an unknown one."""
    if kind is None:
        return None
    found: BenchmarkKind = check_allowed("--benchmark", kind, BENCHMARK_KINDS)
    return found
