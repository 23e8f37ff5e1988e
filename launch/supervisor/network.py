"""The front end's side of the network: what it says to ranks and hears from them, and the store where ranks meet."""

from __future__ import annotations

import logging
import socket

from torch.distributed import TCPStore

from parallel.groups import messages
from parallel.groups.link import Link

log = logging.getLogger("lookahead")


def send(link: Link, message: messages.FrontEndMessage) -> None:
    link.send(messages.encode(message))


def read(data: bytes, sender: str) -> messages.RankMessage | None:
    """The message; None, and an error in the log, if it is not one that a rank sends."""
    try:
        return messages.from_rank(data)
    except ValueError as error:
        log.error("%s sent something that is %s", sender, error)
        return None


def open_store(host: str) -> TCPStore:
    """A store that listens on this address only; a TCPStore that opens its port itself listens on all addresses."""
    listener = socket.create_server((host, 0), backlog=128)
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
