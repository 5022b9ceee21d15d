"""Whether a head can be reached from here."""

from __future__ import annotations

import http.client
import socket
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from agent.address import DEFAULT_CONTROL_PORT
from agent.doctor import clock
from agent.doctor.check import Check

_TOPIC = "head"
_SECONDS = 3.0
_GREETING = 10
"""Bytes with which each end of a ZeroMQ connection begins (ZMTP 3.1, section 3.1)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What there was at an address."""

    problem: str | None = None
    """Why no connection came about."""
    milliseconds: float = 0.0
    """How long a connection takes."""
    is_zeromq: bool = False
    ahead: float | None = None
    """If HTTP is spoken there: how many seconds its clock is ahead of ours."""


def check(host: str, port: int) -> list[Check]:
    """Try it from here."""
    return judge(f"{host}:{port}", _try(host, port))


def judge(address: str, answer: Answer) -> list[Check]:
    """Whether this PC could join there."""
    if answer.problem is not None:
        step = "Is it the address that edge-agent serve shows there, and does that PC's firewall let this network in?"
        return [Check(_TOPIC, "fault", f"{address}: {answer.problem}", step)]
    if answer.is_zeromq:
        return [Check(_TOPIC, "ok", f"{address} answers, a connection takes {answer.milliseconds:.1f} ms")]
    if answer.ahead is None:
        step = "Give the address to join that edge-agent serve shows."
        return [Check(_TOPIC, "fault", f"{address}: something else than a head answers there", step)]
    step = f"To join, give the port of the fleet, by default {DEFAULT_CONTROL_PORT}."
    return [
        Check(_TOPIC, "warning", f"{address} answers in HTTP: it is an API's address", step),
        clock.judge_difference(answer.ahead),
    ]


def _try(host: str, port: int) -> Answer:
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            taken = 1000 * (time.monotonic() - began)
            if _greets(connection):
                return Answer(milliseconds=taken, is_zeromq=True)
    except socket.gaierror:
        return Answer("there is no PC of this name")
    except TimeoutError:
        return Answer(f"no answer within {_SECONDS:.0f} s: nobody is there, or a firewall is in between")
    except ConnectionRefusedError:
        return Answer("the PC is there, but no head listens on this port")
    except OSError as error:
        return Answer(error.strerror or str(error))
    return Answer(milliseconds=taken, ahead=_clock_ahead(host, port))


def _greets(connection: socket.socket) -> bool:
    """Whether the other end speaks first, as ZeroMQ does."""
    greeting = b""
    try:
        while len(greeting) < _GREETING and (more := connection.recv(_GREETING - len(greeting))):
            greeting += more
    except OSError:
        return False
    return len(greeting) == _GREETING and greeting[0] == 0xFF and greeting[-1] == 0x7F


def _clock_ahead(host: str, port: int) -> float | None:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/healthz")
        date = connection.getresponse().getheader("Date")
        return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
