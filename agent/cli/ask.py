"""`edge-agent ask`: one question, one streamed answer."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output

if TYPE_CHECKING:
    from agent.client import Client


def ask(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.", show_default=False)],
    url: Annotated[
        str | None, typer.Option(help="A running server. Default: yours on this PC.", show_default=False)
    ] = None,
    package: Annotated[
        Path | None,
        typer.Option(help="Ask this model package instead: served for this one answer.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message: how to answer.", show_default=False)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer; by default what the context holds.", show_default=False)
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0: the likeliest answer, the same each time; above: livelier.")
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="Makes an answer with a temperature repeatable.", show_default=False)
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="There is no hurry: whoever waits for an answer goes first.")
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the server's API key. On this PC: that of your settings.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer, usage and timings as JSON.")] = False,
) -> None:
    """Ask a model something and print its answer as it comes.

    Examples:

        edge-agent ask "What is the capital of France?"

        edge-agent ask --package smollm2 --system "Answer in one word." "Largest planet?"

        cat notes.txt | edge-agent ask -
    """
    from agent.client import Client
    from agent.own_head import key_for, own_url

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if prompt == "-" else prompt
    url = url or own_url()
    key = key_for(url, api_key_file)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "temperature": temperature, "seed": seed}
    if system is not None:
        body["messages"].insert(0, {"role": "system", "content": system})
    if max_tokens is not None:
        body["max_completion_tokens"] = max_tokens
    if batch:
        body["service_tier"] = "flex"
    with ExitStack() as stack:
        if package is not None:
            from agent import paths
            from agent.serving import Serving
            from pipeline.running import RunOptions

            options = RunOptions(cache=paths.tuning_folder())
            with output.progress_bars(quiet=as_json) as progress:
                serving = stack.enter_context(Serving(package, options, port=0, progress=progress))
            url, key = serving.url, None
        client = stack.enter_context(Client(url, key))
        answer = stream_answer(client, body, quiet=as_json)
    if as_json:
        output.print_json(answer)


def stream_answer(client: Client, body: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """Print an answer while it comes (unless `quiet`) and sum it up: text, finish_reason, usage, times in seconds."""
    parts: list[str] = []
    finish, usage = None, None
    began = first = last = time.monotonic()
    for chunk in client.stream_chat({**body, "stream_options": {"include_usage": True}}):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            if text:
                last = time.monotonic()
                first = first if parts else last
                parts.append(text)
                if not quiet:
                    print(text, end="", flush=True)
    if not quiet:
        print(flush=True)
    tokens = usage["completion_tokens"] if usage else 0
    return {
        "text": "".join(parts),
        "finish_reason": finish,
        "usage": usage,
        "first_token_seconds": round(first - began, 4),
        "tokens_per_second": round((tokens - 1) / (last - first), 2) if tokens > 1 and last > first else None,
    }
