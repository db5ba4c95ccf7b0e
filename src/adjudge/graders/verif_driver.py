"""The sandbox's side of VerIF's rules: calls each checker, reports what it returned.

Shipped into the sandbox as source and run there with nothing but the standard library. Standard
input is a JSON object ``{"instruction", "response", "functions": [[index, source], …]}``. Per
function one line ``[index, "value", true | false]``, ``[index, "other", type name]`` or
``[index, "error", text]`` goes to standard output, which the function's own prints do not reach.
Every function starts from a fresh module.
"""

import json
import os
import sys
import types
from typing import Any

_NAME = "check_following"
_MAX_TEXT = 300


def _line(*parts: Any) -> bytes:
    return json.dumps(parts).encode() + b"\n"


def _called(index: int, source: str, instruction: str, response: str) -> bytes:
    """The line for one function."""
    try:
        module = types.ModuleType("checker")
        sys.modules["checker"] = module  # dataclasses look their module up
        exec(compile(source, "checker", "exec"), module.__dict__)  # noqa: S102  (a sandbox's job)
        value = getattr(module, _NAME)(instruction, response)
    except BaseException as error:  # noqa: BLE001  (sys.exit included: whatever it did, it failed)
        return _line(index, "error", f"{type(error).__name__}: {error}"[:_MAX_TEXT])
    if isinstance(value, bool):
        return _line(index, "value", value)
    return _line(index, "other", type(value).__name__[:_MAX_TEXT])


def main() -> None:
    """Call the functions on standard input, one line each."""
    given = json.load(sys.stdin)
    channel, write = os.dup(1), os.write
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for index, source in given["functions"]:
        line = memoryview(_called(index, source, given["instruction"], given["response"]))
        while line:
            line = line[write(channel, line) :]
    os._exit(0)  # threads that a function left behind must not hold the process


if __name__ == "__main__":
    main()
