"""A connection between a front end and one rank: messages, in order, between processes that know the same key.

Sending never waits for the other side, which may be stopped. A message is bytes; what they mean is not known here.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

log = logging.getLogger("lookahead")

# Seconds that the last messages of a connection get to leave.
FLUSH_S = 2.0


class LinkClosed(Exception):
    """The other side has gone."""


class Link:
    """One end of a connection. `send` may be called from any thread, `receive` from one only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        with self._socket() as same:
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages must not wait for one another
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="link", daemon=True)
        self._sender.start()

    @staticmethod
    def connect(address: tuple[str, int], key: bytes) -> Link:
        """Raises ConnectionError if nobody is there or the other side does not know the key."""
        try:
            return Link(Client(address, "AF_INET", authkey=key))  # type: ignore[arg-type]
        except (OSError, EOFError, AuthenticationError) as error:
            raise ConnectionError(f"the front end at {address[0]}:{address[1]} cannot be reached: {error}") from error

    def send(self, message: bytes) -> None:
        """Takes a message and returns at once. The message is lost if the other side has gone."""
        self._outbox.put(message)

    def receive(self) -> bytes:
        """Waits for the next message. Raises LinkClosed."""
        try:
            return self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise LinkClosed from error

    def close(self) -> None:
        """Ends the connection once everything sent has left, or cannot leave.

        May be called twice, but not by the thread that receives.
        """
        self._outbox.put(None)
        self._sender.join(FLUSH_S)
        self.cut()

    def cut(self) -> None:
        """Ends the connection at once: both sides' `receive` raises."""
        self._outbox.put(None)
        with suppress(OSError), self._socket() as same:  # it may have ended already
            same.shutdown(socket.SHUT_RDWR)

    def _socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._connection.fileno()))

    def _send_all(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return


class Listener:
    """The place where ranks connect. Each that knows the key is handed to `on_connect`, in a thread of its own."""

    def __init__(self, host: str, key: bytes, on_connect: Callable[[Link], None]) -> None:
        """host: an address of this machine. Raises OSError."""
        self._key = key
        self._on_connect = on_connect
        self._listener = socket.create_server((host, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept_all, name="listener", daemon=True).start()

    def close(self) -> None:
        """Lets nobody in from now on."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread in `accept` waiting
        self._listener.close()

    def _accept_all(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._let_in, args=(Connection(peer.detach()),), daemon=True).start()

    def _let_in(self, connection: Connection) -> None:
        """Checks that the other side knows the key. A stranger that says nothing holds up only this thread."""
        try:
            deliver_challenge(connection, self._key)  # type: ignore[attr-defined]
            answer_challenge(connection, self._key)  # type: ignore[attr-defined]
        except (OSError, EOFError, AuthenticationError) as error:
            log.debug("a connection was refused: %s", error)
            connection.close()
            return
        self._on_connect(Link(connection))
