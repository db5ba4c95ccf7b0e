"""Where an installed copy of adjudge came from, and the command that installs more of it.

pip writes the origin of what it did not take from an index into ``direct_url.json`` (PEP 610): a
folder, an archive, an address of a version control system. No command names a distribution alone:
on the package index these names are nobody's, and whoever takes them would be installed.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

CORE, LAB = "adjudge", "adjudge-lab"
"""The two distributions. The second is in the folder ``lab`` of the repository."""

_TREE = Path(__file__).resolve().parents[2]
_LAB_FOLDER = "lab"


class _Commit(msgspec.Struct):
    vcs: str
    commit_id: str


class _Origin(msgspec.Struct):
    """What ``direct_url.json`` says; an archive is what is neither a folder nor a commit."""

    url: str
    subdirectory: str = ""
    dir_info: dict[str, bool] | None = None
    vcs_info: _Commit | None = None


def install_command(extra: str = "", package: str = CORE) -> str:
    """The command that installs ``extra`` of ``package`` from where this copy came from.

    Credentials of an address are left out. Where the origin is unknown or gone, the command has the
    extra's own requirements; of a package that is not there, the words say what must be found.

    Args:
        extra: A name of ``[project.optional-dependencies]``; ``""`` is the package alone.
        package: ``CORE`` or ``LAB``.
    """
    words = _list_requirements(package, extra)
    if words:
        return f"{_pip_command()} {shlex.join(words)}"
    return (
        f"{_pip_command()} 'WHEEL{_brackets(extra)}', where WHEEL is a wheel of {package} from the "
        f"place that {CORE} came from"
    )


def _list_requirements(package: str, extra: str) -> list[str]:
    installed = _find_distribution(package)
    if installed is not None:
        return _requirement(_read_origin(installed), package, extra) or _packages_of(
            installed, extra
        )
    core = _find_distribution(CORE)
    origin = _Origin(_TREE.as_uri(), dir_info={}) if core is None else _read_origin(core)
    if package == CORE:
        return _requirement(origin, CORE, extra)
    lab = _requirement(_lab_origin(origin), LAB, extra)
    # Without an installed core, pip would look for the one that the lab needs on the index.
    return [*_requirement(origin, CORE, ""), *lab] if lab and core is None else lab


def _find_distribution(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


def _read_origin(installed: Distribution) -> _Origin | None:
    try:
        return msgspec.json.decode(installed.read_text("direct_url.json") or "", type=_Origin)
    except msgspec.DecodeError:  # from an index, or another program's idea of the file
        return None


def _lab_origin(core: _Origin | None) -> _Origin | None:
    """Where the lab is beside this core: in the same clone; an archive has the core alone."""
    if core is not None and core.vcs_info is not None:
        inside = f"{core.subdirectory}/{_LAB_FOLDER}".lstrip("/")
        return msgspec.structs.replace(core, subdirectory=inside)
    if core is not None and core.dir_info is not None:
        return msgspec.structs.replace(core, url=f"{core.url.rstrip('/')}/{_LAB_FOLDER}")
    return None


def _requirement(origin: _Origin | None, package: str, extra: str) -> list[str]:
    """What pip takes for an origin; empty where that is unknown, gone, or not to be printed."""
    if origin is None:
        return []
    parts = urlsplit(origin.url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if not (path if origin.dir_info is None else path / "pyproject.toml").exists():
            return []
        if not origin.vcs_info and not origin.subdirectory:
            editable = ["-e"] if origin.dir_info and origin.dir_info.get("editable") else []
            return [*editable, f"{path}{_brackets(extra)}"]
    if parts.query:  # a signed address: what follows the question mark is a secret
        return []
    user, _, host = parts.netloc.rpartition("@")
    if user and "ssh" in parts.scheme and ":" not in user:  # a user name, and no token
        host = parts.netloc
    # Before version 24, pip refuses a commit's address without a host: git+file:///clone.
    address = urlunsplit((parts.scheme, host or "localhost", parts.path, "", ""))
    if origin.vcs_info:
        address = f"{origin.vcs_info.vcs}+{address}@{origin.vcs_info.commit_id}"
    if origin.subdirectory:
        address += f"#subdirectory={origin.subdirectory}"
    return [f"{package}{_brackets(extra)} @ {address}"]


def _packages_of(installed: Distribution, extra: str) -> list[str]:
    """The requirements of an extra, from the metadata of the installed distribution."""
    lines = [line.partition(";") for line in installed.requires or ()]
    markers = {f"extra=={quote}{extra}{quote}" for quote in "'\""}
    return [name.strip() for name, _, marker in lines if marker.replace(" ", "") in markers]


def _brackets(extra: str) -> str:
    return f"[{extra}]" if extra else ""


def _pip_command() -> str:
    """How what installs into this interpreter's environment is called."""
    if find_spec("pip") is None:  # as in the environments of uv
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"
