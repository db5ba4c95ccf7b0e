"""The chat template that a run file names, for a policy whose own does not fit."""

from __future__ import annotations

from adjudge.errors import ConfigError
from adjudge.training.runfile.file import RunFile

__all__ = ["chat_template"]

_MOST_BYTES = 1 << 20


def chat_template(run: RunFile) -> str | None:
    """The text of ``[model] custom_chat_template``, a file beside the run file; ``None`` without.

    It is Jinja, which transformers renders in a sandbox; here it is text. Raises
    :class:`~adjudge.errors.ConfigError` for a file that is not there, empty, or no such text.
    """
    name = run.model.custom_chat_template
    if name is None:
        return None
    path = run.folder / name
    key = f"{run.where}: model.custom_chat_template: {name}"
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is no name
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{key}: cannot be read ({why}); it is looked for beside the run file"
        ) from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{key}: is longer than {_MOST_BYTES:,} bytes, so it is no template")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: is not UTF-8 text") from None
    if "\0" in text:
        raise ConfigError(f"{key}: has a zero byte, so it is no template")
    if not text.strip():
        raise ConfigError(f"{key}: is empty; leave the key out for the model's own template")
    return text
