"""What is missing is installed from where this copy came, and by no name on the index alone."""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from adjudge.installation import CORE, LAB, install_command

ROOT = Path(__file__).parents[2]
GIT = "https://example.org/o/adjudge.git"
COMMIT = {"vcs": "git", "requested_revision": "main", "commit_id": "0a1b2c"}
WHEEL = f"'WHEEL[train]', where WHEEL is a wheel of {LAB} from the place that {CORE} came from"
PACKAGES = "'prometheus-client>=0.21' 'uvicorn>=0.34'"
METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: 0.2.0
Provides-Extra: server
Requires-Dist: aiohttp>=3.12
Requires-Dist: prometheus-client>=0.21; extra == 'server'
Requires-Dist: uvicorn>=0.34; extra == 'server'
Requires-Dist: gguf>=0.19; extra == 'embedded'
Requires-Dist: torch>=2.6; extra == 'train'
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution of this name beside pip; nothing else is installed."""
    site = tmp_path / "site"
    (site / "pip").mkdir(parents=True)
    (site / "pip" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.delitem(sys.modules, "pip", raising=False)

    def make(origin: object, name: str = CORE) -> None:
        about = site / f"{name.replace('-', '_')}-0.2.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(METADATA.format(name=name))
        if origin is not None:
            text = origin if isinstance(origin, str) else json.dumps(origin)
            (about / "direct_url.json").write_text(text.replace("HERE", tmp_path.as_uri()))

    return make


def words_after_install(extra: str, package: str = CORE) -> str:
    return install_command(extra, package).partition(" install ")[2]


@pytest.mark.parametrize(
    ("origin", "core", "lab"),
    [
        (
            {"url": "HERE/a%20clone", "dir_info": {}},
            "'{}/a clone[server]'",
            "'{}/a clone/lab[train]'",
        ),
        ({"url": "HERE/gone", "dir_info": {}}, PACKAGES, WHEEL),
        ({"url": "HERE/a.whl", "archive_info": {"hash": "sha256=0"}}, "'{}/a.whl[server]'", WHEEL),
        (
            {"url": "https://example.org/adjudge-0.2.0.tar.gz", "archive_info": {}},
            "'adjudge[server] @ https://example.org/adjudge-0.2.0.tar.gz'",
            WHEEL,
        ),
        (
            {
                "url": "https://example.org/adjudge-0.2.0.tar.gz?signature=secret",
                "archive_info": {},
            },
            PACKAGES,
            WHEEL,
        ),
        (
            {"url": GIT, "vcs_info": COMMIT},
            f"'adjudge[server] @ git+{GIT}@0a1b2c'",
            f"'adjudge-lab[train] @ git+{GIT}@0a1b2c#subdirectory=lab'",
        ),
        (
            {"url": GIT.replace("//", "//me:secret@"), "vcs_info": COMMIT},
            f"'adjudge[server] @ git+{GIT}@0a1b2c'",
            f"'adjudge-lab[train] @ git+{GIT}@0a1b2c#subdirectory=lab'",
        ),
        (
            {"url": "ssh://git@example.org/adjudge", "vcs_info": COMMIT, "subdirectory": "in/it"},
            "'adjudge[server] @ git+ssh://git@example.org/adjudge@0a1b2c#subdirectory=in/it'",
            "'adjudge-lab[train] @ git+ssh://git@example.org/adjudge@0a1b2c#subdirectory=in/it/lab'",
        ),
        (
            {"url": "HERE/a%20clone", "vcs_info": COMMIT},
            "'adjudge[server] @ git+file://localhost{}/a%20clone@0a1b2c'",
            "'adjudge-lab[train] @ git+file://localhost{}/a%20clone@0a1b2c#subdirectory=lab'",
        ),
        (None, PACKAGES, WHEEL),
        ({"dir_info": {}}, PACKAGES, WHEEL),
    ],
)
def test_an_extra_and_the_lab_come_from_where_the_core_came(
    install: Install, tmp_path: Path, origin: object, core: str, lab: str
) -> None:
    for folder in ("a clone", "a clone/lab"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").touch()
    (tmp_path / "a.whl").touch()
    install(origin)
    assert words_after_install("server") == core.format(tmp_path)
    assert words_after_install("train", LAB) == lab.format(tmp_path)


def test_an_installed_lab_knows_where_it_came_from_itself(install: Install) -> None:
    install(None)
    install({"url": GIT, "vcs_info": COMMIT, "subdirectory": "lab"}, LAB)
    wanted = f"'adjudge-lab[train] @ git+{GIT}@0a1b2c#subdirectory=lab'"
    assert words_after_install("train", LAB) == wanted


def test_a_lab_from_an_index_lacks_the_packages_of_its_extra(install: Install) -> None:
    install(None)
    install(None, LAB)
    assert words_after_install("train", LAB) == "'torch>=2.6'"


@pytest.mark.usefixtures("install")
def test_without_a_distribution_it_is_the_source_that_runs() -> None:
    assert words_after_install("server") == f"'{ROOT}[server]'"
    # The lab needs an installed core, which pip would otherwise look for on the index.
    assert words_after_install("train", LAB) == f"{ROOT} '{ROOT}/lab[train]'"
    assert words_after_install("", LAB) == f"{ROOT} {ROOT}/lab"


def test_the_command_is_that_of_this_interpreter(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("v", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pip").touch(mode=0o755)
    install({"url": GIT, "vcs_info": COMMIT})
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/v/python")
    monkeypatch.setenv("PATH", f"{tmp_path}/v")
    assert install_command("server").startswith("pip install 'adjudge[server] @")
    monkeypatch.setenv("PATH", f"{tmp_path}/other:{tmp_path}/v")
    assert install_command("server").startswith(f"{tmp_path}/v/python -m pip install 'adj")
    (tmp_path / "site" / "pip" / "__init__.py").unlink()
    (tmp_path / "site" / "pip").rmdir()
    assert install_command().startswith(f"uv pip install --python {tmp_path}/v/python 'adj")


def test_every_extra_that_a_message_names_is_declared() -> None:
    called = re.compile(r"install_command\([\"'](\w+)[\"'](, LAB)?\)")
    for folder, package in (("", ""), ("lab", ", LAB")):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        named = {
            found[1]
            for source in ("src", "lab/src")
            for path in (ROOT / source).rglob("*.py")
            for found in called.finditer(path.read_text("utf-8"))
            if (found[2] or "") == package
        }
        assert named
        assert named <= set(project["optional-dependencies"])


def test_nothing_says_to_install_a_name_that_is_free_on_the_index() -> None:
    """Whoever registers it there would get every reader who follows such a line."""
    name = r"adjudge(?:-lab)?(?:\[[\w,]+\])?"
    refused = re.compile(rf"pip install[^\n`|#]*?[ \"']{name}(?:[\"'`]|\s(?!@)|$)")
    folders = ("src", "lab/src", "docs", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    said = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in [*files, ROOT / "README.md", ROOT / "lab" / "README.md"]
        if path.suffix in {".py", ".md", ".toml", ".ipynb", ".html", ".js"}
        for found in refused.finditer(path.read_text("utf-8"))
    }
    assert not said
