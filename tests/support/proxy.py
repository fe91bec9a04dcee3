"""A proxy in front of Postgres that loses what it is told to lose: tests stand between a client and its
server with it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

_KEY_DATA = b"K\x00\x00\x00\x0c"
"""Head of the message in which the server names its process to the client."""


class Proxy:
    """Listens on loopback and forwards to the server of a DSN."""

    def __init__(self, dsn: str, *, is_pooler: bool = False) -> None:
        info = conninfo_to_dict(dsn)
        self._server = f"{info['host']}/.s.PGSQL.{info.get('port') or 5432}"
        self._is_pooler = is_pooler
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_dropping = False
        self.dropped = threading.Event()
        """Set when an answer was swallowed: the server has done what it was asked to do."""
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://{quote(str(info['user']))}@127.0.0.1:{port}/{info['dbname']}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_next_answer(self) -> None:
        """Swallow the next answer of the server, whatever connection it is for, and break that connection."""
        self.dropped.clear()
        self._is_dropping = True

    def cut(self) -> None:
        """Break all connections; new ones are accepted."""
        for pair in self._pairs:
            _close(*pair)
        self._pairs.clear()

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._pairs.append((client, server))
            for source, target, from_server in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, target, from_server), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if from_server and self._is_dropping:
                    self._is_dropping = False
                    _close(source, target)
                    self.dropped.set()
                    return
                target.sendall(_disguised(data) if from_server and self._is_pooler else data)
        _close(source, target)


@contextlib.contextmanager
def proxied(dsn: str, *, is_pooler: bool = False) -> Iterator[Proxy]:
    """A proxy for a DSN of the tests. `is_pooler`: it looks like a connection pooler, since it gives
    itself out for the server process."""
    proxy = Proxy(dsn, is_pooler=is_pooler)
    try:
        yield proxy
    finally:
        proxy.close()


def _disguised(data: bytes) -> bytes:
    head = data.find(_KEY_DATA)
    if head < 0:
        return data
    place = head + len(_KEY_DATA)
    return data[:place] + struct.pack("!i", 1) + data[place + 4 :]


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
        one.close()
