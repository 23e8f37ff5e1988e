"""Chats with a model: on this machine's ranks, or with a server that is running.

    python launch/chat.py                                            # SmolLM2-135M-Instruct, downloaded once (93 MB)
    python launch/chat.py parallel.ranks=2 system="Answer in one sentence."
    python launch/chat.py model=checkpoint model.path=FOLDER sampling.temperature=0.8
    python launch/chat.py url=http://127.0.0.1:8000

/help lists the commands. Answers go to standard output, everything else to standard error. If standard input is not a
terminal, each of its lines is a message or a command.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from launch.backend import BackendFailed, EngineBackend
from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.engine_settings import mode_of, num_ranks
from launch.config.runtime import RuntimeSettings, follow, running
from launch.conversation.lines import open_lines
from launch.conversation.local import LocalModel
from launch.conversation.model import ChatModel, Options
from launch.conversation.remote import connected
from launch.conversation.session import COMMANDS, Session
from launch.data.output import Color, TextStream, give_up_rest
from launch.supervisor.launcher import LocalLauncher
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from lp.engine.input import RequestBuilder
from lp.sampling.settings import Sampling
from lp.text import chat_template
from parallel.mesh import is_rank

log = logging.getLogger("lookahead")


@dataclass
class TalkSettings:
    """The settings of every chat.

    system: the system prompt. max_tokens: the most tokens of an answer; None is as many as the context allows. color:
    whether tokens that one step yielded together have a colour.
    """

    system: str | None = None
    max_tokens: int | None = None
    color: Color = Color.auto


@dataclass
class ChatSettings(TalkSettings, RuntimeSettings):
    """The settings of a chat with ranks of this machine. supervisor: used if this program starts several ranks."""

    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


@dataclass
class RemoteChatSettings(TalkSettings):
    """The settings of a chat with a server.

    url: the server's address. decode: None is the server's. api_key: one of the server's server.api_keys; best given as
    the environment variable LOOKAHEAD_API_KEY. sampling: what is None is left to the server.
    """

    url: str = ""
    api_key: str | None = None
    decode: Any = None
    sampling: Sampling = field(default_factory=Sampling)


def run(settings: ChatSettings) -> int:
    """Chats with ranks. Exit code as `converse`; 1, or the code of BackendFailed, if the ranks were lost.

    Raises ValueError for settings that cannot be used and for a checkpoint without a chat template.
    """
    ranks = num_ranks(settings.parallel)
    if ranks > 1 and not is_rank():
        backend = Supervisor(settings, settings.supervisor, LocalLauncher())
        return _converse_locally(settings, LocalModel(backend, _where(settings, backend.request_builder, ranks)))
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        where = _where(settings, runtime.engine.request_builder, runtime.mesh.num_ranks)
        return _converse_locally(settings, LocalModel(EngineBackend(runtime.engine, runtime.channel), where))


def _where(settings: ChatSettings, builder: RequestBuilder, ranks: int) -> str:
    """What the greeting says of the model. Raises NoChatTemplate."""
    chat_template.check_template(builder.checkpoint.tokenizer)
    return f"{builder.checkpoint.name}, {mode_of(settings.parallel, ranks)} on {ranks} rank(s)"


def _converse_locally(settings: ChatSettings, model: LocalModel) -> int:
    with _ended_by_sigterm():
        try:
            with model.running():
                return converse(
                    model, settings, Options(settings.system, settings.max_tokens, sampling=settings.sampling)
                )
        except BackendFailed as error:
            log.error("error: %s", error)
            return error.exit_code


def run_remotely(settings: RemoteChatSettings) -> int:
    """Chats with a server. Exit code as `converse`. Raises ValueError if there is no server at the URL."""
    decode = settings.decode.to_dict() if settings.decode else {}
    options = Options(settings.system, settings.max_tokens, decode, settings.sampling)
    with _ended_by_sigterm(), connected(settings.url, settings.api_key) as model:
        return converse(model, settings, options)


def converse(model: ChatModel, settings: TalkSettings, options: Options) -> int:
    """Exit code 0; 1 if something piped in was refused or had no answer; 128 + SIGPIPE if nobody reads the answers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lines = open_lines(COMMANDS)
    color = Color.never if settings.color is Color.auto and not lines.is_interactive else settings.color
    try:
        return Session(model, lines, TextStream(color, wraps=True), options).run()
    except BrokenPipeError:
        give_up_rest(sys.stdout)
        return 128 + signal.SIGPIPE


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the body as an exception does, so that ranks which this program has started end as well."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> int:
    if any(argument.startswith("url=") for argument in sys.argv[1:]):
        engine_settings.register("chat_remote", RemoteChatSettings)
        return process.main("chat_remote", RemoteChatSettings, run_remotely, usage=__doc__ or "")
    engine_settings.register("chat", ChatSettings, supervisor=SupervisorSettings)
    return process.main("chat", ChatSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
