"""Scripts of the repository as modules, which nothing installs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load_script(path: Path) -> Any:
    """A script as a module, run as if it were imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
