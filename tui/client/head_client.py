"""The head's HTTP API, for one event loop."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from tui.client.errors import HeadError, HeadGoneError, KeyWantedError, RefusedError
from tui.client.plain import clean
from tui.client.plan import NodeDetail, Preview
from tui.client.state import Fleet


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as the API wants it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Piece:
    """More text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class StagePart:
    """Medians of a stage over an answer's steps, in milliseconds."""

    node: str
    compute: float
    wait: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Where an answer's time went; milliseconds a step where not said otherwise."""

    first_token_ms: float
    tokens_per_second: float | None
    stages: tuple[StagePart, ...] = ()
    wire: float = 0.0
    head: float = 0.0
    acceptance: float | None = None
    """Part of the speculated tokens that were right; None: nothing was speculated."""


@dataclass(frozen=True, slots=True)
class End:
    """An answer is whole: `stop`, or `length` where the limit or the context was reached."""

    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings | None


_TIMINGS = TypeAdapter(Timings)
_Shape = TypeVar("_Shape", bound=BaseModel)
_Field = TypeVar("_Field", int, str)
_JSON = {"Content-Type": "application/json"}
_CONNECT_SECONDS = 5.0
_STATE_SECONDS = 5.0
"""A head that does not say how it is within this time is gone."""
_ANSWER_SECONDS = 60.0
"""Longest wait for an answer that is no text of a model: a plan for many nodes, a node that is asked itself."""
_CONNECTION_ERRORS = (httpx.HTTPError, httpx.InvalidURL, ExceptionGroup)
"""The last one comes from below httpx, e.g. for a port that there cannot be."""
_MOST_DIGITS = 19
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds and tries until a cut way is noticed: an answer may be silent for minutes, so reading it has no limit."""


class HeadClient:
    """Talks to a head.

    Every method raises HeadGoneError, KeyWantedError, RefusedError or HeadError.

    Args:
        url: Where it listens, e.g. http://127.0.0.1:8114.
        key: Its API key, if it wants one.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        transport = httpx.AsyncHTTPTransport(trust_env=False, socket_options=_keep_alive())
        # the environment's proxies are for the internet, not for a head in the house
        self._http = httpx.AsyncClient(transport=transport, trust_env=False)
        self.key = key

    @property
    def key(self) -> str | None:
        """The API key that is sent from now on."""
        return self._key

    @key.setter
    def key(self, key: str | None) -> None:
        self._key = key
        self._http.headers.pop("Authorization", None)
        if key:
            self._http.headers["Authorization"] = f"Bearer {key}"

    async def fleet(self) -> Fleet:
        """What the head says of everything."""
        return self._read(Fleet, await self._ask("GET", "/fleet", seconds=_STATE_SECONDS))

    async def chat(self, messages: Sequence[Message], settings: dict[str, Any]) -> AsyncGenerator[Piece | End]:
        """Stream an answer; the last item is its End. Closing the generator early cancels the answer.

        Args:
            messages: The conversation.
            settings: Further fields of the request: temperature, top_p, max_tokens, seed, ...
        """
        body = {**settings, "messages": _plain(messages), "stream": True, "stream_options": {"include_usage": True}}
        finish, counts = "", None
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        try:
            async with self._http.stream(
                "POST", f"{self.url}/v1/chat/completions", content=json.dumps(body), headers=_JSON, timeout=timeout
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise self._refusal(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        if event is None:
                            break
                        if "error" in event:
                            raise _told(event["error"], self.url)
                        counts = event if event.get("usage") else counts
                        for choice in event["choices"]:
                            finish = _text(choice.get("finish_reason")) or finish
                            if text := _text(choice["delta"].get("content")):
                                yield Piece(text)
                    else:
                        raise HeadGoneError("the answer broke off before its end", where=self.url)
        except _CONNECTION_ERRORS as error:
            raise self._gone(error) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HeadError("the head's answer is not understood", where=self.url) from error
        yield _end(finish, counts or {}, self.url)

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens that a conversation comes to, as a prompt."""
        return self._field(await self._ask("POST", "/tokenize", {"messages": _plain(messages)}), "count", int)

    async def cancel(self, request: str) -> None:
        """End somebody's answer."""
        await self._ask("POST", "/fleet/cancel", {"request": request})

    async def approve(self, code: str) -> str:
        """Let a pending node in; returns its name."""
        return self._field(await self._ask("POST", "/fleet/approve", {"code": code}), "node", str)

    async def refuse(self, code: str) -> str:
        """Do not let a pending node in, and do not show it any more; returns its name."""
        return self._field(await self._ask("POST", "/fleet/refuse", {"code": code}), "node", str)

    async def forget(self, node: str) -> str:
        """Shut a node out; returns its name."""
        return self._field(await self._ask("POST", "/fleet/forget", {"node": node}), "node", str)

    async def plan(self, **changes: Any) -> Preview:
        """What would be planned for the wish with changes: users, context, stages, replicas."""
        given = {name: str(value).lower() for name, value in changes.items() if value is not None}
        return self._read(Preview, await self._ask("GET", f"/fleet/plan?{urlencode(given)}"))

    async def apply(self, **changes: Any) -> None:
        """Take up the plan for the wish with these changes; it is at work when /fleet says so."""
        given = {name: value for name, value in changes.items() if value is not None}
        await self._ask("POST", "/fleet/apply", given)

    async def node(self, name: str) -> NodeDetail:
        """A node in detail; asking the node itself may take some seconds."""
        return self._read(NodeDetail, await self._ask("GET", f"/fleet/nodes/{quote(name, safe='')}"))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: object = None, *, seconds: float = _ANSWER_SECONDS) -> Any:
        """The JSON that a path answers."""
        timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
        # in ASCII: a text that was pasted may have lone surrogates
        content = {} if body is None else {"content": json.dumps(body), "headers": _JSON}
        try:
            response = await self._http.request(method, self.url + path, timeout=timeout, **content)  # type: ignore[arg-type]
        except _CONNECTION_ERRORS as error:
            raise self._gone(error) from error
        if not response.is_success:
            raise self._refusal(response)
        try:
            return _parse(response.content)
        except (ValueError, RecursionError) as error:
            raise HeadError("what answers is not a head: it does not speak JSON", where=self.url) from error

    def _read(self, shape: type[_Shape], answer: object) -> _Shape:
        try:
            return shape.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            what = f"the head's answer is not understood ({field}: {first['msg']})"
            raise HeadError(clean(what), where=self.url, hint="Is it a head, of a version like this one's?") from error

    def _field(self, answer: object, name: str, kind: type[_Field]) -> _Field:
        value = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(value, kind):
            raise HeadError(f"the head's answer is not understood ({name} is missing)", where=self.url)
        return value

    def _refusal(self, response: httpx.Response) -> HeadError:
        """The error that an answer is."""
        try:
            error = _parse(response.content)["error"]
            message = clean(str(error["message"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            if response.status_code == 401:
                return KeyWantedError("what answers there wants a key", where=self.url)
            return HeadError(f"what answers there is not a head (it says {response.status_code})", where=self.url)
        if response.status_code == 401:
            return KeyWantedError(message, where=self.url)
        if response.status_code == 429:  # right in itself, only not now
            return HeadError(message, where=self.url)
        return (RefusedError if response.status_code < 500 else HeadError)(message)

    def _gone(self, error: Exception) -> HeadError:
        match error:
            case httpx.InvalidURL() | httpx.UnsupportedProtocol():
                return HeadError(f"this is not an address of a head ({clean(str(error))})", where=self.url)
            case httpx.ConnectError() | httpx.ConnectTimeout():
                return HeadGoneError("no head answers", where=self.url)
            case httpx.TimeoutException():
                return HeadGoneError("the head does not answer in time", where=self.url)
            case _:
                return HeadGoneError("the connection to the head broke off", where=self.url)


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any] | None]:
    """Server-sent events, and None for [DONE]. Lines end in \\n alone: JSON may hold other line separators."""
    rest = bytearray()
    async for data in response.aiter_bytes():
        rest += data
        *lines, rest = rest.split(b"\n") if b"\n" in data else [rest]
        for line in lines:
            if line.rstrip(b"\r") == b"data: [DONE]":
                yield None
            elif line.startswith(b"data: "):
                event = _parse(line.removeprefix(b"data: "))
                if not isinstance(event, dict):
                    raise ValueError("an event is not an object")
                yield event


def _end(finish: str, last: dict[str, Any], url: str) -> End:
    """What the last event says of the whole answer."""
    try:
        usage, timings = last.get("usage") or {}, last.get("timings")
        return End(
            finish_reason=finish or "stop",
            prompt_tokens=int(usage.get("prompt_tokens", 0)),
            cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)),
            completion_tokens=int(usage.get("completion_tokens", 0)),
            timings=_TIMINGS.validate_python(timings) if timings else None,
        )
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise HeadError("the head's answer is not understood", where=url) from error


def _parse(data: bytes | bytearray) -> Any:
    """JSON, with numbers that all can calculate with."""
    return json.loads(data, parse_int=_integer, parse_float=_real, parse_constant=_real)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number is too large")
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits)
    if not abs(number) < 10.0**_MOST_DIGITS:  # nor is it none
        raise ValueError("a number is too large")
    return number


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("what should be a text is none")
    return value or ""


def _told(error: Any, url: str) -> HeadError:
    """An error that ended a stream."""
    message = clean(str(error["message"]))
    return RefusedError(message) if error.get("type") == "invalid_request_error" else HeadError(message, where=url)


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _keep_alive() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE:
        if (number := getattr(socket, name, None)) is not None:
            options.append((socket.IPPROTO_TCP, number, value))
    return options
