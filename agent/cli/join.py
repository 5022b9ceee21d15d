"""`edge-agent join`: this PC in a fleet, until Ctrl-C."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent.cli import output
from shards.edges import layer_words
from shards.errors import ConfigurationError, EdgeAgentError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agent.fleet.node.node_status import Activity, NodeStatus, StageStatus

_WHICH, _WHAT = "Which fleet", "What this PC gives"
_BAR = 30


def join(
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where the head is, if it is not found by itself. The first time with a token or --fleet-key.",
            rich_help_panel=_WHICH,
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Ask for the fleet's token: nobody has to approve.", rich_help_panel=_WHICH)
    ] = False,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Read the token from a file; - is a pipe.", rich_help_panel=_WHICH, show_default=False
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The fleet, where there are several.", rich_help_panel=_WHICH, show_default=False
        ),
    ] = None,
    fleet_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="The fleet's public key, which edge-agent status shows on the head's PC.",
            rich_help_panel=_WHICH,
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="What this PC is called from now on. Default: its host name.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="AUTO, CPU, GPU, NPU, or OpenVINO's name of a device.", rich_help_panel=_WHAT)
    ] = "AUTO",
    engine: Annotated[
        Literal["auto", "openvino", "llamacpp"],
        typer.Option(
            help="What runs layers here. auto: of those that are installed, whichever is the best for the plan.",
            rich_help_panel=_WHAT,
        ),
    ] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for stages, e.g. 8GB. Default: what is free.", rich_help_panel=_WHAT),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Inference threads. Default: the engine's choice.", rich_help_panel=_WHAT)
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Processors to stay on, e.g. 0,1.", rich_help_panel=_WHAT, show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each change of state as a line of JSON.")] = False,
) -> None:
    """Give this PC to a fleet, until Ctrl-C.

    It finds the head by itself, shows a code, and waits until someone approves that on the head's PC. From then on it
    finds its fleet again without being asked.

    Examples:

        edge-agent join

        edge-agent join --token --memory 8GB

        edge-agent join --head 192.168.1.20 --token-file token.txt

        edge-agent join --fleet office --device GPU

        edge-agent join --engine llamacpp
    """
    from agent import open_files, recent_log
    from agent.fleet.node.joining import Joining, JoinOptions
    from agent.fleet.node.node_settings import NodeSettings
    from agent.fleet.trust.identity import clean_name
    from agent.fleet.trust.token import read_token

    try:
        if fleet_key is not None and not _is_key(fleet_key):
            hint = "It has 40 characters: letters, digits and signs. Copy it from edge-agent status --json of the head."
            raise ConfigurationError(f"{fleet_key!r} is no key", where="--fleet-key", hint=hint)
        options = JoinOptions(
            token=read_token(token_file) if token or token_file is not None else None,
            fleet=fleet,
            fleet_key=fleet_key,
            head=head,
        )
        settings = NodeSettings(
            device=device.upper(),
            engine=engine,
            memory=None if memory is None else output.parse_bytes(memory),
            threads=threads,
            cores=None if cores is None else _parse_cores(cores),
            name=None if name is None else clean_name(name),
        )
        settings.engines()  # what cannot be given is said before a head is looked for
        recent_log.keep()
        open_files.allow_many()
        with Joining(options, settings) as joining, _view(as_json) as show:
            joining.run(show)
    except EdgeAgentError as error:
        if not as_json:
            raise
        told = {"type": type(error).__name__, "what": error.what, "where": error.where, "hint": error.hint}
        print(json.dumps({"error": told}), flush=True)
        raise typer.Exit(1) from None


def _is_key(text: str) -> bool:
    from agent.fleet.trust.members import raw_key

    try:
        return bool(raw_key(text))
    except ValueError:
        return False


def _parse_cores(text: str) -> tuple[int, ...]:
    import psutil

    count = psutil.cpu_count() or 1
    parts = {part.strip() for part in text.split(",")}
    if not all(part.isascii() and part.isdecimal() and int(part) < count for part in parts):
        hint = f"This PC has 0 to {count - 1}; write them like 0,1."
        raise ConfigurationError(f"{text!r} are no processors of this PC", where="--cores", hint=hint)
    return tuple(sorted(map(int, parts)))


@contextmanager
def _view(as_json: bool) -> Iterator[Callable[[NodeStatus], None]]:
    """What shows a status: JSON lines, a live picture on a terminal, or a line for each change elsewhere."""
    if as_json:
        yield lambda status: print(status.model_dump_json(), flush=True)
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(console=output.console(), refresh_per_second=8) as live:
            yield lambda status: live.update(picture(status))
    else:
        said: list[str] = []

        def say(status: NodeStatus) -> None:
            lines = [summary(status), *(stage_line(stage) for stage in status.stages)]
            for line in lines:
                if line not in said:
                    print(line, flush=True)
            said[:] = lines

        yield say


def summary(status: NodeStatus) -> str:
    """Where the node stands, in a line."""
    match status.state:
        case "joined":
            return f"{status.name} is in the fleet {status.fleet}, whose head is at {status.head}"
        case "waiting":
            return f"waiting to be let in: on the head's PC, run  edge-agent approve {status.code}"
        case "out":
            return "refused by the head"
    text = "looking for the head" + (f": {status.why}" if status.why else "")
    return f"{text}. {status.hint}" if status.hint else text


def stage_line(stage: StageStatus) -> str:
    """A stage, in a line."""
    return f"{stage.model}, layers {layer_words(stage)}: {stage.state}"


def picture(status: NodeStatus) -> RenderableType:
    """A few lines for a terminal: the fleet, and what is going on."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    styles = {"joined": "green", "waiting": "bold yellow", "out": "red"}
    work: list[tuple[str, Activity | None]] = [(stage_line(stage), stage.activity) for stage in status.stages]
    if status.measuring is not None:
        work.append(("measuring", status.measuring))
    table = Table.grid(padding=(0, 1))
    table.add_row(Text(summary(status), styles.get(status.state, "")))
    for title, activity in work:
        table.add_row(Text(f"  {title}", "bold"))
        if activity is not None:
            line = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=activity.total or 1, completed=activity.done, width=_BAR)
            line.add_row(Text("   "), bar, Text(activity.what), Text(output.amount(activity.done, activity.total)))
            table.add_row(line)
    table.add_row(Text("Ctrl-C takes this PC out of the fleet.", "dim"))
    return table
