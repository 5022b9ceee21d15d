"""The commands. Start-up stays light: whatever is heavy is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli import bench
from agent.cli.ask import ask
from agent.cli.capture import capture
from agent.cli.demo import demo
from agent.cli.doctor import doctor
from agent.cli.draft_eval import draft_eval
from agent.cli.export import export
from agent.cli.fleet import approve, forget, plan, status, token
from agent.cli.inspect import inspect
from agent.cli.join import join
from agent.cli.serve import serve
from agent.cli.simulate import simulate
from agent.cli.tui import chat, fleet, tui

app = typer.Typer(
    name="edge-agent",
    help="Run a language model over the PCs you already own.",
    epilog="First time? Try: edge-agent demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    export,
    inspect,
    serve,
    join,
    chat,
    fleet,
    tui,
    ask,
    status,
    plan,
    approve,
    forget,
    token,
    doctor,
    simulate,
    capture,
    draft_eval,
):
    app.command()(command)
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"edge-agent {version('edge-agent')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
