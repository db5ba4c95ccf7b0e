"""What must hold before a release; `make release-check` calls each part.

    python .ci/release.py versions [--tag v0.2.0]   versions, CHANGELOG, CITATION and tag agree
    python .ci/release.py files DIST                wheels and sdists hold what is committed
    python .ci/release.py install DIST [--light] [--only NAME]
                                                    each of them and each extra, installed alone
    python .ci/release.py notes DIST                write the tag's text to DIST/notes.txt

Whatever is wrong is one sentence and exit code 1. Each part can be run again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"adjudge": ROOT, "adjudge-lab": ROOT / "lab"}

HEAVY = {
    "adjudge[local]": "brings torch",
    "adjudge-lab[train]": "brings torch",
    "adjudge-lab[lora]": "brings torch",
}
"""Extras of gigabytes, which ``--light`` skips; see PIP_EXTRA_INDEX_URL in environments.toml."""

INPUTS = {
    "rows.jsonl": "".join(
        f'{{"prompt": "What is {row // 4} + 1?", "response": "It is {row // 4 + row % 2}, I think",'
        f' "reference": "{row // 4 + 1}", "reward": {row % 2}}}\n'
        for row in range(32)
    ),
    "rule.toml": '[[graders]]\nname = "right"\ntype = "answer"\nanswer_type = "NUMBER"\n',
    "language.toml": '[[graders]]\nname = "english"\ntype = "language"\nlanguage = "en"\n',
}
"""Files for the commands, in the folder of each environment."""

COMMANDS = {
    "adjudge[full]": "audit rows.jsonl -o audited",
    "adjudge[language]": "grade rows.jsonl --spec language.toml -o graded",
    "adjudge[server]": "serve rule.toml --port 0 --json",
    "adjudge[ray]": "grade rows.jsonl --spec rule.toml -o graded --engine ray --ray-address local",
    "adjudge[embedded]": "models list",
}
"""What of ``adjudge`` needs an extra. Every other installation runs the demonstration, and the lab
a plan of a training."""

IMPORT = """
import importlib, re, sys
from importlib.metadata import packages_distributions, requires

def plain(name):
    return re.sub("[-_.]+", "-", re.match("[\\w.-]+", name)[0]).lower()

package, extra = sys.argv[1:]
importlib.import_module(package.replace("-", "_"))
wanted = {plain(line) for line in requires(package) if f"extra == {extra!r}" in line}
for module, owners in packages_distributions().items():
    if module.isidentifier() and module[0] != "_" and wanted & {plain(one) for one in owners}:
        importlib.import_module(module)
"""
"""Imports the package, and the packages that its extra brings."""


class ReleaseProblem(Exception):
    """Why this is not to be released."""


def check_versions(root: Path, tag: str | None = None) -> str:
    """The version that both packages, their pins, CHANGELOG, CITATION and the tag name.

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
    day = _check_changelog((root / "CHANGELOG.md").read_text("utf-8"), version)
    cited = (root / "CITATION.cff").read_text("utf-8")
    for line in (f"version: {version}", f"date-released: {day}"):
        if line not in cited.splitlines():
            raise ReleaseProblem(f"CITATION.cff: has no line {line!r}, as in CHANGELOG.md.")
    _check_tag(root, version, tag)
    return version


def _check_changelog(text: str, version: str) -> str:
    """The day of the release, which the newest section names."""
    waiting, *released = _split_changelog(text)
    if waiting.strip():
        raise ReleaseProblem(
            "CHANGELOG.md: Unreleased has entries. Move them under a heading of the version that "
            "is to be released."
        )
    top = released[0].partition("\n")[0] if released else "none"
    found = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", top)
    if not found:
        raise ReleaseProblem(
            f"CHANGELOG.md: the top section is {top!r}, and must be '{version} (YEAR-MONTH-DAY)'."
        )
    return found[1]


def _split_changelog(text: str) -> list[str]:
    """What is under Unreleased, then the section of each version, the newest first."""
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    if sections and sections[0].startswith("Unreleased\n"):
        return [sections[0].partition("\n")[2], *sections[1:]]
    return ["", *sections]


def write_notes(changelog: str) -> str:
    """The text of the tag: the newest section. Git would drop a line that begins with #."""
    heading, _, body = _split_changelog(changelog)[1].partition("\n")
    return f"adjudge {heading}\n\n" + re.sub(r"^#+ ", "", body.strip(), flags=re.MULTILINE) + "\n"


def _check_tag(root: Path, version: str, tag: str | None) -> None:
    if tag not in (None, f"v{version}"):
        raise ReleaseProblem(f"The tag {tag} is not that of version {version}: v{version}.")
    there = _git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}")
    if not there and tag is not None:
        raise ReleaseProblem(f"There is no tag {tag} here. Make it: {_tag_command(tag)}")
    if there and there != _git(root, "rev-parse", "HEAD"):
        raise ReleaseProblem(
            f"The tag v{version} is of another commit ({there[:7]}). Give this one a new version."
        )
    if not there:
        print(f"v{version} is free. After this check: {_tag_command(f'v{version}')}")


def _tag_command(tag: str) -> str:
    return f"git tag -a {tag} -F dist/notes.txt"


