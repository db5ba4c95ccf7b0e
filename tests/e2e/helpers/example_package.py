"""The package that ``docs/extending.md`` shows: its files beside each other, or installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.e2e.helpers.command import run_process

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def shown_files() -> dict[str, str]:
    """The files on the page, by name."""
    return dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def shown_extensions() -> dict[str, dict[str, str]]:
    """The entry points on the page: group to names to ``module:attribute``."""
    found: dict[str, dict[str, str]] = tomllib.loads(shown_files()["pyproject.toml"])["project"][
        "entry-points"
    ]
    return found


class ExamplePackage:
    """How a user has the examples: ``installed`` in ``target``, or as files in ``folder``.

    ``folder`` is where commands run. With an installed package it has only what is no Python
    module of the package, and all names there are those of the entry points.
    """

    def __init__(self, folder: Path, target: Path | None = None) -> None:
        self.folder, self.target = folder, target
        self.names = {
            value: value if target is None else name
            for points in shown_extensions().values()
            for name, value in points.items()
        }
        for name, text in shown_files().items():
            if target is None or not name.startswith("acme/"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(self._with_names(text))

    @property
    def installed(self) -> bool:
        """Whether there are entry points."""
        return self.target is not None

    def _with_names(self, text: str) -> str:
        for value, name in self.names.items():
            text = text.replace(f'"{value}"', f'"{name}"')
        return text

    def environment(self) -> dict[str, str]:
        """The variables with which a process finds the package."""
        before = os.environ.get("PYTHONPATH", "")
        places = [before, *([] if self.target is None else [str(self.target)])]
        return {"PYTHONPATH": os.pathsep.join(one for one in places if one)}

    def adjudge(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command, which must succeed."""
        done = run_process(*words, folder=self.folder, **self.environment(), **environment)
        assert done.returncode == 0, done.stderr
        return done

    def python(self, *arguments: str) -> str:
        """What a program prints."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, capture_output=True, text=True,
            env={**os.environ, **self.environment()}, timeout=120, check=True,
        ).stdout  # fmt: skip


def install_example(folder: Path, target: Path) -> None:
    """Build the package from the page's files in ``folder``, and install it into ``target``."""
    for name, text in shown_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--disable-pip-version-check", "--target", target, folder],
        check=True, timeout=120,
    )  # fmt: skip
