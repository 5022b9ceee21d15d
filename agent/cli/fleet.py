"""`edge-agent token`, `approve`, `forget`, `status` and `plan`: looking after a fleet from the PC its head runs on."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.client import Client

Url = Annotated[
    str | None, typer.Option(help="Where the head listens. Default: where yours on this PC does.", show_default=False)
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the head's API key. On this PC: that of your settings.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def token(
    save: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file, for your eyes only.")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new one first; the old one is worth nothing then.")
    ] = False,
    url: Url = None,
) -> None:
    """Print the token with which PCs join this PC's fleet without being asked for. Whoever has it can join.

    Give it to `edge-agent join --token` on the other PC, or in a file to `--token-file`.

    Example: edge-agent token -o token.txt
    """
    from agent import paths, secure_file
    from agent.fleet.head.one_head import running_head
    from agent.fleet.trust.identity import FleetIdentity
    from agent.fleet.trust.token import encode
    from shards.errors import ConfigurationError

    folder = paths.config_folder()
    fleet = FleetIdentity.load_or_create(folder)
    if renew and (url is not None or running_head(folder) is not None):
        with _client(url, None) as client:  # a head that runs must hear of it, or it would go on taking the old one
            client.post("/fleet/renew-token", {})
        fleet = FleetIdentity.load_or_create(folder)
    elif renew:
        fleet = fleet.renew_token(folder)
    text = encode(fleet.keys.public, fleet.joining.secret)
    if save is None:
        print(text)
    else:
        if not save.absolute().parent.is_dir():
            raise ConfigurationError("there is no such folder", where=str(save.absolute().parent))
        secure_file.replace(save.absolute(), text + "\n")
        output.note(f"Written to {save}. On the other PC: edge-agent join --token-file {save.name}")


def approve(
    code: Annotated[str, typer.Argument(help="The code that the other PC shows, e.g. ABCD-EFGH.")],
    url: Url = None,
    api_key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a PC into the fleet.

    Example: edge-agent approve ABCD-EFGH
    """
    with _client(url, api_key_file) as client:
        answer = client.post("/fleet/approve", {"code": code})
    if as_json:
        output.print_json(answer)
    else:
        output.note(f"{answer['node']} is let in")


def forget(
    node: Annotated[str, typer.Argument(help="A node's name, code or key; see edge-agent status.")],
    url: Url = None,
    api_key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Shut a PC out of the fleet, at once.

    Example: edge-agent forget pc-2
    """
    with _client(url, api_key_file) as client:
        answer = client.post("/fleet/forget", {"node": node})
    if as_json:
        output.print_json(answer)
    else:
        output.note(f"{answer['node']} is shut out")


def status(url: Url = None, api_key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Show the fleet: nodes, links, stages, memory, versions, and what is going on.

    Example: edge-agent status
    """
    from agent.cli.fleet_tables import status_tables

    with _client(url, api_key_file) as client:
        fleet: dict[str, Any] = client.get("/fleet")
    if as_json:
        output.print_json(fleet)
        return
    for table in status_tables(fleet):
        output.show(table)


def plan(
    users: Annotated[int | None, typer.Option(min=1, help="Answers at the same time.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of each.")] = None,
    stages: Annotated[
        int | None, typer.Option(min=0, help="Exactly so many PCs for a copy; 0: as many as are best.")
    ] = None,
    replicas: Annotated[bool | None, typer.Option(help="Allow several copies.", show_default=False)] = None,
    url: Url = None,
    api_key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the head would plan now, and what leaving out each node would give. Nothing is changed.

    What is not given is as `serve` was told.

    Example: edge-agent plan --users 8 --context 8192
    """
    from agent.cli.plan_tables import plan_tables
    from pipeline.planning.plan import Plan

    wish = {"users": users, "context": context, "stages": stages, "replicas": replicas}
    given = "&".join(f"{name}={str(value).lower()}" for name, value in wish.items() if value is not None)
    with _client(url, api_key_file) as client:
        answer: dict[str, Any] = client.get(f"/fleet/plan?{given}")
    if as_json:
        output.print_json(answer)
        return
    for table in plan_tables(Plan.model_validate(answer["plan"]), answer["nodes"], answer["current"]):
        output.show(table)
    if answer["is_current"]:
        output.note("The chains at work are those of this plan.")
    if answer["unmeasured"]:
        output.note(f"Not measured yet, so not planned with: {', '.join(answer['unmeasured'])}")


@contextmanager
def _client(url: str | None, key_file: Path | None) -> Iterator[Client]:
    from agent.client import Client
    from agent.own_head import key_for, own_url

    url = url or own_url()
    with Client(url, key_for(url, key_file)) as client:
        yield client
