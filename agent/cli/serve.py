"""`edge-agent serve`: a model package behind the OpenAI API."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent.address import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_URL
from agent.cli import output


def serve(
    package: Annotated[Path, typer.Argument(help="A model package, from edge-agent export.", show_default=False)],
    local_stages: Annotated[int, typer.Option(min=1, help="Processes of this PC to divide the model over.")] = 1,
    engine: Annotated[
        Literal["openvino-paged", "openvino-stateful"], typer.Option(help="What runs the layers.")
    ] = "openvino-paged",
    mode: Annotated[
        Literal["fast", "exact"],
        typer.Option(help="fast: the device's best; exact: f32 throughout, the unsplit model's answers to the token."),
    ] = "fast",
    device: Annotated[str, typer.Option(help="OpenVINO's name of the device: CPU, GPU, GPU.1, NPU.")] = "CPU",
    kv_tokens: Annotated[
        int, typer.Option("--kv-tokens", "--context", min=1, help="Tokens the KV cache holds, all requests together.")
    ] = 8192,
    host: Annotated[
        str, typer.Option(help="Address to listen on. One that other PCs can reach asks for an API key.")
    ] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File that holds the API key. Default: none on loopback, else one made and kept in your settings.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say where it listens as one JSON document, when it is ready.")
    ] = False,
) -> None:
    """Serve a model package over the OpenAI API, until Ctrl-C.

    Examples:

        edge-agent serve smollm2

        edge-agent serve smollm2 --local-stages 2 --kv-tokens 32768

        edge-agent serve smollm2 --host 0.0.0.0 --api-key-file key.txt
    """
    from agent import paths
    from agent.keys import own_key, read_key
    from agent.server import is_loopback
    from agent.serving import Serving
    from pipeline.running import RunOptions

    key, key_file = None, api_key_file
    if api_key_file is not None:
        key = read_key(api_key_file)
    elif not is_loopback(host):
        key, key_file = own_key()
    options = RunOptions(
        stages=local_stages, engine=engine, mode=mode, device=device, kv_tokens=kv_tokens, cache=paths.tuning_folder()
    )
    with ExitStack() as stack:
        with output.progress_bars(quiet=as_json) as progress:
            serving = stack.enter_context(Serving(package, options, host=host, port=port, key=key, progress=progress))
        name = serving.model.manifest.facts.name
        if as_json:
            output.print_json({"url": serving.url, "model": name, "key_file": key_file and str(key_file)})
        else:
            _welcome(serving.url, name, key_file)
        serving.wait()


def _welcome(url: str, model: str, key_file: Path | None) -> None:
    """Where it listens, and how to try it."""
    from rich.markup import escape

    ask = 'edge-agent ask "What is the capital of France?"'
    curl = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
    if url != DEFAULT_URL:
        ask += f" --url {url}"
    if key_file is not None:
        ask += f" --api-key-file {key_file}"
        curl += f""" -H "Authorization: Bearer $(cat '{key_file}')\""""
    curl += """ -d '{"stream": true, "messages": [{"role": "user", "content": "Hello"}]}'"""
    lines = [
        f"[bold]{escape(model)}[/] is served at [bold]{escape(url)}/v1[/] (OpenAI API)",
        "",
        f"[dim]ask[/]    {escape(ask)}",
        f"[dim]curl[/]   {escape(curl)}",
        f"[dim]look[/]   {url}/fleet  {url}/metrics  {url}/healthz",
    ]
    if key_file is not None:
        lines.append(f"[dim]key[/]    in {escape(str(key_file))}; clients send it as a bearer token")
    lines += ["", "[dim]Ctrl-C ends it.[/]"]
    output.show("\n".join(lines))
