"""IFEval's files: prompts, responses, verl's Parquet file, and the folder of an evaluation.

The folder is claimed for its models and prompts, and a model's responses are appended as they
come; only the same ones continue it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import check_files, read_rows
from adjudge.errors import (
    ConfigError,
    GradingFailure,
    RolloutError,
    RunFolderError,
)
from adjudge.files import atomic_path
from adjudge.installation import install_command
from adjudge.judges.base import Reply
from adjudge.messages import last_question, parse_conversation
from adjudge.runs.folder import RunFolder
from adjudge.text import replace_surrogates
from adjudge.types import get_path
from adjudge_lab.evaluation.responses import (
    FileProblem,
    JoinBy,
    JoinKey,
    PromptResponse,
    ReplyKey,
    ReplyLog,
    read_responses,
)


def read_ifeval_prompts(path: Path, by: JoinBy) -> list[dict[str, Any]]:
    """IFEval's own file: ``key``, ``prompt``, ``instruction_id_list``, ``kwargs`` a row.

    Raises :class:`ConfigError` for a row that is broken or has no text as ``prompt``, for two rows
    with the same prompt (or the same key, with ``by="key"``), and for an empty file: prompts
    are the benchmark, so none is left out in silence.
    """
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[str, JoinKey], str] = {}
    for where, row in read_rows([path]):
        if isinstance(row, RolloutError):
            raise ConfigError(str(row))
        if not isinstance(row.get("prompt"), str) or "instruction_id_list" not in row:
            raise ConfigError(
                f"{where}: a prompt of IFEval must have key, prompt, instruction_id_list and "
                f"kwargs (found {', '.join(map(repr, list(row)[:8])) or 'nothing'})"
            )
        for column in dict.fromkeys(("prompt", by)):
            place = row.get(column)
            if not isinstance(place, str | int):
                raise ConfigError(f"{where}: has no {column!r} to join by")
            if (first := seen.setdefault((column, place), where)) != where:
                raise ConfigError(f"{where}: has the same {column} as {first}. Keep one of them.")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: has no prompts")
    return rows


def read_ifeval_responses(path: Path, by: JoinBy) -> tuple[list[PromptResponse], list[FileProblem]]:
    """Responses of a file and what was wrong with it, as :func:`read_responses` reads them.

    A prompt in chat form is its last user message; verl's files have the key in ``extra_info``.
    """
    return read_responses(path, by, _key_place if by == "key" else _prompt_place)


def _prompt_place(row: Mapping[str, Any]) -> JoinKey | None:
    prompt = row.get("prompt")
    chat = parse_conversation(prompt) if isinstance(prompt, list) else None
    return _join_key(prompt if chat is None else last_question(chat))


def _key_place(row: Mapping[str, Any]) -> JoinKey | None:
    return _join_key(get_path(row, "extra_info.key") if row.get("key") is None else row["key"])


def _join_key(value: Any) -> JoinKey | None:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def open_benchmark_folder(path: Path, facts: Mapping[str, Any]) -> RunFolder:
    """The folder of one benchmark's evaluation; see :class:`~adjudge.runs.folder.RunFolder`.

    ``facts`` have what makes it this evaluation: ``models``, ``prompts`` and ``by``.
    """
    words = {
        "models": "other models or responses",
        "prompts": "other prompts (--data)",
        "by": "another --by",
    }
    return RunFolder(path, facts, words)


class ResponsesFile(ReplyLog):
    """``path``, where responses made under ``identity`` are kept; see :class:`.responses.ReplyLog`.

    Raises :class:`~adjudge.errors.RunFolderError` for a file with responses of something else,
    which would pass for this model's.
    """

    def __init__(self, path: Path, identity: str) -> None:
        if path.suffix.lower() not in (".jsonl", ".ndjson"):
            raise ConfigError(f"{path}: responses must be written to a .jsonl file")
        self.origin = sha256(identity.encode()).hexdigest()[:16]
        super().__init__(path, ("prompt", "sample", "response"))

    def _check(self, line: int, row: Mapping[str, Any]) -> None:
        if row.get("generated_by") != self.origin:
            raise RunFolderError(
                f"{self.path}: line {line} is from another model or other generation settings. "
                "Give another file, or another folder with -o."
            )

    def append_response(self, key: Any, wanted: ReplyKey, said: Reply | GradingFailure) -> None:
        """Append a response, or what kept it from being made."""
        self.append(wanted, said, {"key": key}, {"generated_by": self.origin})


IFEVAL_DATA_SOURCE = "ifeval"
_ORIGIN_KEY = b"adjudge.generated_by"


def check_parquet_prompts(path: Path, prompts: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`ConfigError` where Parquet cannot be written, or not of these prompts."""
    if path.exists():
        check_files([path])
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415  (an extra, heavy)
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow, which is not installed. Run: "
            + install_command("full")
        ) from None
    _parquet_table(
        path, [_parquet_row(number, prompt, []) for number, prompt in enumerate(prompts)]
    )


def check_parquet_origin(path: Path, made_by: str) -> None:
    """Raise :class:`~adjudge.errors.RunFolderError` for a file that ``made_by`` did not make.

    ``made_by`` is that of :class:`ResponsesFile`; writing would lose the file.
    """
    import pyarrow.parquet  # noqa: PLC0415

    if not path.exists():
        return
    try:
        found = pyarrow.parquet.read_schema(path).metadata or {}
    except (pyarrow.ArrowException, OSError):
        found = {}
    if found.get(_ORIGIN_KEY) != made_by.encode():
        raise RunFolderError(
            f"{path}: is from another model or other generation settings, and would be "
            "replaced. Give another file (stored responses alone are judged without a model)."
        )


def write_response_parquet(
    path: Path,
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[PromptResponse],
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
        _parquet_row(number, prompt, [texts.get(prompt[by], {}).get(k) for k in range(samples)])
        for number, prompt in enumerate(prompts)
    ]
    table = _parquet_table(path, rows)
    known = table.schema.metadata or {}
    table = table.replace_schema_metadata({**known, _ORIGIN_KEY: made_by.encode()})
    with atomic_path(path) as part:
        pyarrow.parquet.write_table(table, part)


def _parquet_table(path: Path, rows: list[dict[str, Any]]) -> Any:
    """``rows`` as a table; a column of Parquet has one type."""
    import pyarrow  # noqa: PLC0415

    try:
        return pyarrow.Table.from_pylist(rows)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise ConfigError(
            f"{path}: key, instruction_id_list or kwargs of the prompts do not fit a Parquet "
            f"column ({error}). Give --responses a .jsonl file."
        ) from None


def _parquet_row(number: int, prompt: Mapping[str, Any], texts: list[str | None]) -> dict[str, Any]:
    wanted = {name: prompt.get(name) for name in ("instruction_id_list", "kwargs")}
    return {
        "prompt": [{"role": "user", "content": prompt["prompt"]}],
        "data_source": IFEVAL_DATA_SOURCE,
        "ability": "instruction_following",
        "reward_model": {"style": "rule", "ground_truth": msgspec.json.encode(wanted).decode()},
        "extra_info": {"index": number, "key": prompt.get("key")},
        "instruction_id_list": prompt["instruction_id_list"],
        "kwargs": _fill_kwargs(prompt.get("kwargs") or []),
        "responses": [None if text is None else replace_surrogates(text) for text in texts],
    }


def _fill_kwargs(kwargs: Any) -> Any:
    """Parquet has no object without fields; an argument that is null is not given."""
    if not isinstance(kwargs, list):
        return kwargs
    return [{"prompt_to_repeat": None, **one} if isinstance(one, dict) else one for one in kwargs]
