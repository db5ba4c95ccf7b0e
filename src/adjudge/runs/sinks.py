"""Where a run's metrics go beside its own ``metrics.jsonl``: Trackio, TensorBoard or W&B.

The run's file is the truth, and what a library shows is a copy of it. So a run that is resumed
begins the copy anew from the rows that its file still has, under the same id: no point is there
twice, none of those written shortly before a kill is lost, and none is left of steps that are done
again. Everything stays on this machine unless the user's own variables say otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from adjudge.config import check_allowed
from adjudge.errors import ConfigError
from adjudge.files import iter_rows

DESTINATIONS = ("auto", "trackio", "tensorboard", "wandb", "none")

_INSTALL = {
    "trackio": "pip install 'adjudge[dashboard]'",
    "tensorboard": "pip install tensorboard",
    "wandb": "pip install wandb",
}
_PROJECT = "adjudge"
_OFFLINE_MODES = {"offline", "dryrun"}  # values of WANDB_MODE that send nothing

_log = logging.getLogger("adjudge")


class Sink(Protocol):
    """Takes a run's metrics, a row a step."""

    hint: str
    """A command that shows what was logged; empty where there is nothing to show."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of ``step``; steps grow. Raises nothing."""

    def close(self) -> None:
        """Write what is still to be written. Raises nothing; a second call does nothing."""


def check_sink(to: str) -> None:
    """Raise :class:`ConfigError` for a library that is named and not installed.

    For those who would rather know before they make a folder.
    """
    if to in _LIBRARIES and find_spec(to) is None:
        raise _refusal(to, ModuleNotFoundError(name=to))


def open_sink(to: str, folder: Path, *, label: str, config: Mapping[str, Any]) -> Sink:
    """A sink for the run in ``folder``, with the rows of its ``metrics.jsonl`` already logged.

    A resumed run cuts that file back to its checkpoint first, then calls this. ``to``:

    - ``"trackio"``: in ``folder/trackio``, or where ``TRACKIO_DIR``, ``TRACKIO_SPACE_ID`` or
      ``TRACKIO_SERVER_URL`` say. Trackio fixes its folder when it is imported, so this comes before
      the import of TRL, which imports it. Where a Hugging Face token is stored, Trackio asks the
      hub for its owner's name.
    - ``"tensorboard"``: event files in ``folder/tensorboard``.
    - ``"wandb"``: in ``folder/wandb``, offline unless ``WANDB_MODE`` says otherwise. Where a run
      is not on this machine, steps that its server has are not sent again.
    - ``"auto"``: Trackio where it is installed, else nothing. ``"none"``: nothing.

    ``label`` and ``config`` name and describe the run. Raises :class:`ConfigError` for another
    ``to``, and, for a library that was named, when it is not installed or does not start. A failure
    after that is logged as a warning, once; the sink then does nothing, and the run goes on.
    """
    check_allowed("logging.to", to, DESTINATIONS)
    name = to if to != "auto" else "trackio" if find_spec("trackio") else "none"
    if name == "none":
        return _NullSink()
    try:
        library = importlib.import_module(_MODULES[name]) if name != "trackio" else _trackio(folder)
        inner = _LIBRARIES[name](library, _SinkRun(folder, label, config))
    except Exception as error:
        if to == "auto":
            _log.warning("metrics are not sent to %s: %s", name, _describe_error(error))
            return _NullSink()
        raise _refusal(name, error) from error
    sink = _GuardedSink(name, inner)
    for row in iter_rows(folder / "metrics.jsonl", dict[str, Any]):
        if type(row.get("step")) is not int:
            break
        sink.log(row["step"], row)
    return sink


