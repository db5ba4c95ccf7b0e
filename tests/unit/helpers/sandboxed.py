"""Programs in a sandbox."""

import asyncio
from collections.abc import Sequence
from typing import Any

from adjudge.graders.code.bubblewrap import SandboxLimits, SandboxResult
from adjudge.graders.code.sandbox import Sandbox


def run(sandbox: Sandbox, program: str | Sequence[str], **settings: Any) -> SandboxResult:
    given = {key: settings.pop(key) for key in ("stdin", "files") if key in settings}
    return asyncio.run(sandbox.run(program, SandboxLimits(**settings), **given))


def printed(sandbox: Sandbox, program: str, **settings: Any) -> str:
    """What ``program`` prints; it must end well."""
    result = run(sandbox, program, **settings)
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()
