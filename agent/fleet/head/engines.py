"""Which engines a package can run on, and which of them a node is measured with. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.fleet.control.messages import Hello
from pipeline.planning.plan import ModelSize
from pipeline.running import RunOptions
from shards.errors import ConfigurationError
from shards.manifest import Manifest
from shards.runtime import EngineName, kind_of


def engine_sizes(manifest: Manifest, options: RunOptions) -> dict[EngineName, ModelSize]:
    """What the model needs on each engine that the package and the options allow, the preferred one first.

    That is the engine of the options, and llama.cpp for the nodes that have nothing else or are faster with it.

    Raises:
        ConfigurationError: what is wanted goes with no engine that the package is for.
        PackageError: the package has nothing for the engine of the options, and nothing for llama.cpp.
    """
    engines: dict[EngineName, None] = {}
    if options.engine == "llamacpp" or manifest.has_openvino:
        engines[options.engine] = None
    if manifest.llamacpp is not None and not options.capture:
        engines["llamacpp"] = None
    if not engines:
        raise ConfigurationError(
            "llama.cpp stages do not give the hidden states that are recorded, and the package is for llama.cpp alone",
            where="capture",
            hint="Serve without --capture, or export the model with the OpenVINO backend.",
        )
    return {engine: ModelSize.of(manifest, options.mode, engine, options.kv_precision) for engine in engines}


def engines_of(hello: Hello, sizes: Mapping[EngineName, ModelSize]) -> tuple[EngineName, ...]:
    """Those of the engines that a node can run, in the same order.

    Raises:
        ConfigurationError: it can run none of them.
    """
    engines = tuple(engine for engine in sizes if kind_of(engine) in hello.engines)
    if not engines:
        raise ConfigurationError(
            f"it runs {' and '.join(hello.engines)}, and the model is served with {' and '.join(sizes)}",
            where="--engine",
            hint="Join with another --engine, install llama.cpp there, or export the model with --backend both.",
        )
    return engines
