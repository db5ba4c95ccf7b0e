"""A model's responses as the Parquet file that verl's ``main_generation`` leaves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RunFolderError
from adjudge.rollouts.rows import check_files
from adjudge.studies.ifeval.files import Response

__all__ = ["check_maker", "check_parquet", "write_parquet"]

DATA_SOURCE = "ifeval"
_MADE_BY = b"adjudge.generated_by"


def check_parquet(path: Path, prompts: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`ConfigError` where Parquet cannot be written, or not of these prompts."""
    if path.exists():
        check_files([path])
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415  (an extra, heavy)
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'adjudge[parquet]'"
        ) from None
    _table(path, [_row(number, prompt, []) for number, prompt in enumerate(prompts)])


def check_maker(path: Path, made_by: str) -> None:
    """Raise :class:`~adjudge.errors.RunFolderError` where a file is there that ``made_by`` (of
    :class:`~adjudge.studies.ifeval.kept.ResponsesFile`) did not make: writing would lose it.
    """
    import pyarrow.parquet  # noqa: PLC0415

    if not path.exists():
        return
    try:
        found = pyarrow.parquet.read_schema(path).metadata or {}
    except (pyarrow.ArrowException, OSError):
        found = {}
    if found.get(_MADE_BY) != made_by.encode():
        raise RunFolderError(
            f"{path}: is of another model, or drawn in another way, and would be written anew; "
            "give another file (stored responses alone are judged without a model)"
        )


def write_parquet(
    path: Path,
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[Response],
    by: str,
    *,
    made_by: str = "",
) -> None:
    """One row a prompt, in the order of ``prompts``; the file is written anew.

    ``prompt`` (chat messages), ``data_source``, ``ability``, ``reward_model`` (``style``, and as
    ``ground_truth`` the instructions and their arguments as JSON), ``extra_info`` (``index``,
    ``key``), ``instruction_id_list`` and ``kwargs`` as IFEval has them, ``responses``: a text a
    sample, null for one that was not made. Raises :class:`ConfigError` for prompts that fit no
    columns.
    """
    import pyarrow.parquet  # noqa: PLC0415

    texts: dict[Any, dict[int, str | None]] = {}
    for one in responses:
        text = one.text if isinstance(one.text, str) else None
        texts.setdefault(one.place, {})[one.sample] = text
    samples = 1 + max((one.sample for one in responses), default=0)
    rows = [
        _row(number, prompt, [texts.get(prompt[by], {}).get(k) for k in range(samples)])
        for number, prompt in enumerate(prompts)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    table = _table(path, rows)
    known = table.schema.metadata or {}
    table = table.replace_schema_metadata({**known, _MADE_BY: made_by.encode()})
    pyarrow.parquet.write_table(table, part)
    os.replace(part, path)  # noqa: PTH105  (atomic)


def _table(path: Path, rows: list[dict[str, Any]]) -> Any:
    """``rows`` as a table; a column of Parquet has one type."""
    import pyarrow  # noqa: PLC0415

    try:
        return pyarrow.Table.from_pylist(rows)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise ConfigError(
            f"{path}: key, instruction_id_list or kwargs of the prompts fit no Parquet column: "
            f"{error}; give --responses a .jsonl file"
        ) from None


def _row(number: int, prompt: Mapping[str, Any], texts: list[str | None]) -> dict[str, Any]:
    wanted = {name: prompt.get(name) for name in ("instruction_id_list", "kwargs")}
    return {
        "prompt": [{"role": "user", "content": prompt["prompt"]}],
        "data_source": DATA_SOURCE,
        "ability": "instruction_following",
        "reward_model": {"style": "rule", "ground_truth": msgspec.json.encode(wanted).decode()},
        "extra_info": {"index": number, "key": prompt.get("key")},
        "instruction_id_list": prompt["instruction_id_list"],
        "kwargs": _filled(prompt.get("kwargs") or []),
        "responses": [None if text is None else _writable(text) for text in texts],
    }


def _filled(kwargs: Any) -> Any:
    """Parquet has no object without fields; an argument that is null is none."""
    if not isinstance(kwargs, list):
        return kwargs
    return [{"prompt_to_repeat": None, **one} if isinstance(one, dict) else one for one in kwargs]


def _writable(text: str) -> str:
    """A lone surrogate has no UTF-8."""
    return text.encode("utf-8", "replace").decode()