def check_files(root: Path, dist: Path) -> int:
    """How many files of the two packages are committed; each wheel and sdist has just these.

    Raises :class:`ReleaseProblem`, for one that was not committed, or that is not in the build.
    """
    count = 0
    for package, folder in PACKAGES.items():
        module = package.replace("-", "_")
        source = (root / folder.relative_to(ROOT) / "src").relative_to(root)
        listed = _git(root, "ls-files", "--", str(source / module)).splitlines()
        committed = {str(Path(one).relative_to(source)) for one in listed}
        count += len(committed)
        with zipfile.ZipFile(_one_file(dist, f"{module}-[0-9]*.whl")) as wheel:
            built = {"wheel": {one for one in wheel.namelist() if one.startswith(f"{module}/")}}
        with tarfile.open(_one_file(dist, f"{module}-[0-9]*.tar.gz")) as sdist:
            names = (one.partition("/src/")[2] for one in sdist.getnames())
            built["sdist"] = {one for one in names if one}
        for kind, held in built.items():
            if odd := sorted(committed ^ held):
                what = "is missing" if odd[0] in committed else "is not committed"
                raise ReleaseProblem(f"{package}, {kind}: {odd[0]} {what} ({len(odd)} such files).")
    return count


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
            yield name, [f"{core}[{extra}]"] if package == "adjudge" else [core, f"{lab}[{extra}]"]


def _one_file(dist: Path, pattern: str) -> Path:
    found = sorted(dist.glob(pattern))
    if len(found) != 1:
        raise ReleaseProblem(f"{dist}: has {len(found)} files {pattern}, and must have one.")
    return found[0].resolve()


def try_installation(name: str, requirements: list[str], version: str) -> None:
    """Install into an empty environment, and run what works without a key or a network."""
    package, _, extra = re.sub(r" \(sdist\)", "", name).rstrip("]").partition("[")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder)
        for file, text in INPUTS.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        python = str(Path(folder) / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
        _run(name, folder, *pip, "--quiet", "install", "--no-compile", *requirements)
        _run(name, folder, *pip, "check")
        _run(name, folder, python, "-c", IMPORT, package, extra)
        adjudge = str(Path(folder) / "bin" / "adjudge")
        shown = _run(name, folder, adjudge, "--version")
        if shown.strip() != f"adjudge {version}":
            raise ReleaseProblem(f"{name}: adjudge --version prints {shown.strip()!r}.")
        command = COMMANDS.get(name, "demo -o demo").split()
        if package == "adjudge-lab":
            command = ["train", str(ROOT / "examples" / "rl_tiny.toml"), "--dry-run"]
        if command[0] == "serve":
            _serve(name, folder, adjudge, *command)
        else:
            _run(name, folder, adjudge, *command)
        if command[0] == "demo" and not (Path(folder) / "demo/report.html").stat().st_size:
            raise ReleaseProblem(f"{name}: adjudge demo wrote an empty report.html.")


def _serve(name: str, folder: str, *words: str) -> None:
    """Start a server, and stop it when it prints that it is ready."""
    with subprocess.Popen(
        words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        ready = server.stdout.readline() if server.stdout else ""
        server.terminate()
        last = server.communicate()[1].strip().splitlines()[-1:]
    if "url" not in ready:
        raise ReleaseProblem(f"{name}: `adjudge serve` did not start: {' '.join(last)}")


def _run(name: str, folder: str, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        called = " ".join(
            [Path(words[0]).name, *("…" if "\n" in one else one for one in words[1:])]
        )
        raise ReleaseProblem(f"{name}: `{called}` ended with {done.returncode}: {last[0]}")
    return done.stdout


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _install_all(dist: Path, only: list[str], *, light: bool) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    found = [one for one in list_installations(dist) if not only or one[0] in only]
    for number, (name, requirements) in enumerate(found, 1):
        if light and name in HEAVY:
            _say(f"{name}: skipped, for it {HEAVY[name]} (--light)")
            continue
        _say(f"{name}: installing into an empty environment ({number} of {len(found)})")
        start = time.monotonic()
        try_installation(name, requirements, version)
        _say(f"{name}: installs and runs, {time.monotonic() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="What must hold before a release.")
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("versions").add_argument("--tag")
    for part in ("files", "notes", "install"):
        last = parts.add_parser(part)
        last.add_argument("dist", type=Path)
    last.add_argument("--light", action="store_true", help="skip the extras that bring torch")
    last.add_argument("--only", action="append", help="of the installations, those of this name")
    words = parser.parse_args()
    try:
        match words.part:
            case "versions":
                _say(f"version {check_versions(ROOT, words.tag)} everywhere")
            case "files":
                _say(f"{check_files(ROOT, words.dist)} committed files in wheels and sdists")
            case "install":
                _install_all(words.dist, words.only or [], light=words.light)
            case "notes":
                text = write_notes((ROOT / "CHANGELOG.md").read_text("utf-8"))
                (words.dist / "notes.txt").write_text(text, encoding="utf-8")
                _say(f"{words.dist}/notes.txt has the text of the tag")
    except ReleaseProblem as problem:
        sys.exit(f"release-check: {problem}")


if __name__ == "__main__":
    main()
