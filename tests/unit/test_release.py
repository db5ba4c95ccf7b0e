"""`make release-check`: what disagrees is one plain sentence."""

import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.scripts import load_script

from adjudge.version import __version__

ROOT = Path(__file__).parents[2]
_NAMED = ("pyproject.toml", "lab/pyproject.toml", "src/adjudge/version.py", "CITATION.cff")
_CHANGES = f"""# Changelog

## Unreleased

## {__version__} (2026-11-24)

### Fixed

- This.

## 0.0.1 (2026-11-01)
"""


release = load_script(ROOT / ".ci" / "release.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A commit of the files that name a version, as they are when a release is made."""
    for name in _NAMED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(_CHANGES)
    cited = re.sub("released: .*", "released: 2026-11-24", (tmp_path / "CITATION.cff").read_text())
    (tmp_path / "CITATION.cff").write_text(cited)
    git(tmp_path, "init", "-q")
    commit(tmp_path, "one")
    return tmp_path


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=tree, check=True)


def commit(tree: Path, message: str) -> None:
    git(tree, "add", "-A")
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    git(tree, *who, "commit", "-q", "--allow-empty", "-m", message)


def test_without_a_tag_the_check_says_how_to_make_it(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.check_versions(tree) == __version__
    assert f"git tag -a v{__version__} -F dist/notes.txt\n" in capsys.readouterr().out


def test_the_text_of_the_tag_is_the_newest_section() -> None:
    assert release.write_notes(_CHANGES) == (
        f"adjudge {__version__} (2026-11-24)\n\nFixed\n\n- This.\n"
    )


def test_the_tag_is_of_this_version_and_of_this_commit(tree: Path) -> None:
    tag = f"v{__version__}"
    with pytest.raises(release.ReleaseProblem, match=re.escape(f"There is no tag {tag} here")):
        release.check_versions(tree, tag)
    with pytest.raises(release.ReleaseProblem, match="The tag v9.9 is not that of version"):
        release.check_versions(tree, "v9.9")
    git(tree, "tag", tag)
    assert release.check_versions(tree, tag) == release.check_versions(tree) == __version__
    commit(tree, "two")
    for given in (tag, None):
        with pytest.raises(release.ReleaseProblem, match=f"The tag {tag} is of another commit"):
            release.check_versions(tree, given)


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (
            "lab/pyproject.toml",
            'version = "',
            'version = "9',
            "lab/pyproject.toml: names version 9",
        ),
        ("src/adjudge/version.py", '= "', '= "9', "src/adjudge/version.py: names version 9"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- New.\n", "Unreleased has entries"),
        ("CHANGELOG.md", " (2026-11-24)", "", f"must be '{__version__} "),
        ("CITATION.cff", "2026-11-24", "2026-11-25", "CITATION.cff: has no line 'date-rel"),
    ],
)
def test_what_disagrees_is_named(tree: Path, file: str, old: str, new: str, problem: str) -> None:
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new, 1))
    with pytest.raises(release.ReleaseProblem, match=problem):
        release.check_versions(tree)


def test_each_package_and_each_extra_is_installed(tmp_path: Path) -> None:
    for package in ("adjudge", "adjudge_lab"):
        for end in ("-py3-none-any.whl", ".tar.gz"):
            (tmp_path / f"{package}-{__version__}{end}").touch()
    names = [name for name, _ in release.list_installations(tmp_path)]
    assert {"adjudge", "adjudge (sdist)", "adjudge-lab", "adjudge-lab (sdist)"} < set(names)
    assert {*release.HEAVY, *release.COMMANDS} < set(names)
    (tmp_path / f"adjudge-{__version__}.tar.gz").unlink()
    with pytest.raises(release.ReleaseProblem, match="has 0 files"):
        list(release.list_installations(tmp_path))


def test_a_built_file_that_is_not_committed_is_named(tmp_path: Path) -> None:
    packages = {"adjudge": tmp_path / "src", "adjudge_lab": tmp_path / "lab" / "src"}
    for package, source in packages.items():
        (source / package).mkdir(parents=True)
        (source / package / "kept.py").touch()
    git(tmp_path, "init", "-q")
    commit(tmp_path, "one")
    (tmp_path / "src" / "adjudge" / "stray.py").touch()
    for package, source in packages.items():
        with (
            zipfile.ZipFile(tmp_path / f"{package}-1.whl", "w") as wheel,
            tarfile.open(tmp_path / f"{package}-1.tar.gz", "w:gz") as sdist,
        ):
            for file in (source / package).iterdir():
                wheel.write(file, f"{package}/{file.name}")
                sdist.add(file, f"{package}-1/src/{package}/{file.name}")
    with pytest.raises(release.ReleaseProblem, match="wheel: adjudge/stray.py is not committed"):
        release.check_files(tmp_path, tmp_path)
    commit(tmp_path, "two")
    assert release.check_files(tmp_path, tmp_path) == 3
