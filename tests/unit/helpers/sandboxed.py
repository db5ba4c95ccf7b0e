"""Programs in a sandbox."""

import asyncio
from typing import Any

from adjudge.graders.code.bubblewrap import SandboxLimits
from adjudge.graders.code.sandbox import SandboxResult, run_program


def run(program: str, **settings: Any) -> SandboxResult:
    given = {key: settings.pop(key) for key in ("stdin", "files") if key in settings}
    return asyncio.run(run_program(program, SandboxLimits(**settings), **given))


def printed(program: str, **settings: Any) -> str:
    """What ``program`` prints; it must end well."""
    result = run(program, **settings)
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()
