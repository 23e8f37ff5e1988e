"""Answers by a backend of this process: the engine of rank 0, or ranks that this program has started."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from launch.backend import Backend
from launch.conversation.model import AnswerError, Figures, Options, Part
from lp.engine.engine import NOT_A_NUMBER
from lp.engine.input import ContextExceeded
from lp.methods.registry import from_dict
from lp.request import Output, Request
from lp.statistics import Statistics
from lp.text.chat_template import Message
from lp.text.stopping import REFUSALS, Stopping
from parallel.groups.messages import Abort, AddRequest, Command, Shutdown

# Seconds that the backend gets to end.
LEAVE_S = 10.0


class ChatInbox:
    """An Inbox (see parallel.groups.messages) into which the thread of the chat puts commands."""

    def __init__(self) -> None:
        self._due: deque[Command] = deque()
        self._changed = threading.Condition()

    def put(self, command: Command) -> None:
        with self._changed:
            self._due.append(command)
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Command]:
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            taken = [*self._due]
            self._due.clear()
            return taken

    def has_waiting(self) -> bool:
        return bool(self._due)


class LocalModel:
    """A ChatModel. Use it within `with model.running()`."""

    def __init__(self, backend: Backend, where: str):
        self.where = where
        self._backend = backend
        self._inbox = ChatInbox()
        self._current: Request | None = None
        # What the backend's thread tells of the current request: its outputs, or why there is no more.
        self._news: SimpleQueue[Output | str] = SimpleQueue()
        self._failure: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the backend in a thread of its own, and waits until it serves. Raises what the backend raises."""
        worker = threading.Thread(target=self._drive, name="engine", daemon=True)
        worker.start()
        try:
            while not self._backend.is_serving and worker.is_alive():
                time.sleep(0.02)
            self._raise_failure()
            yield
        finally:
            self._inbox.put(Shutdown())
            worker.join(LEAVE_S)

    def check(self, options: Options) -> None:
        try:
            self._build([0], options)
        except ValueError as error:
            raise ValueError(_by_our_names(error)) from None

    def answer(self, messages: Sequence[Message], options: Options) -> Generator[Part, None, None]:
        """Raises what the backend raised as well, if it has ended."""
        try:
            request = self._build(messages, options)
        except ValueError as error:
            raise AnswerError(_by_our_names(error), isinstance(error, ContextExceeded)) from None
        return self._parts(request)

    def _build(self, prompt: Sequence[Message] | Sequence[int], options: Options) -> Request:
        builder = self._backend.request_builder
        decode = from_dict({**options.decode}, builder.decode) if options.decode else None
        return builder.build(prompt, decode, options.sampling, Stopping(options.max_tokens))

    def _parts(self, request: Request) -> Generator[Part, None, None]:
        self._news = SimpleQueue()
        self._raise_failure()  # after the line before, so that a failure from now on is told to the new queue
        self._current = request
        self._inbox.put(AddRequest(request))
        is_over = False
        try:
            while not is_over:
                news = self._news.get()
                self._raise_failure()
                if isinstance(news, str):
                    is_over = True
                    raise AnswerError(news)
                is_over = news.finish_reason is not None
                if news.finish_reason == "error":
                    raise AnswerError(NOT_A_NUMBER)
                if news.finish_reason in REFUSALS:
                    raise AnswerError(news.text)
                yield Part(news.text, len(news.tokens), _figures(news.stats), news.finish_reason)
        finally:
            self._current = None
            if not is_over:
                self._inbox.put(Abort(request.id))

    def _drive(self) -> None:
        """Runs the backend until it is shut down or fails."""
        try:
            self._backend.run(self._inbox, self._emit, self._lose)
        except Exception as error:  # it is raised again in the thread of the chat
            self._failure = error
            self._news.put("")

    def _emit(self, output: Output) -> None:
        current, news = self._current, self._news
        if current and output.request_id == current.id:
            news.put(output)

    def _lose(self, reason: str) -> None:
        if self._current:
            self._news.put(reason)

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure


def _by_our_names(error: ValueError) -> str:
    return str(error).replace("max_new_tokens", "max_tokens")


def _figures(stats: Statistics) -> Figures:
    return Figures(stats.tokens, stats.tokens_per_step, stats.tokens_per_s)