def _refusal(name: str, error: Exception) -> ConfigError:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == name:
        return ConfigError(
            f"logging.to: {name!r} is not installed. Run: {_INSTALL[name]}, "
            'or choose another with [logging] to = "..."'
        )
    return ConfigError(f"logging.to: {name!r} cannot be started: {_describe_error(error)}")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _numeric_values(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


class _SinkRun(NamedTuple):
    folder: Path
    label: str
    config: Mapping[str, Any]


class _NullSink:
    hint = ""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class _GuardedSink:
    """Keeps a library's failures from the run, and sees to it that no step is logged twice."""

    def __init__(self, name: str, inner: Sink) -> None:
        self.hint = inner.hint
        self._name = name
        self._inner: Sink | None = inner
        self._last: int | None = None

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if self._inner is None or (self._last is not None and step <= self._last):
            return
        self._last = step
        self._do(self._inner.log, step, _numeric_values(row))

    def close(self) -> None:
        if self._inner is not None:
            self._do(self._inner.close)
            self._inner = None

    def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  (whatever a library raises, the run goes on)
            self._inner = None
            _log.warning("metrics are no longer sent to %s: %s", self._name, _describe_error(error))


def _identity(folder: Path) -> str:
    """Eight characters that mark the run in ``folder`` for good, wherever it is logged."""
    file = folder / ".sink"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets.token_hex(4), encoding="ascii")
    return file.read_text(encoding="ascii").strip()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a library's greetings off standard output, which is the command's own."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _trackio(folder: Path) -> Any:
    """Trackio, told where to write if nobody else has."""
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = before or str((folder / "trackio").resolve())
    try:
        importlib.import_module("trackio.utils")  # reads the variable, the first time only
        return importlib.import_module("trackio")
    finally:
        if before is None:
            del os.environ["TRACKIO_DIR"]


class _Trackio:
    def __init__(self, trackio: Any, run: _SinkRun) -> None:
        name = f"{run.label}-{_identity(run.folder)}"
        self._trackio = trackio
        remote = any(os.environ.get(f"TRACKIO_{one}") for one in ("SPACE_ID", "SERVER_URL"))
        if not remote:
            self._forget(name)
        with _quiet():
            self._run = trackio.init(
                project=_PROJECT,
                name=name,
                config={key: value for key, value in run.config.items() if not key.startswith("_")},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # What a server has of a resumed run; here, nothing.
        self._first = getattr(self._run, "_next_step", 0) if remote else 0
        place = "" if remote else f"TRACKIO_DIR={shlex.quote(str(trackio.utils.TRACKIO_DIR))} "
        self.hint = f"{place}trackio show --project {_PROJECT}"

    def _forget(self, name: str) -> None:
        try:
            runs = list(self._trackio.Api().runs(_PROJECT))
        except ValueError:  # there is no project yet
            return
        for old in runs:
            if old.name == name:
                old.delete()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step >= self._first:
            self._run.log(dict(row), step=step)

    def close(self) -> None:
        with _quiet():
            if self._trackio.context_vars.current_run.get() is self._run:
                self._trackio.finish()  # else it is finished, aloud, when the process ends
            else:
                self._run.finish()


class _TensorBoard:
    def __init__(self, summary: Any, run: _SinkRun) -> None:
        place = run.folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = summary.Writer(str(place))
        self.hint = f"tensorboard --logdir {shlex.quote(str(place))}"

    def log(self, step: int, row: Mapping[str, float]) -> None:
        for key, value in row.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, wandb: Any, run: _SinkRun) -> None:
        identity = _identity(run.folder)
        here = os.environ.get("WANDB_MODE", "offline") in _OFFLINE_MODES
        if (
            here
        ):  # it cannot resume what was never sent: of two folders, one would replace the other
            for old in (run.folder / "wandb").glob(f"offline-run-*-{identity}"):
                shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=identity,
            name=run.label,
            dir=str(run.folder.resolve()),
            config=dict(run.config),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",  # nothing of what a run prints, prompts and replies among it
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
            ),
        )
        self._first = 0 if here else int(self._run.step)
        self.hint = (
            f"wandb sync {run.folder / 'wandb'}/offline-run-*" if here else str(self._run.url)
        )

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step >= self._first:
            self._run.log(dict(row), step=step)

    def close(self) -> None:
        self._run.finish()


_MODULES = {"tensorboard": "tensorboard.summary", "wandb": "wandb"}
_LIBRARIES: dict[str, Callable[[Any, _SinkRun], Sink]] = {
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
