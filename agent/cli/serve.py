"""`edge-agent serve`: a model package behind the OpenAI API, on this PC and every other that joins."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent.address import DEFAULT_CONTROL_PORT, DEFAULT_HOST, DEFAULT_PORT, DEFAULT_URL, url_at
from agent.cli import output
from agent.cli.draft_options import Draft, DraftNode, DraftTokens, check_draft_node
from agent.fleet.head.draft_node import AUTO
from pipeline.scheduler_config import SchedulerConfig

if TYPE_CHECKING:
    from agent.fleet.head.fleet_model import FleetModel
    from agent.fleet.head.fleet_options import FleetOptions
    from agent.fleet.node.node_settings import EngineChoice
    from agent.served import Served
    from agent.serving import Serving
    from pipeline.running import RunOptions
    from shards.runtime import EngineName

Engine = Literal["auto", "openvino", "llamacpp", "openvino-paged", "openvino-stateful"]

_FLEET, _ALONE = "On a fleet", "On this PC alone"
_LOOK_SECONDS = 0.5
_EVERYWHERE = ("0.0.0.0", "::")


def serve(
    asked: typer.Context,
    package: Annotated[Path, typer.Argument(help="A model package, from edge-agent export.", show_default=False)],
    users: Annotated[int, typer.Option(min=1, help="Answers at the same time to plan for.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each, prompt and answer, to plan for.")] = 4096,
    min_nodes: Annotated[
        int,
        typer.Option(min=1, help="Wait for so many PCs before the model is dealt out.", rich_help_panel=_FLEET),
    ] = 1,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Exactly so many PCs for a copy of the model.", rich_help_panel=_FLEET),
    ] = None,
    replicas: Annotated[bool, typer.Option(help="Allow several copies of the model.", rich_help_panel=_FLEET)] = True,
    memory: Annotated[
        str | None,
        typer.Option(help="What this PC gives, e.g. 8GB. Default: what is free.", rich_help_panel=_FLEET),
    ] = None,
    control_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where PCs join, if it is free.", rich_help_panel=_FLEET),
    ] = DEFAULT_CONTROL_PORT,
    local_stages: Annotated[
        int | None,
        typer.Option(min=1, help="No fleet: so many processes of this PC.", rich_help_panel=_ALONE),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens the KV cache holds, of all requests. Default: what users and context come to, if it fits.",
            show_default=False,
            rich_help_panel=_ALONE,
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="What runs layers on this PC. auto: of those that are installed, whichever is the best for the plan; "
            "with --local-stages, OpenVINO where the package is for it. openvino is openvino-paged; with "
            "openvino-stateful, other PCs that use OpenVINO run that, too."
        ),
    ] = "auto",
    mode: Annotated[
        Literal["fast", "exact"],
        typer.Option(help="fast: the device's best; exact: f32 throughout, the unsplit model's answers to the token."),
    ] = "fast",
    kv_precision: Annotated[
        Literal["u8", "f16", "f32"] | None,
        typer.Option(
            help="What keys and values are kept in. Default: u8 in fast mode, f32 in exact mode, which takes no other.",
            show_default=False,
        ),
    ] = None,
    target_tbt: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="MS",
            help="Longest time wanted between two tokens of an answer while prompts are worked on; 0: no matter.",
        ),
    ] = SchedulerConfig.target_tbt_ms or 0.0,
    max_waiting: Annotated[
        int,
        typer.Option(min=1, help="Requests that may wait, for each copy of the model; others are told when to retry."),
    ] = SchedulerConfig.max_waiting,
    draft: Draft = "auto",
    draft_tokens: DraftTokens = None,
    draft_node: DraftNode = AUTO,
    capture: Annotated[
        bool,
        typer.Option("--capture", help="Let the user who serves record what is answered, with edge-agent capture."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Device of this PC: AUTO, or OpenVINO's name: CPU, GPU, GPU.1, NPU.")
    ] = "AUTO",
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

    Other PCs of the network add their memory and speed with `edge-agent join`.

    Examples:

        edge-agent serve llama

        edge-agent serve llama --users 8 --context 8192 --min-nodes 3

        edge-agent serve smollm2 --local-stages 2 --kv-tokens 32768

        edge-agent serve llama --target-tbt 80 --max-waiting 64

        edge-agent serve llama-70b --draft llama-1b

        edge-agent serve llama-70b --draft llama-1b --draft-node pc-2

        edge-agent serve smollm2 --host 0.0.0.0 --api-key-file key.txt
    """
    from agent import open_files, paths, recent_log
    from agent.fleet.head.fleet_options import FleetOptions
    from agent.fleet.node.node_settings import NodeSettings
    from agent.keys import own_key, read_key
    from agent.server import is_loopback
    from agent.serving import Serving
    from pipeline.planning.plan import Wish
    from pipeline.running import RunOptions

    _check_panels(asked, is_fleet=local_stages is None)
    check_draft_node(draft_node, draft, is_fleet=local_stages is None)
    key, key_file = None, api_key_file
    if api_key_file is not None:
        key = read_key(api_key_file)
    elif not is_loopback(host):
        key, key_file = own_key()
    options = RunOptions(
        stages=local_stages or 1,
        engine=_local_engine(engine, package) if local_stages else _fleet_engine(engine),
        mode=mode,
        device="CPU" if device == "AUTO" else device,
        kv_precision=kv_precision,
        target_tbt_ms=target_tbt or None,
        max_waiting=max_waiting,
        draft=draft,
        draft_tokens=draft_tokens,
        capture=capture,
        cache=paths.tuning_folder(),
    )
    if local_stages is not None:
        options = _sized(package, options, kv_tokens, users, context)
    fleet: FleetOptions | None = None
    if local_stages is None:
        fleet = FleetOptions(
            wish=Wish(users=users, context=context, stages=stages, replicas=replicas),
            min_nodes=max(min_nodes, stages or 1),
            port=control_port,
            draft_node=draft_node,
            node=NodeSettings(
                device=device,
                engine=_choice(engine),
                memory=None if memory is None else output.parse_bytes(memory),
            ),
        )
        fleet.node.engines()  # what cannot be given is said before anything is begun
    recent_log.keep()
    open_files.allow_many()
    watch: _Watch | None = None
    with ExitStack() as stack:
        with output.progress_bars(quiet=as_json) as progress:
            serving = stack.enter_context(
                Serving(package, options, fleet=fleet, host=host, port=port, key=key, progress=progress)
            )
            if serving.fleet is not None:
                watch = None if as_json else _Watch(serving.fleet)
                _wait_for_plan(serving, serving.fleet, watch)
        name = serving.model.manifest.facts.name
        if as_json:
            where = {"url": serving.url, "model": name, "key_file": key_file and str(key_file), **_room(serving.model)}
            output.print_json(where | ({"fleet": serving.fleet.describe()["fleet"]} if serving.fleet else {}))
        else:
            output.note(_room_words(serving.model))
            control = None if serving.fleet is None else serving.fleet.describe()["fleet"]["port"]
            _welcome(serving.url, name, key_file, control=control, is_open=host in _EVERYWHERE)
        if watch is None:
            serving.wait()
        else:
            watch.follow(serving)


