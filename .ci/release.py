"""What must hold before a release; `make release-check` calls each part.

    python .ci/release.py versions [--tag v0.2.0]     versions, CHANGELOG and git tag agree
    python .ci/release.py install DIST [--only NAME]  what is in DIST, each in an empty environment

Whatever is wrong is one sentence and exit code 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"adjudge": ROOT, "adjudge-lab": ROOT / "lab"}

NOT_INSTALLED = {
    "adjudge[local]": "needs torch",
    "adjudge-lab[train]": "needs torch",
    "adjudge-lab[lora]": "needs torch",
}
"""Extras that no machine without torch can try; `make test-trl` and `make demo-rl` use them."""


class ReleaseProblem(Exception):
    """Why this is not to be released."""


def check_versions(root: Path, tag: str | None = None) -> str:
    """The version that both packages, their pins, CHANGELOG and the tag name.

    Without ``tag`` the tag of that version need not exist, but if it does, it is this commit's.
    Raises :class:`ReleaseProblem`.
    """
    projects = {
        where: tomllib.loads((root / where).read_text("utf-8"))["project"]
        for where in ("pyproject.toml", "lab/pyproject.toml")
    }
    version: str = projects["pyproject.toml"]["version"]
    named = {where: project["version"] for where, project in projects.items()}
    source = (root / "src/adjudge/version.py").read_text("utf-8")
    named["src/adjudge/version.py"] = re.findall(r'__version__ = "(.*)"', source)[0]
    for where, project in projects.items():
        extras = project.get("optional-dependencies", {}).values()
        for line in (*project["dependencies"], *(line for extra in extras for line in extra)):
            if pin := re.fullmatch(r"adjudge(?:-lab)?(?:\[\w+\])?==(.*)", line):
                named[f"{where}: {line.partition('==')[0]}"] = pin[1]
    for where, found in named.items():
        if found != version:
            raise ReleaseProblem(f"{where}: names version {found}, and pyproject.toml {version}.")
    _check_changelog((root / "CHANGELOG.md").read_text("utf-8"), version)
    _check_tag(root, version, tag)
    return version


def _check_changelog(text: str, version: str) -> None:
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    waiting = next((one for one in sections if one.startswith("Unreleased\n")), "")
    if waiting.partition("\n")[2].strip():
        raise ReleaseProblem(
            "CHANGELOG.md: Unreleased has entries. Move them under a heading of the version that "
            "is to be released."
        )
    released = [one.partition("\n")[0] for one in sections if one != waiting]
    top = released[0] if released else "none"
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", top):
        raise ReleaseProblem(
            f"CHANGELOG.md: the top section is {top!r}, and must be '{version} (YEAR-MONTH-DAY)'."
        )


def _check_tag(root: Path, version: str, tag: str | None) -> None:
    if tag not in (None, f"v{version}"):
        raise ReleaseProblem(f"The tag {tag} is not that of version {version}: v{version}.")
    there = _git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}")
    if not there and tag is not None:
        raise ReleaseProblem(f"There is no tag {tag} here. Make it: git tag {tag}")
    if there and there != _git(root, "rev-parse", "HEAD"):
        raise ReleaseProblem(
            f"The tag v{version} is of another commit ({there[:7]}). Give this one a new version."
        )
    if not there:
        print(f"dry check of the tag: v{version} is free; git tag v{version} makes it")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def list_installations(dist: Path) -> Iterator[tuple[str, list[str]]]:
    """What is installed into an empty environment of its own: a name, and pip's requirements.

    Raises :class:`ReleaseProblem` where ``dist`` lacks a wheel or an sdist.
    """
    files = {
        (package, kind): _one_file(dist, f"{package.replace('-', '_')}-[0-9]*{kind}")
        for package in PACKAGES
        for kind in (".whl", ".tar.gz")
    }
    core, lab = (str(files[package, ".whl"]) for package in PACKAGES)
    yield "adjudge", [core]
    yield "adjudge (sdist)", [str(files["adjudge", ".tar.gz"])]
    yield "adjudge-lab", [core, lab]
    yield "adjudge-lab (sdist)", [str(file) for (_, kind), file in files.items() if kind != ".whl"]
    for package, folder in PACKAGES.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        for extra in project["optional-dependencies"]:
            name = f"{package}[{extra}]"
            if name in NOT_INSTALLED:
                print(f"{name}: skipped, {NOT_INSTALLED[name]}")
            else:
                yield (
                    name,
                    [f"{core}[{extra}]"] if package == "adjudge" else [core, f"{lab}[{extra}]"],
                )


def _one_file(dist: Path, pattern: str) -> Path:
    found = sorted(dist.glob(pattern))
    if len(found) != 1:
        raise ReleaseProblem(f"{dist}: has {len(found)} files {pattern}, and must have one.")
    return found[0].resolve()


def try_installation(name: str, requirements: list[str], version: str) -> None:
    """Install into an empty environment, and run what works without a key or a network."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run(name, folder, *pip, "install", *requirements)
        _run(name, folder, *pip, "check")
        adjudge = str(Path(folder) / "bin" / "adjudge")
        told = _run(name, folder, adjudge, "--version")
        if told.strip() != f"adjudge {version}":
            raise ReleaseProblem(f"{name}: adjudge --version says {told.strip()!r}.")
        _run(name, folder, adjudge, "demo", "-o", "demo")
        if not (Path(folder) / "demo" / "report.html").stat().st_size:
            raise ReleaseProblem(f"{name}: adjudge demo wrote an empty report.html.")
        if name.startswith("adjudge-lab"):
            example = str(ROOT / "examples" / "rl_tiny.toml")
            _run(name, folder, adjudge, "train", example, "--dry-run")


def _run(name: str, folder: str, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        called = " ".join(Path(words[0]).name if word == words[0] else word for word in words)
        raise ReleaseProblem(f"{name}: `{called}` ended with {done.returncode}: {last[0]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="What must hold before a release.")
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("versions").add_argument("--tag")
    install = parts.add_parser("install")
    install.add_argument("dist", type=Path)
    install.add_argument("--only", action="append", help="of the installations, those of this name")
    words = parser.parse_args()
    try:
        if words.part == "versions":
            print(f"version {check_versions(ROOT, words.tag)} everywhere")
            return
        version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        for name, requirements in list_installations(words.dist):
            if not words.only or name in words.only:
                try_installation(name, requirements, version)
                print(f"{name}: installs and runs", flush=True)
    except ReleaseProblem as problem:
        sys.exit(f"release-check: {problem}")


if __name__ == "__main__":
    main()
