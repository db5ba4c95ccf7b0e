"""``adjudge demo --live``: eight answers, judged by a real language model on this machine.

The answers come in pairs, a right one and a wrong one, so that a reader can check by eye what the
judge says of them.
"""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from adjudge.cli.console import clean, errors
from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.judges.models.model_files import MODEL_FILES, fetch_model, fetched_path, models_folder

_MODEL = "smollm2"


def fetch_live_model() -> None:
    """Fetch the model unless it is there; say what is fetched, and how long it computes.

    Raises :class:`~adjudge.errors.ConfigError` where the library is missing or nothing comes.
    """
    if find_spec("xllamacpp") is None:
        raise ConfigError(
            "--live: the package xllamacpp is not installed. Run: " + install_command("embedded")
        )
    model = MODEL_FILES[_MODEL]
    if not fetched_path(model).is_file():
        errors().print(
            f"{model.about} ({model.megabytes} MB, licence {model.licence}); fetched once, and "
            f"kept in {clean(models_folder())}"
        )
        fetch_model(_MODEL, on_step=errors().print)
    errors().print(
        "a whole run asks 24 questions, about a minute of CPU time; the first verdicts come late"
    )


def print_next_steps(console: Console, folder: Path) -> None:
    """What the judge is worth, and what can be done with the folder."""
    spec, rollouts = folder / "inputs" / "reward.toml", folder / "inputs" / "rollouts.jsonl"
    other = folder.with_name(f"{folder.name}-other")
    commands = {
        shlex.join(["adjudge", "view", str(folder)]): "each prompt, reply and verdict",
        shlex.join(
            ["adjudge", "grade", str(rollouts), "--spec", str(spec), "-o", str(other)]
        ): "after the change",
        shlex.join(["adjudge", "diff", str(folder), str(other)]): "what turned",
    }
    console.print(
        "\nA model of 135 million parameters is a weak judge: its verdicts are near a coin's. Do "
        "not train on its rewards."
    )
    console.print(
        f"\nFor a judge of yours, change \\[judges.main] in {clean(spec)}; its comments show how "
        "for a larger GGUF file, a server, and an API with a key."
    )
    for command, purpose in commands.items():
        console.print(f"  {clean(command)}   [dim]# {purpose}[/]", soft_wrap=True)
    console.print("For your own rollouts, run adjudge init FILE.")
