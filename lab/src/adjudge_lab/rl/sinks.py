"""Where a run's metrics go beside its own ``metrics.jsonl``: Trackio, TensorBoard, W&B, or a
class of the user's own.

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
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension
from adjudge.files import iter_rows

SINK_GROUP = "adjudge.sinks"
"""The entry-point group of sinks that other packages bring."""

SHIPPED_SINKS = {
    "auto": "adjudge_lab.rl.sinks:open_auto_sink",
    "trackio": "adjudge_lab.rl.sinks:TrackioSink",
    "tensorboard": "adjudge_lab.rl.sinks:TensorBoardSink",
    "wandb": "adjudge_lab.rl.sinks:WandbSink",
    "none": "adjudge_lab.rl.sinks:NullSink",
}
"""What ``[logging] to`` may be, beside a sink of the user's own or of a package."""

_LIBRARIES = {"trackio", "tensorboard", "wandb"}
_PROJECT = "adjudge"
_OFFLINE_MODES = {"offline", "dryrun"}  # values of WANDB_MODE that send nothing

_log = logging.getLogger("adjudge")


class Sink(Protocol):
    """Takes a run's metrics, a row a step; made with ``(folder, label=..., config=...)``.

    ``folder`` is the run's, ``label`` its name and ``config`` its settings. What a sink raises is
    logged as a warning, once, and the run goes on without it.
    """

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of ``step``; steps grow."""

    def close(self) -> None:
        """Write what is still to be written; called once, at the end."""


def check_sink(to: str, *, beside: Path | None = None) -> None:
    """Raise :class:`ConfigError` for a sink that cannot be imported or lacks its library.

    For those who would rather know before they make a folder.
    """
    _load_sink(to, beside)
    if to in _LIBRARIES and find_spec(to) is None:
        raise _refusal(to, ModuleNotFoundError(name=to))


def open_sink(
    to: str, folder: Path, *, label: str, config: Mapping[str, Any], beside: Path | None = None
) -> GuardedSink:
    """A sink for the run in ``folder``, with the rows of its ``metrics.jsonl`` already logged.

    A resumed run cuts that file back to its checkpoint first, then calls this. ``to`` is one of
    :data:`SHIPPED_SINKS`, an installed name, or ``module:Class``, which may be in ``beside``.
    ``label`` and ``config`` name and describe the run. Raises :class:`ConfigError` for another
    ``to``, and for a sink that does not start. A failure after that is logged as a warning, once;
    the sink then does nothing, and the run goes on.
    """
    make = _load_sink(to, beside)
    try:
        inner = make(folder, label=label, config=config)
    except Exception as error:
        raise _refusal(to, error) from error
    sink = GuardedSink("trackio" if to == "auto" else to, inner)
    for row in iter_rows(folder / "metrics.jsonl", dict[str, Any]):
        if type(row.get("step")) is not int:
            break
        sink.log(row["step"], row)
    return sink


def _load_sink(to: str, beside: Path | None) -> Callable[..., Sink]:
    found: Callable[..., Sink] = load_extension(
        SINK_GROUP, to, where="logging.to", folder=beside, shipped=SHIPPED_SINKS
    )
    return found


def _refusal(name: str, error: Exception) -> ConfigError:
    lacking = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0]
    if name in _LIBRARIES and lacking == name:
        return ConfigError(
            f"logging.to: {name!r} is not installed. Run: pip install {name}, "
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


class NullSink:
    """``"none"``: nothing is logged."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class GuardedSink:
    """Keeps a sink's failures from the run, and sees to it that no step is logged twice.

    Neither method raises; a second ``close`` does nothing.
    """

    def __init__(self, name: str, inner: Sink) -> None:
        self._name = name
        self._inner: Sink | None = inner
        self._last: int | None = None

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the numbers of ``row``."""
        if self._inner is None or (self._last is not None and step <= self._last):
            return
        self._last = step
        self._do(self._inner.log, step, _numeric_values(row))

    def close(self) -> None:
        """Close the sink."""
        if self._inner is not None:
            self._do(self._inner.close)
            self._inner = None

    def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  (whatever a sink raises, the run goes on)
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


def open_auto_sink(folder: Path, *, label: str, config: Mapping[str, Any]) -> Sink:
    """``"auto"``: Trackio where it is installed and starts, else nothing."""
    if find_spec("trackio") is None:
        return NullSink()
    try:
        return TrackioSink(folder, label=label, config=config)
    except Exception as error:  # noqa: BLE001  (nobody asked for Trackio)
        _log.warning("metrics are not sent to trackio: %s", _describe_error(error))
        return NullSink()


def _import_trackio(folder: Path) -> Any:
    """Trackio, with a place to write to if nobody set one."""
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = before or str((folder / "trackio").resolve())
    try:
        importlib.import_module("trackio.utils")  # reads the variable, the first time only
        return importlib.import_module("trackio")
    finally:
        if before is None:
            del os.environ["TRACKIO_DIR"]


class TrackioSink:
    """``"trackio"``: in ``folder/trackio``, or where the variables of Trackio say.

    ``TRACKIO_DIR``, ``TRACKIO_SPACE_ID`` and ``TRACKIO_SERVER_URL`` are these. Trackio fixes its
    folder when it is imported, so this comes before the import of TRL, which imports it. Where a
    Hugging Face token is stored, Trackio asks the hub for its owner's name.
    """

    def __init__(self, folder: Path, *, label: str, config: Mapping[str, Any]) -> None:
        trackio = _import_trackio(folder)
        name = f"{label}-{_identity(folder)}"
        self._trackio = trackio
        remote = any(os.environ.get(f"TRACKIO_{one}") for one in ("SPACE_ID", "SERVER_URL"))
        if not remote:
            self._forget(name)
        with _quiet():
            self._run = trackio.init(
                project=_PROJECT,
                name=name,
                config={key: value for key, value in config.items() if not key.startswith("_")},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # What a server has of a resumed run; here, nothing.
        self._first = getattr(self._run, "_next_step", 0) if remote else 0

    def _forget(self, name: str) -> None:
        try:
            runs = list(self._trackio.Api().runs(_PROJECT))
        except ValueError:  # there is no project yet
            return
        for old in runs:
            if old.name == name:
                old.delete()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of ``step``."""
        if step >= self._first:
            self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Write what is left."""
        with _quiet():
            if self._trackio.context_vars.current_run.get() is self._run:
                self._trackio.finish()  # else it is finished, aloud, when the process ends
            else:
                self._run.finish()


class TensorBoardSink:
    """``"tensorboard"``: event files in ``folder/tensorboard``."""

    def __init__(self, folder: Path, *, label: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002
        summary = importlib.import_module("tensorboard.summary")
        place = folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = summary.Writer(str(place))

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of ``step``."""
        for key, value in row.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WandbSink:
    """``"wandb"``: in ``folder/wandb``, offline unless ``WANDB_MODE`` says otherwise.

    Where a run is not on this machine, steps that its server has are not sent again.
    """

    def __init__(self, folder: Path, *, label: str, config: Mapping[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        identity = _identity(folder)
        here = os.environ.get("WANDB_MODE", "offline") in _OFFLINE_MODES
        if (
            here
        ):  # it cannot resume what was never sent: of two folders, one would replace the other
            for old in (folder / "wandb").glob(f"offline-run-*-{identity}"):
                shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=identity,
            name=label,
            dir=str(folder.resolve()),
            config=dict(config),
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

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of ``step``."""
        if step >= self._first:
            self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
