"""``adjudge serve``: judges for any trainer, over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from adjudge.cli.consoles import clean, errors
from adjudge.errors import ConfigError
from adjudge.service.settings import KEY_VARIABLE, PORT, ServiceSettings

if TYPE_CHECKING:  # what it needs comes with adjudge[server]
    from adjudge.service.backend import Backend
    from adjudge.service.serving import Running

__all__ = ["serve"]

_DEFAULT = ServiceSettings()
_GROUP_EXAMPLE = (
    '{"group_id": "g1", "group_size": 1, "request_id": "a", "prompt": "What is 2 + 2?", '
    '"completion": "4", "answer": "4"}'
)
_EXAMPLE = '{"prompt": "What is 2 + 2?", "completion": "4", "answer": "4"}'


def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A reward spec (.toml), the folder of a trained judge, or module:Class.",
        ),
    ],
    host: Annotated[str, typer.Option(help="A public one needs a key.")] = _DEFAULT.host,
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = PORT,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the key that clients must send, if set.")
    ] = KEY_VARIABLE,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="For the class's constructor; repeatable."),
    ] = None,
    damping: Annotated[
        str | None,
        typer.Option(
            metavar="BELOW:FACTOR",
            help="Multiply scores by FACTOR where the judge's confidence is below BELOW; off.",
        ),
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(help="Requests in one batch at most.")
    ] = _DEFAULT.max_batch_size,
    batch_timeout: Annotated[
        float, typer.Option(help="Seconds that a batch's oldest request waits for others.")
    ] = _DEFAULT.batch_timeout,
    max_concurrent: Annotated[
        int, typer.Option(help="Requests judged at once, where each takes its own time.")
    ] = _DEFAULT.max_concurrent,
    queue_size: Annotated[
        int, typer.Option(help="Requests that may wait; more get 429 and Retry-After.")
    ] = _DEFAULT.queue_size,
    deadline_s: Annotated[
        float, typer.Option(help="Seconds from a request to its answer; then error timeout.")
    ] = _DEFAULT.deadline_s,
    group_timeout_s: Annotated[
        float, typer.Option(help="Seconds that a group waits for its missing samples.")
    ] = _DEFAULT.group_timeout_s,
    max_body_mb: Annotated[
        float, typer.Option(help="Of a request, in megabytes.")
    ] = _DEFAULT.max_body_mb,
    max_image_mb: Annotated[
        float, typer.Option(help="Of one image, in megabytes.")
    ] = _DEFAULT.max_image_mb,
    max_values: Annotated[
        int, typer.Option(help="Values in a request; a tenth may be lists and objects.")
    ] = _DEFAULT.max_values,
    read_timeout_s: Annotated[
        float, typer.Option(help="Seconds for a request to arrive.")
    ] = _DEFAULT.read_timeout_s,
    drain_s: Annotated[
        float, typer.Option(help="Seconds for accepted requests, after SIGTERM or Ctrl-C.")
    ] = _DEFAULT.drain_s,
    ray: Annotated[bool, typer.Option("--ray", help="Judge in replicas on a Ray cluster.")] = False,
    replicas: Annotated[int | None, typer.Option(min=1, help="With --ray [default: 1].")] = None,
    min_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --ray, with --max-replicas: as many as needed.")
    ] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1)] = None,
    replica_gpus: Annotated[float, typer.Option(min=0, help="GPUs of each replica.")] = 0.0,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="auto|local|ADDRESS",
            help="auto: a Ray cluster that runs here; local: this machine alone "
            "[default: $RAY_ADDRESS, else local].",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON when ready.")] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Judge for any number of trainers: a reward spec, or a class of yours, behind HTTP.

    POST /judge takes {"prompt", "completion", "answer"?, …} and gives {"score", "explanation"?, …};
    /batch_judge takes up to 128 at once; /group_judge lets a group's samples meet. /health, /ready,
    /metrics, /docs and /openapi.json say the rest. A judge that failed is status 503 with
    {"error": {"kind", "message"}}, or an item with "error" and no "score" in a batch; never a
    number.

    A class needs score(prompt, completion, answer) -> float or {"score": …}, or
    score_batch(requests); anything else it can say is in the documentation.

    --ray judges in replicas on a Ray cluster, all samples of a group (and of a prompt) in the same
    one; HTTP stays with this process.

    Needs pip install 'adjudge[server]'. Ctrl-C (or SIGTERM) answers what was accepted, then stops.

    Example: adjudge serve reward.toml

    Example: adjudge serve judges:MyJudge --arg model_path=models/judge --port 9000
    """
    settings = ServiceSettings(
        host=host, port=port, api_key_env=api_key_env, max_batch_size=max_batch_size,
        batch_timeout=batch_timeout, max_concurrent=max_concurrent, queue_size=queue_size,
        deadline_s=deadline_s, group_timeout_s=group_timeout_s, max_body_mb=max_body_mb,
        max_image_mb=max_image_mb, max_values=max_values, read_timeout_s=read_timeout_s,
        drain_s=drain_s,
    )  # fmt: skip
    try:
        from adjudge.service.backends import Damping, load_backend  # noqa: PLC0415
        from adjudge.service.serving import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"fastapi", "uvicorn", "prometheus_client"}:
            raise
        raise ConfigError(
            f"adjudge serve needs {error.name}: pip install 'adjudge[server]'"
        ) from error

    given: dict[str, Any] = {
        "arguments": _pairs(arg or ()),
        "damping": None if damping is None else Damping.parse(damping),
    }
    backend: Backend
    if ray:
        from adjudge.service.serve_ray import RayBackend, Replicas  # noqa: PLC0415

        load_backend(target, settings, **given)  # complains here, in words, if it must
        least, most = _numbers(replicas, min_replicas, max_replicas)
        there = Replicas(least, most, gpus=replica_gpus, address=ray_address)
        backend = RayBackend(target, settings, there, **given)
        settings = msgspec.structs.replace(settings, max_concurrent=settings.max_concurrent * most)
    elif replicas or min_replicas or max_replicas or replica_gpus or ray_address:
        raise ConfigError(
            "--replicas, --min-replicas, --max-replicas, --replica-gpus and "
            "--ray-address go with --ray"
        )
    else:
        backend = load_backend(target, settings, **given)
    if not as_json:
        errors().print(f"[dim]loading {clean(target)}[/]")
    run(backend, settings, _announce_json if as_json else _announce, until_eof=until_eof)


