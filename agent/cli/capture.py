"""`edge-agent capture`: record what a running model does, to evaluate drafts on."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from agent.cli import output


def capture(
    file: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the recording goes.", show_default=False)
    ],
    megabytes: Annotated[float, typer.Option(min=0.001, max=1e6, help="The most that is recorded.")] = 100.0,
    minutes: Annotated[float, typer.Option(min=0.001, max=10080, help="The longest time that is recorded.")] = 10.0,
    url: Annotated[
        str | None, typer.Option(help="A running server. Default: yours on this PC.", show_default=False)
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key of who serves. On this PC: that of your settings.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was recorded as JSON.")] = False,
) -> None:
    """Record what a model that is served with --capture answers: prompts, tokens and the hidden states behind them.

    The recording ends by itself, or with Ctrl-C. It holds what people asked: keep it as you keep their questions.

    Example: edge-agent capture -o answers.capture --minutes 5
    """
    from agent.capture.capture_file import CaptureWriter
    from agent.capture.records import CaptureError, Decoder, End
    from agent.client import Client
    from agent.own_head import key_for, own_url

    url = url or own_url()
    key = key_for(url, api_key_file)
    budget = int(1e6 * megabytes)
    decoder = Decoder(url)
    with CaptureWriter(file, budget) as writer, Client(url, key) as client:
        began = monotonic()
        try:
            with output.progress_bars(quiet=as_json) as progress:
                for data in client.stream_bytes("/capture", {"megabytes": megabytes, "minutes": minutes}):
                    for record in decoder.feed(data):
                        if not isinstance(record, End):
                            writer.write(record)
                    progress("recording", writer.bytes, max(budget, 10_001))
                    progress("minutes", min((monotonic() - began) / 60, minutes), minutes)
            if decoder.end is None:
                raise CaptureError("the recording broke off", where=url, hint=f"What came is in {writer.partial}.")
            end = decoder.end
        except KeyboardInterrupt:
            end = End(writer.rows, 0, 0, "it was stopped")
        writer.complete(end)
        made = {
            "file": str(file),
            "bytes": writer.bytes,
            "rows": end.rows,
            "dropped": end.dropped,
            "not_finite": end.not_finite,
            "why": end.why,
        }
    if as_json:
        output.print_json(made)
    else:
        _show(made)


def _show(made: dict[str, Any]) -> None:
    from agent.cli.tables import plain, titled

    table = titled(f"recorded → {made['file']}")
    table.show_header = False
    table.add_row("tokens", f"{made['rows']:,}" + ("" if made["rows"] else " (nobody asked anything meanwhile)"))
    table.add_row("size", f"{made['bytes'] / 1e6:,.1f} MB")
    table.add_row("ended because", plain(made["why"]))
    if made["dropped"]:
        table.add_row("dropped", f"{made['dropped']:,} tokens, which came faster than they were taken")
    if made["not_finite"]:
        table.add_row("not finite", f"{made['not_finite']:,} tokens: the model overflows on its device")
    output.show(table)
