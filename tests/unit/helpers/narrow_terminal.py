"""What a narrow terminal shows."""

import io

from rich.console import Console


def shown(content: object, width: int) -> str:
    """``content`` as a terminal of that width has it."""
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, emoji=False).print(content)
    return file.getvalue()
