"""Packages that seem to be installed: a module, its metadata and its entry points in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions
from pathlib import Path


class Packages:
    """Packages that are installed in a folder; their modules have ``code``."""

    def __init__(self, folder: Path, code: str = "") -> None:
        self.folder = folder
        self._code = code

    def install(
        self,
        name: str,
        extensions: Mapping[str, str],
        code: str | None = None,
        group: str = "adjudge.commands",
    ) -> None:
        """Add the package ``name`` 1.5 with entry points: name to ``module:attribute``."""
        (self.folder / f"{name}.py").write_text(self._code if code is None else code)
        about = self.folder / f"{name}-1.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = [f"{one} = {value}" for one, value in extensions.items()]
        (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")

    def entry_points(self, *, group: str) -> list[EntryPoint]:
        """As :func:`importlib.metadata.entry_points`, of these packages alone."""
        found = [
            one for each in distributions(path=[str(self.folder)]) for one in each.entry_points
        ]
        return [one for one in found if one.group == group]