def _numbers(exactly: int | None, least: int | None, most: int | None) -> tuple[int, int]:
    """The least and the most replicas."""
    if most is None and least is None:
        return exactly or 1, exactly or 1
    if exactly is not None or most is None:
        raise ConfigError("either --replicas, or --max-replicas with --min-replicas if not 1")
    return least or 1, most


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise ConfigError(f"--arg {one[:40]!r}: must be KEY=VALUE")
        pairs[name] = value
    return pairs


def _announce_json(running: Running) -> None:
    typer.echo(msgspec.json.encode(running))


def _announce(running: Running) -> None:
    key = ""
    if running.key_env is not None:
        key = f' -H "Authorization: Bearer ${running.key_env}"'
    typer.echo(running.url)
    typer.echo(f"judge: {running.backend}, version {running.version}")
    compares = running.compares_groups is not None
    typer.echo(f"POST {'/group_judge' if compares else ' '.join(running.routes)}")
    typer.echo("GET /health /ready /metrics /calls /docs /openapi.json")
    if compares:
        typer.echo(f"{running.compares_groups}: each sample says its group_id and group_size")
        typer.echo(f"try: curl{key} {running.url}/group_judge -d '{_GROUP_EXAMPLE}'")
    else:
        typer.echo(f"try: curl{key} {running.url}/judge -d '{_EXAMPLE}'")
    typer.echo("Ctrl-C stops")
