"""What this program is, and whether a node's fits it."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel, ValidationError

from agent.fleet.control.messages import PROTOCOL, Refused, Versions

SAME_VERSION = "Install the same version of edge-agent on both PCs."


@functools.cache
def own() -> Versions:
    """The versions of this program, without importing OpenVINO."""
    return Versions(
        edge_agent=version("edge-agent"),
        openvino=version("openvino"),
        python=platform.python_version(),
        system=platform.platform(),
    )


class _Versions(BaseModel):
    edge_agent: str
    protocol: int


class _Presentation(BaseModel):
    """What a Hello of any protocol has."""

    kind: Literal["hello"]
    versions: _Versions


def mismatch(data: bytes) -> Refused | None:
    """The answer to a Hello of another protocol, which need not have all the fields of ours; None: it is none."""
    try:
        theirs = _Presentation.model_validate_json(data).versions
    except ValidationError:
        return None
    if theirs.protocol == PROTOCOL:
        return None
    return Refused(what=difference(theirs.edge_agent, theirs.protocol), hint=SAME_VERSION)


def difference(edge_agent: str, protocol: int) -> str:
    """What to tell a node of another protocol."""
    return (
        f"this PC's edge-agent {edge_agent} speaks protocol {protocol}, the head's "
        f"edge-agent {own().edge_agent} protocol {PROTOCOL}"
    )
