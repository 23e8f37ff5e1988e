"""Runs the server: HTTP in the calling thread, and the backend in a worker thread.

After SIGTERM or SIGINT, accepted requests have `drain_s` seconds to finish. A second signal ends the server at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from launch.backend import Backend, BackendFailed
from launch.server.access import AllowedHosts, check_certificate, is_loopback
from launch.server.app import make_app
from launch.server.connection import limited
from launch.server.context import Context
from launch.server.settings import ServerSettings

log = logging.getLogger("lookahead")

# Seconds within which two signals count as one: under torchrun, a rank gets Ctrl-C from the terminal and from torchrun.
SAME_SIGNAL_S = 1.0
# Seconds that slow clients have to read their last answers once the engine has stopped.
LAST_ANSWERS_S = 5


def bind(settings: ServerSettings) -> socket.socket:
    """Returns a socket that listens on the server's port. Raises ValueError with one message for the user."""
    settings.check()
    check_certificate(settings.tls_certificate, settings.tls_key)
    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise ValueError(
            f"the server cannot listen on {where}: {reason}; "
            "choose another server.port (0 picks a free one) or server.host"
        ) from None


def serve(backend: Backend, settings: ServerSettings, listener: socket.socket | None = None) -> int:
    """Serves until a signal or an error ends it.

    listener: the socket from `bind`, if the caller has opened it already. Returns the exit code of the process: 0 after
    a signal, 1 (or the code of BackendFailed) if the backend failed, 128 + N if a second signal N ended the server at
    once. Raises ValueError as `bind` does.
    """
    return Server(backend, settings, listener or bind(settings)).run()


class Server:
    """One run of the server. `stop` may be called from any thread."""

    def __init__(self, backend: Backend, settings: ServerSettings, listener: socket.socket):
        self.context = Context(backend, settings)
        self.address = f"{'https' if settings.tls_certificate else 'http'}://{_authority(listener)}"
        self._backend = backend
        self._listener = listener
        self._http = _Http(
            uvicorn.Config(
                make_app(self.context, AllowedHosts(settings.host, settings.allowed_hosts)),
                http=limited(settings.head_timeout_s, settings.max_connections),
                ws="none",
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=settings.access_log,
                server_header=False,
                timeout_graceful_shutdown=LAST_ANSWERS_S,
            )
        )
        if not (self.context.keys or is_loopback(settings.host)):
            log.warning(
                "warning: everyone who reaches %s may use this server, as it has no API keys "
                "(server.api_keys, server.api_keys_file, LOOKAHEAD_API_KEYS)", self.address,
            )  # fmt: skip
        if settings.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        self._exit_code = 0
        self._stopped_at: float | None = None

    def run(self) -> int:
        """Serves until the server has ended, and returns the exit code. Handles signals only in the main thread."""
        worker = threading.Thread(target=self._drive, name="engine", daemon=True)
        worker.start()
        log.info("serving %s on %s", self.context.model_name, self.address)
        if not self._backend.is_serving:
            log.info("requests wait until the ranks have loaded the model")
        try:
            with asyncio.Runner(loop_factory=self._http.config.get_loop_factory()) as runner:
                runner.run(self._serve_http())
        finally:
            self.stop(within_s=0)
            worker.join(LAST_ANSWERS_S)
            self._listener.close()
            self.context.close()
        if worker.is_alive():
            log.error("the engine did not stop within %d s", LAST_ANSWERS_S)
            return self._exit_code or 1
        return self._exit_code

    def stop(self, within_s: float | None = None) -> None:
        """Refuses new requests, and ends when the accepted ones are finished.

        within_s: seconds after which those that are left are cancelled; None is settings.drain_s.
        """
        self._stopped_at = time.monotonic()
        self.context.service.drain(self.context.settings.drain_s if within_s is None else within_s)

    async def _serve_http(self) -> None:
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)
        await self._http.serve([self._listener])

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopped_at is None:
            log.info(
                "%s: no new requests; those accepted have %g s to finish", number.name, self.context.settings.drain_s
            )
            self.stop()
        elif time.monotonic() - self._stopped_at > SAME_SIGNAL_S:
            log.warning("%s again: ending at once", number.name)
            self._exit_code = 128 + number
            self.stop(within_s=0)
            self._http.should_exit = self._http.force_exit = True

    def _drive(self) -> None:
        """Runs the backend in the worker thread until it is shut down or fails."""
        service = self.context.service
        try:
            self._backend.run(service, service.emit, service.lose_running)
        except BackendFailed as error:
            self._exit_code = error.exit_code
            log.error("error: %s", error)
            service.fail()
        except Exception as error:
            self._exit_code = 1
            log.error("the engine stopped: %s: %s", type(error).__name__, error, exc_info=error)
            service.fail()
        self._http.should_exit = True


class _Http(uvicorn.Server):
    """A uvicorn server that leaves signals to `Server`; uvicorn itself would stop listening at the first one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _authority(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
