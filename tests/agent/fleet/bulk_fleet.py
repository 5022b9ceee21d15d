"""A small fleet of bulk servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from agent.fleet.bulk.bulk_client import BulkClient, Source
from agent.fleet.bulk.bulk_messages import REQUEST_BYTES, Request, read_request
from agent.fleet.bulk.bulk_server import BulkServer
from agent.fleet.bulk.library import Library
from agent.fleet.trust import sockets
from agent.fleet.trust.sockets import Context
from pipeline.doorman import Doorman
from pipeline.link import KeyPair, port_of

Reply = Callable[[Request], list[bytes]]
"""The parts of the answer to a request."""


class Impostor:
    """A bulk server that lets all in, and says whatever it is told to."""

    def __init__(self, reply: Reply) -> None:
        self.keys = KeyPair.new()
        self._reply = reply
        self._context = Context()
        self._socket = sockets.listen(
            self._context, zmq.ROUTER, self.keys, domain=Doorman(self._context).guard(lambda *_: True),
            max_bytes=REQUEST_BYTES, host="127.0.0.1",
        )  # fmt: skip
        self.port = port_of(self._socket)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._context.term()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                client, request = self._socket.recv_multipart()
                self._socket.send_multipart([client, *self._reply(read_request(request))])
        except zmq.ContextTerminated:
            self._socket.close()


class BulkFleet:
    """Its members, one of which (`keys`) is the test itself."""

    def __init__(self) -> None:
        self.keys = KeyPair.new()
        self.members = {self.keys.public}
        self.servers: dict[str, BulkServer] = {}
        self.impostors: list[Impostor] = []
        self.context = Context()

    def serve(self, folder: Path, name: str = "kitchen") -> Source:
        """Start a node that lends a package; returns it as a source."""
        library, keys = Library(folder.parent / "cache"), KeyPair.new()
        library.lend(folder)
        server = BulkServer(keys, lambda key, address: key in self.members, library, host="127.0.0.1")
        self.servers[name] = server
        return Source(keys.public, name, "127.0.0.1", server.port)

    def impose(self, reply: Reply, name: str = "impostor") -> Source:
        """Start a node that answers as it likes."""
        impostor = Impostor(reply)
        self.impostors.append(impostor)
        return Source(impostor.keys.public, name, "127.0.0.1", impostor.port)

    def client(self, source: Source, keys: KeyPair | None = None) -> BulkClient:
        """A connection to a source."""
        return BulkClient(self.context, keys or self.keys, source)

    def close(self) -> None:
        """End it all."""
        for server in (*self.servers.values(), *self.impostors):
            server.close()
        self.context.destroy(linger=0)
