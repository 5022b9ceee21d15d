"""A client of the head's own API, for the commands that ask it something."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Self

import httpx

from agent.address import DEFAULT_URL
from shards.errors import ConfigurationError, EdgeAgentError, RequestError, StageError
from tui.client.address import complete, is_here

_JSON = {"Content-Type": "application/json"}
_CONNECT_SECONDS = 5
_HINT = (
    "Is `edge-agent serve PACKAGE` running there? It answers its own PC only, unless it is started with --host. "
    "`edge-agent ask` can also run a model by itself: --package PACKAGE."
)


class ServerError(EdgeAgentError):
    """No server answers, or its answer is not one."""


class NoServerError(ServerError):
    """Nobody listens there."""


class Client:
    """Talks to a head over HTTP; a context manager.

    Args:
        url: Where it listens, e.g. http://127.0.0.1:8114, 127.0.0.1, or pc-2:8114.
        key: Its API key, if it wants one.

    Raises:
        ConfigurationError: this is no address.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = complete(url, DEFAULT_URL)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # no limit on reading: a prompt may take minutes, and the server says so when something fails
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        # the environment's proxies are for the internet, not for a server in the house
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=timeout, trust_env=False)

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        try:
            response = self._http.get(path)
            self._raise_for_error(response)
            return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """What a path answers to a JSON body."""
        try:
            response = self._http.post(path, content=json.dumps(body), headers=_JSON)
            self._raise_for_error(response)
            return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error

    def stream_chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion.

        Raises:
            ServerError: no server is there, or it went away in mid-answer.
            RequestError: the server refuses the request.
            StageError: the server could not finish the answer.
        """
        content = json.dumps({**body, "stream": True})  # in ASCII: an argument that is no text has lone surrogates
        try:
            with self._http.stream("POST", "/v1/chat/completions", content=content, headers=_JSON) as response:
                self._raise_for_error(response)
                for line in _lines(response.iter_text()):
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        chunk = json.loads(line.removeprefix("data: "))
                        if "error" in chunk:
                            raise StageError(chunk["error"]["message"], where=self._url)
                        yield chunk
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error
        raise ServerError("the answer broke off before its end", where=self._url, hint="Is the server still running?")

    def stream_bytes(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """What a path answers to a JSON body, as it comes; errors as `stream_chat`."""
        try:
            with self._http.stream("POST", path, content=json.dumps(body), headers=_JSON) as response:
                self._raise_for_error(response)
                yield from response.iter_raw()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def _raise_for_error(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            error = response.json()["error"]
            message, param = error["message"], error.get("param")
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"the server answers {response.status_code}", where=self._url, hint=_HINT) from None
        if response.status_code == 401:
            raise ServerError(message, where=self._url, hint="Name the file the key is in with --api-key-file FILE.")
        if response.status_code < 500:
            # the server's message names the field already
            raise RequestError(message, where=None if param and message.startswith(param) else param)
        raise StageError(message, where=self._url)

    def _unreachable(self, error: Exception) -> ServerError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NoServerError("no server answers", where=self._url, hint=_HINT)
        return ServerError(f"the server's answer broke off ({error or type(error).__name__})", where=self._url)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Whole lines, ended by a line feed alone: a text may hold what `str.splitlines` takes for more of them."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from lines
    if rest:
        yield rest


def is_loopback_url(url: str) -> bool:
    """Whether a URL leads to this PC itself, so that a key sent there does not leave it."""
    try:
        return is_here(complete(url, DEFAULT_URL))
    except ConfigurationError:
        return False