def _check_panels(asked: typer.Context, *, is_fleet: bool) -> None:
    """Whether no option was given that does nothing here.

    Raises:
        ConfigurationError: one was.
    """
    from click.core import ParameterSource

    from shards.errors import ConfigurationError

    idle = _ALONE if is_fleet else _FLEET
    for option in asked.command.params:
        given = option.name is not None and asked.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if not given or getattr(option, "rich_help_panel", None) != idle:
            continue
        if is_fleet:
            what = "is for one PC alone; what a fleet's KV cache holds is planned"
            hint = "Give --users and --context, or add --local-stages 1 to serve without a fleet."
        else:
            what, hint = "is for a fleet; with --local-stages there is none", "Leave one of the two out."
        raise ConfigurationError(what, where=option.opts[0], hint=hint)


def _local_engine(engine: Engine, package: Path) -> EngineName:
    """Of stages without a fleet."""
    from shards import manifest as manifests

    if engine == "auto":
        return "openvino-paged" if manifests.read(package).has_openvino else "llamacpp"
    return "openvino-paged" if engine == "openvino" else engine


def _fleet_engine(engine: Engine) -> EngineName:
    """Of the fleet's nodes, where they use OpenVINO."""
    return "openvino-stateful" if engine == "openvino-stateful" else "openvino-paged"


def _choice(engine: Engine) -> EngineChoice:
    """Of this PC as a node."""
    return engine if engine in ("auto", "llamacpp") else "openvino"


def _sized(package: Path, options: RunOptions, kv_tokens: int | None, users: int, context: int) -> RunOptions:
    """With the KV cache that is asked for, or that users and context come to and the free memory holds."""
    import psutil

    from agent.fleet.node.hardware import RESERVE_BYTES
    from pipeline.planning.local import local_kv_tokens
    from pipeline.planning.plan import ModelSize
    from pipeline.planning.room import kv_tokens as wanted_kv_tokens
    from shards import manifest as manifests

    if kv_tokens is None:
        manifest = manifests.read(package)
        context = min(context, manifest.facts.context_length)
        size = ModelSize.of(manifest, options.mode, options.engine, options.kv_precision)
        free = max(0, psutil.virtual_memory().available - RESERVE_BYTES)
        kv_tokens = local_kv_tokens(size, options.stages, users, context, free)
        if kv_tokens < (wanted := wanted_kv_tokens(users, context)):
            output.note(f"{users} x {context} tokens come to {wanted}; {kv_tokens} fit in the memory that is free.")
    return options.model_copy(update={"kv_tokens": kv_tokens})


