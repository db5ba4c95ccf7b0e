"""A run somewhere else: as a job of a Ray cluster, or as another program on this machine."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from adjudge.errors import ConfigError
from adjudge.installation import install_command

OnLine = Callable[[str], None]

_NOT_UPLOADED = [".env", "*.env", ".env.*", ".git", ".venv", "__pycache__", "runs/"]
"""What is not uploaded with the run file's folder, beside what its ``.gitignore`` names."""

_GRACE_S = 10.0  # for a program that was asked to stop
_LATE_S = 0.5  # for what is still in the pipe when the program has ended,
_LATE_READS = 32  # and how much of it: more than a pipe holds
_LONGEST = 1 << 16  # characters; a longer line comes in pieces
_POLL_S = 5.0
_TRIES = 12

_ENDED = re.compile(r"Job '[^']*' (succeeded|failed|was stopped)$")
_CODE = re.compile(r"Status message: Job entrypoint command failed with exit code (\d{1,10})")
_REPEATED = ", last available logs"


def submit_job(
    run_file: Path,
    *,
    address: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    poll: bool,
    on_line: OnLine,
) -> int:
    """Submit ``adjudge train`` of ``run_file`` as a job to the Ray cluster at ``address``.

    The folder of the run file goes along as the job's working directory, without ``.env`` files,
    ``.git``, ``.venv``, ``runs`` and what a ``.gitignore`` there names; adjudge itself is expected
    on the cluster. That directory goes away with the job, so ``arguments`` should name an output
    folder that stays. ``address`` is that of the dashboard, as in ``http://head:8265``.

    ``env`` becomes variables of the job, through a file that is readable by its owner only and is
    deleted at once; the values are on no command line, and not in what ``on_line`` gets. But Ray
    shows a job's variables to all who can reach its dashboard: a key that the cluster's machines
    have themselves is safer.

    ``poll`` follows the job's output until it ends and gives its exit code (1 where it was stopped,
    or Ray does not say); else 0, when the job is submitted. ``on_line`` gets how to follow and stop
    the job, then its output by lines. Ctrl-C ends the following, not the job. Raises
    :class:`ConfigError` where the job could not be submitted or its end not be learnt.
    """
    ray, at = _ray_command(address), _address_without_password(address)
    report_line = _hide_values(env, on_line)
    job = f"adjudge-{secrets.token_hex(6)}"
    entry = ["python", "-m", "adjudge_lab", "train", run_file.name, *arguments]
    said: list[str] = []
    with _runtime_env(run_file.resolve().parent, env) as file:
        command = [*ray("submit"), "--no-wait", f"--submission-id={job}", f"--runtime-env={file}"]
        code = _run_process([*command, "--", *entry], {}, _hide_values(env, said.append))
    if code:
        why = next((line.strip() for line in reversed(said) if line.strip()), f"exit code {code}")
        raise ConfigError(f"{at}: the job was not submitted: {why[:400]}")
    report_line(
        f"job {job}; to follow it: ray job logs --follow --address={at} {job}; "
        f"to stop it: ray job stop --address={at} {job}"
    )
    if not poll:
        return 0
    try:
        _run_process([*ray("logs"), "--follow", job], {}, _skip_repeated(report_line))
        lost = (
            f"{at}: the dashboard does not say how job {job} ended. Check whether the job still "
            "runs."
        )
        return _job_exit_code([*ray("status"), job], lost)
    except KeyboardInterrupt:
        report_line(f"job {job} is still running")
        raise


def run_module(argv: Sequence[str], *, env: Mapping[str, str], on_line: OnLine) -> int:
    """Run ``python -m argv…`` with this interpreter and give its exit code.

    ``on_line`` gets every line of its output, errors included, as it comes; what a progress bar
    writes over itself comes as lines, too. ``env`` is added to this process's variables. Ctrl-C,
    SIGTERM and SIGHUP stop the program with all processes of its group, and are then raised here as
    ``KeyboardInterrupt`` or ``SystemExit``. A program that a signal ended gives 128 + its number.
    """
    return _run_process([sys.executable, "-m", *argv], {"PYTHONUNBUFFERED": "1", **env}, on_line)


