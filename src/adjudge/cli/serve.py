"""``adjudge serve``: judges for any trainer, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from adjudge.cli.console import clean, errors
from adjudge.cli.options import (
    JsonAddress,
    RayAddress,
    UntilEof,
    ray_option,
    settings_options,
    split_pairs,
)
from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.service import ServiceSettings

if TYPE_CHECKING:  # what it needs comes with the extra `server`
    from adjudge.service.server import RunningService


_TEXTS = {
    "host": "The address; a public one needs a key.",
    "port": "The port; 0 picks a free one.",
    "client": "The variable of a client's own key, NAME or NAME=WEIGHT. Can be repeated.",
    "max_batch_size": "The most requests in one batch.",
    "batch_timeout": "Seconds that a batch waits.",
    "concurrency": "The most requests at once.",
    "queue_size": "The most that wait; more get 429.",
    "deadline_s": "The most seconds to an answer.",
    "group_size": "Samples of a group (NeMo-Gym).",
    "group_timeout_s": "Seconds that a group waits.",
    "max_body_mb": "The largest request, in megabytes; images have half.",
}
_GROUPS = {
    **dict.fromkeys(_TEXTS, "Load and limits"),
    **dict.fromkeys(("host", "port", "client"), "Options"),
}
"""The groups of the help that these options are in; the others are in the first."""
_GROUP_EXAMPLE = (
    '{"group_id": "g1", "group_size": 1, "request_id": "a", "prompt": "What is 2 + 2?", '
    '"completion": "4", "answer": "4"}'
)
_EXAMPLE = '{"prompt": "What is 2 + 2?", "completion": "4", "answer": "4"}'


@settings_options(ServiceSettings(), _TEXTS, groups=_GROUPS)
def serve_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A reward spec, a trained judge's folder, or module:Class."
        ),
    ],
    *,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An argument for the class. Can be repeated."),
    ] = None,
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format", metavar="NAME", help="A wire format: nemo-gym-marked, or module:Class."
        ),
    ] = None,
    damping: Annotated[
        str | None,
        typer.Option(
            metavar="BELOW:FACTOR", help="Multiply scores where the judge's confidence is low."
        ),
    ] = None,
    settings: ServiceSettings,
    ray: Annotated[
        bool, ray_option("--ray", help="Run the judge in replicas on a Ray cluster.")
    ] = False,
    replicas: Annotated[
        str | None,
        ray_option(
            metavar="N|MIN-MAX",
            help="How many replicas, or from how many to how many under load [default: 1].",
        ),
    ] = None,
    replica_gpus: Annotated[float, ray_option(min=0, help="The GPUs of each replica.")] = 0.0,
    ray_address: RayAddress = None,
    as_json: JsonAddress = False,
    until_eof: UntilEof = False,
) -> None:
    """Serve a judge over HTTP: a spec, a trained judge, or your class.

    Example: adjudge serve reward.toml --port 8888

    Example: adjudge serve judges:MyJudge --arg model_path=models/judge

    POST /judge takes {"prompt", "completion", "answer"?}; a failed judge call is status 503 with a
    kind, never a number. A class needs score(prompt, completion, answer). Needs the extra
    `server`.
    """
    try:
        from adjudge.service.backend import Damping  # noqa: PLC0415
        from adjudge.service.formats import load_formats  # noqa: PLC0415
        from adjudge.service.server import run_service  # noqa: PLC0415
        from adjudge.service.user_backend import load_backend  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"prometheus_client", "uvicorn"}:
            raise
        raise ConfigError(
            f"adjudge serve needs {error.name}. Run: {install_command('server')}"
        ) from error

    formats = load_formats(format_ or ())
    given: dict[str, Any] = {
        "arguments": dict(split_pairs("--arg", arg, "KEY=VALUE")),
        "damping": None if damping is None else Damping.parse(damping),
    }
    backend = load_backend(target, **given)
    if ray or replicas or replica_gpus or ray_address:
        from adjudge.service.ray_backend import RayBackend  # noqa: PLC0415

        least, most = _replica_range(replicas or "1")
        given |= {"least": least, "most": most, "gpus": replica_gpus, "address": ray_address}
        backend = RayBackend(backend, target, settings, **given)
        settings = settings.model_copy(update={"concurrency": settings.concurrency * most})
    if not as_json:
        errors().print(f"[dim]loading {clean(target)}[/]")
    ready = _announce_json if as_json else _announce
    run_service(backend, settings, ready, formats=formats, until_eof=until_eof)


def _replica_range(text: str) -> tuple[int, int]:
    """The least and the most replicas."""
    least, _, most = text.partition("-")
    ends = [int(one) if one.isdecimal() else 0 for one in (least, most or least)]
    if not 0 < ends[0] <= ends[1]:
        raise ConfigError(f"--replicas {text!r}: must be N or MIN-MAX, such as 1-8")
    return ends[0], ends[1]


def _announce_json(running: RunningService) -> None:
    typer.echo(msgspec.json.encode(running))


def _announce(running: RunningService) -> None:
    key = ""
    if running.key_env is not None:
        key = f' -H "Authorization: Bearer ${running.key_env}"'
    typer.echo(running.url)
    typer.echo(f"judge: {running.backend}, version {running.version}")
    compares = running.compares_groups is not None
    typer.echo(f"POST {'/group_judge' if compares else ' '.join(running.routes)}")
    typer.echo("GET /health /ready /metrics /calls")
    if compares:
        typer.echo(f"{running.compares_groups}: each sample needs its group_id and group_size")
        typer.echo(f"try: curl{key} {running.url}/group_judge -d '{_GROUP_EXAMPLE}'")
    else:
        typer.echo(f"try: curl{key} {running.url}/judge -d '{_EXAMPLE}'")
    typer.echo("Ctrl-C stops it.")