def _room(model: Served) -> dict[str, int]:
    """Tokens of KV cache in all, and the most that one request can have."""
    tokens = [copy.chain.kv_tokens for copy in model.copies]
    return {"kv_tokens": sum(tokens), "context": min(max(tokens, default=0), model.manifest.facts.context_length)}


def _room_words(model: Served) -> str:
    room = _room(model)
    kept = {facts.properties.get("KV_CACHE_PRECISION") for copy in model.copies for facts in copy.chain.facts}
    types = f" in {', '.join(sorted(filter(None, kept)))}" if any(kept) else ""
    return f"The KV cache holds {room['kv_tokens']} tokens{types}; a request has room for {room['context']}."


def _wait_for_plan(serving: Serving, fleet: FleetModel, watch: _Watch | None) -> None:
    """Until the model is at work; what happens to the fleet meanwhile is told, if there is a watch."""
    told = ""
    if watch is not None:
        output.note("This PC is a fleet now. On another PC: edge-agent join")
    while not fleet.ready.is_set():
        serving.wait(_LOOK_SECONDS)
        if watch is not None:
            watch.look()
            if fleet.waits_for != told:
                told = fleet.waits_for
                output.note(told)
    if watch is not None:
        watch.look()


class _Watch:
    """Tells the person at the terminal what happens to the fleet, each thing once."""

    def __init__(self, fleet: FleetModel) -> None:
        self._fleet = fleet
        self._since = 0.0
        self._waiting: set[str] = set()
        """Codes of those who asked to join, for as long as they wait."""

    def follow(self, serving: Serving) -> None:
        """Until the server ends."""
        while True:
            serving.wait(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Tell what is new."""
        told = self._fleet.describe()
        for event in told["events"]:
            if event["time"] > self._since:
                output.note(event["what"])
                self._since = event["time"]
        self._waiting.intersection_update(node["code"] for node in told["pending"])
        for node in told["pending"]:
            if node["code"] not in self._waiting:
                self._waiting.add(node["code"])
                name = node["name"] or "A PC"
                output.note(
                    f"{name} at {node['address']} asks to join. If it shows the code {node['code']}, let it in with: "
                    f"edge-agent approve {node['code']}"
                )


def _welcome(url: str, model: str, key_file: Path | None, *, control: int | None, is_open: bool) -> None:
    """Where it listens, and how to try it; `control` is the port that PCs join at."""
    from rich.markup import escape

    from agent.fleet.discovery.interfaces import own_addresses

    ask, chat = 'edge-agent ask "What is the capital of France?"', "edge-agent chat"
    curl = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
    if url != DEFAULT_URL:
        ask += f" --url {url}"
        chat += f" --url {url}"
    if key_file is not None:
        ask += f" --api-key-file {key_file}"
        curl += f""" -H "Authorization: Bearer $(cat '{key_file}')\""""
    curl += """ -d '{"stream": true, "messages": [{"role": "user", "content": "Hello"}]}'"""
    lines = [
        f"[bold]{escape(model)}[/] is served at [bold]{escape(url)}/v1[/] (OpenAI API)",
        "",
        f"[dim]chat[/]   {chat}    (on a screen of its own, with the fleet beside it)",
        f"[dim]ask[/]    {escape(ask)}",
        f"[dim]curl[/]   {escape(curl)}",
        f"[dim]look[/]   {url}/fleet  {url}/metrics  {url}/healthz",
    ]
    if key_file is not None:
        lines.append(f"[dim]key[/]    in {escape(str(key_file))}; clients send it as a bearer token")
    addresses = own_addresses()
    if is_open and addresses:
        there = escape(url_at(addresses[0], int(url.rpartition(":")[2])))
        lines.append(
            f"[dim]others[/] reach it at {escape(there)}: edge-agent chat --url {escape(there)} --api-key-file FILE"
        )
    if control is not None:
        lines.append("[dim]join[/]   on another PC: edge-agent join    (its token: edge-agent token)")
        if addresses:
            at = escape(url_at(addresses[0], control).removeprefix("http://"))
            lines.append(f"[dim]head[/]   {at}    (for join --head, where multicast does not pass)")
    lines += ["", "[dim]Ctrl-C ends it.[/]"]
    output.show("\n".join(lines))