def _ray_command(address: str) -> Callable[[str], list[str]]:
    """What begins ``ray job VERB`` at ``address``."""
    if urlsplit(address).scheme not in {"http", "https"}:
        raise ConfigError(
            "the address of the Ray dashboard must begin with http:// or https:// (found "
            f"{_address_without_password(address)!r}). Give an address such as http://HEAD:8265."
        )
    beside = Path(sys.executable).with_name("ray")
    program = str(beside) if beside.exists() else shutil.which("ray")
    if program is None:
        raise ConfigError(
            "the command ray, which submits jobs, is not installed. Run: " + install_command("ray")
        )
    plain = ("--log-style=pretty", "--log-color=false")
    return lambda verb: [program, "job", verb, f"--address={address}", *plain]


def _address_without_password(address: str) -> str:
    """``address`` without a name and password in it."""
    head, found, tail = address.partition("//")
    return f"{head}//{tail.rpartition('@')[2]}" if found else address


@contextlib.contextmanager
def _runtime_env(folder: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """A file with the job's environment, readable by nobody else, for as long as this lasts."""
    content = {"working_dir": str(folder), "excludes": _NOT_UPLOADED, "env_vars": dict(env)}
    with tempfile.TemporaryDirectory(prefix="adjudge-") as private:
        file = Path(private) / "runtime_env.json"  # which is YAML, too
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.encode(content))
        yield file


def _hide_values(env: Mapping[str, str], on_line: OnLine) -> OnLine:
    """``on_line`` for lines in which a value of ``env`` is shown by its name."""
    hidden = sorted(
        ((value, f"[{name}]") for name, value in env.items() if len(value) >= 6),
        key=lambda pair: -len(pair[0]),
    )

    def hide_values(line: str) -> None:
        for value, name in hidden:
            line = line.replace(value, name)
        on_line(line)

    return hide_values


def _skip_repeated(on_line: OnLine) -> OnLine:
    """``on_line`` without the second copy of a failed job's output, which Ray puts at the end."""
    over = False

    def skip_repeated(line: str) -> None:
        nonlocal over
        if not over:
            over = "Status message: " in line and _REPEATED in line
            on_line(line.split(_REPEATED, 1)[0] if over else line)

    return skip_repeated


def _job_exit_code(status: Sequence[str], on_failure: str) -> int:
    """The exit code of a job, once it has one, by asking ``ray job status``."""
    failures = 0
    while failures < _TRIES:
        lines: list[str] = []
        failures = failures + 1 if _run_process(status, {}, lines.append) else 0
        ended = next((found for line in lines if (found := _ENDED.search(line))), None)
        if ended is not None and ended[1] == "succeeded":
            return 0
        if ended is not None:
            code = next((found for line in lines if (found := _CODE.search(line))), None)
            return (int(code[1]) or 1) if code is not None else 1
        time.sleep(_POLL_S)
    raise ConfigError(on_failure)


def _run_process(command: Sequence[str], env: Mapping[str, str], on_line: OnLine) -> int:
    with _signals_as_exceptions():
        process = subprocess.Popen(  # noqa: S603  (no shell; our interpreter, or Ray's program)
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be stopped with all that it has started
        )
        try:
            _forward_output(process, on_line)
            code = process.wait()
        except BaseException:
            _stop_group(process)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP as exceptions, so that what must be stopped is."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        ours = (signal.SIGTERM, signal.SIGHUP)
        numbers = [number for number in ours if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _forward_output(process: subprocess.Popen[bytes], on_line: OnLine) -> None:
    """Give ``on_line`` what the process writes until it ends.

    The end is that of the process, not of the pipe, which something that it left behind may hold.
    """
    pipe: Any = process.stdout
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), True)
    rest = ""
    late = 0
    while late < _LATE_READS:
        late += process.poll() is not None
        if not select.select([pipe], [], [], _LATE_S)[0]:
            if late:
                break
            continue
        data = os.read(pipe.fileno(), _LONGEST)
        *lines, rest = (rest + decoder.decode(data, not data)).split("\n")
        for line in lines:
            on_line(line)
        if len(rest) >= _LONGEST:
            on_line(rest)
            rest = ""
        if not data:
            break
    if rest:
        on_line(rest)


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the group of ``process``: interrupted, then terminated, then killed."""
    if process.returncode is not None:
        return  # collected: its number may be another's
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.killpg(process.pid, number)
            if _wait_for_end(process.pid):
                time.sleep(_LATE_S)  # for the rest of its group
                break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_end(pid: int) -> bool:
    """Whether the child ends in time; it is not collected, so its group's number stays its own."""
    for _ in range(round(_GRACE_S / 0.05)):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.05)
    return False
