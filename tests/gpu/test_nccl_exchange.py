"""The NCCL exchange works with one GPU for each rank."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.parallel.comm.test_channel import COMMANDS, follow_commands
from tests.parallel.comm.test_exchange import gather_and_broadcast
from tests.parallel.comm.test_rank_loss import survivors_reports
from tests.parallel.ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.real_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices: NCCL wants one for each rank"),
]
ON_GPUS = {"exchange": "nccl", "device": "cuda", "timeout_s": 60.0}


def test_all_ranks_receive_what_was_sent():
    for counted, expected in run_ranks(gather_and_broadcast, 2, 300, 200, **ON_GPUS):
        assert counted == expected


def test_commands_reach_all_ranks():
    assert run_ranks(follow_commands, 2, **ON_GPUS) == [COMMANDS] * 2


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_rank_is_named(signal_number: int):
    for message, ranks, _, seconds in survivors_reports(2, 1, signal_number, 2.0, **ON_GPUS):
        assert ranks == (1,) and "rank 1 lost" in message
        assert seconds < 10.0
