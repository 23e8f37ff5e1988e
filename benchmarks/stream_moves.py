"""Measures how long a stream pauses when it moves from one group of ranks to another.

    python -m benchmarks.stream_moves
    python -m benchmarks.stream_moves --model FOLDER --tokens 4096

Two ranks serve streams with prompts of so many tokens. Those of rank 1 are ended, so that one of rank 0 moves there
with its keys and values. Nothing moves, which ends the measurement, where the ranks form one group, or where a step of
all streams takes as long as one of fewer: try more streams. The pause is compared with the longest one of a stream that
stays, with the usual time between two outputs, and with the time to the first token of a prompt as long, which is what
computing it again takes.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.shared.options import make_parser
from launch.config.process import set_logging
from launch.config.runtime import RuntimeSettings
from launch.conversation.local import ChatInbox
from launch.supervisor.launcher import LocalLauncher
from launch.supervisor.membership import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from lp import Auto, Sampling, Stopping
from lp.engine.input import ContextExceeded
from lp.model.checkpoint import ModelSettings
from lp.request import Output
from parallel.groups.messages import Abort, AddRequest, Shutdown
from parallel.mesh import Mode, ParallelSettings

# Tokens that a stream has before others are ended.
BEFORE = 60
# Seconds in which one must have moved.
MOVING_LIMIT_S = 60.0


class Streams:
    """When each stream got its outputs."""

    def __init__(self, model: Path, dtype: str, num_tokens: int, mode: Mode):
        settings = RuntimeSettings(
            ModelSettings(str(model), dtype=dtype, device="cpu"), Auto(), parallel=ParallelSettings(ranks=2, mode=mode)
        )
        self.inbox, self.times = ChatInbox(), defaultdict[str, list[float]](list)
        self.num_tokens = defaultdict[str, int](int)
        self.sent: dict[str, float] = {}
        self._prompt_tokens = num_tokens
        self._supervisor = Supervisor(settings, SupervisorSettings(), LocalLauncher())
        given = self.inbox, self._emit, print
        self._thread = threading.Thread(target=self._supervisor.run, args=given, daemon=True)
        self._thread.start()

    def begin(self, name: str) -> None:
        """A stream with a prompt of its own."""
        seed = sum(map(ord, name))
        prompt = [(seed * 7919 + number * number * 31) % 4000 for number in range(self._prompt_tokens)]
        request = self._supervisor.request_builder.build(
            prompt, None, Sampling(0.8, seed=1), Stopping(None, ignore_eos=True), request_id=name
        )
        self.sent[name] = time.perf_counter()
        self.inbox.put(AddRequest(request))

    def wait(self, names: list[str], num_tokens: int) -> None:
        while any(self.num_tokens[name] < num_tokens for name in names):
            time.sleep(0.01)

    def rank_of(self, name: str) -> int | None:
        return self._supervisor._dispatcher.rank_of(name)

    def close(self) -> None:
        self.inbox.put(Shutdown())
        self._thread.join(20)

    def _emit(self, output: Output) -> None:
        if output.tokens:
            self.times[output.request_id].append(time.perf_counter())
            self.num_tokens[output.request_id] += len(output.tokens)


def gaps(times: list[float], begin: float, end: float) -> list[float]:
    """Milliseconds between two outputs, for those that overlap with the time from `begin` to `end`."""
    return [1000 * (b - a) for a, b in pairwise(times) if b > begin and a < end]


def measure(arguments: argparse.Namespace) -> None:
    streams = Streams(arguments.model, arguments.dtype, arguments.tokens, Mode(arguments.mode))
    for number in range(arguments.rounds):
        measure_once(streams, [f"stream {number}.{one}" for one in range(2 * arguments.streams)])
    streams.close()


def measure_once(streams: Streams, names: list[str]) -> None:
    for name in names:
        streams.begin(name)
    streams.wait(names, BEFORE)
    staying = [name for name in names if streams.rank_of(name) == 0]
    ended_at = time.perf_counter()
    for name in names:
        if name not in staying:
            streams.inbox.put(Abort(name))
    while not (moved := [name for name in staying if streams.rank_of(name) == 1]):
        if time.perf_counter() - ended_at > MOVING_LIMIT_S:
            raise TimeoutError(
                f"no stream has moved within {MOVING_LIMIT_S:.0f} s: by the step times of this model, the streams that "
                "are left would gain nothing; try --streams with more, or --mode dp"
            )
        time.sleep(0.001)
    moved_at = time.perf_counter()
    counts = dict(streams.num_tokens)
    while any(streams.num_tokens[name] < counts[name] + BEFORE // 2 for name in staying):
        time.sleep(0.01)
    resumed_at = time.perf_counter()
    streams.begin(fresh := f"{names[0]} anew")
    streams.wait([fresh], 1)
    usual = [gap for name in staying for gap in gaps(streams.times[name], ended_at - 2, ended_at)]
    copying = [gap for name in staying for gap in gaps(streams.times[name], ended_at, moved_at)]
    moving = [gap for name in moved for gap in gaps(streams.times[name], moved_at, moved_at)]
    others = [
        max(gaps(streams.times[name], moved_at, resumed_at), default=0.0) for name in staying if name not in moved
    ]
    print(
        f"milliseconds between two outputs: median {median(usual):.0f} and at most {max(usual):.0f} before, "
        f"at most {max(copying):.0f} while keys and values are copied ({moved_at - ended_at:.2f} s), "
        f"{max(moving):.0f} at the move, at most {max(others, default=0.0):.0f} of other streams after it; "
        f"first token of a prompt as long: {1000 * (streams.times[fresh][0] - streams.sent[fresh]):.0f}",
        flush=True,
    )
    for name in [*names, fresh]:
        streams.inbox.put(Abort(name))
    time.sleep(1)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=Path("demo/python-11m"), help="checkpoint (default %(default)s)")
    parser.add_argument("--dtype", default="float32", help="format of the model (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1400, help="tokens of a prompt (default %(default)s)")
    parser.add_argument("--streams", type=int, default=2, help="of each rank (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="moves (default %(default)s)")
    parser.add_argument(
        "--mode", choices=("auto", "dp"), default="auto",
        help="auto: the ranks may form one group, by their step times; dp: they never do (default %(default)s)",
    )  # fmt: skip
    arguments = parser.parse_args()
    set_logging(0)
    try:
        measure(arguments)
    except (ContextExceeded, TimeoutError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
