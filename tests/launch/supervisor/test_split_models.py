"""Ranks that each hold a part of the model cannot outlive one another: clients are told, and the group is rebuilt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.faults import scenarios
from benchmarks.faults.rank_server import serving
from benchmarks.faults.scenarios import ScenarioStage
from tests.launch.server.checkpoint import TEMPLATE, make_tokenizer
from tests.models import save_checkpoint

# The error must come by itself, before the stream would have ended, on a machine with other work as well.
WITHIN_S = 60.0


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """A checkpoint of four layers, two of which are recurrent: one for each stage."""
    tokenizer = make_tokenizer(TEMPLATE)
    folder = save_checkpoint(tmp_path, "qwen3_next", vocab_size=len(tokenizer), eos_token_id=0)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tp", "pp"])
def test_a_lost_rank_ends_requests_with_a_clear_error(mode: str, model: Path, hybrid: Path) -> None:
    folder = model if mode == "tp" else hybrid
    with serving(folder, 2, f"parallel={mode}", "parallel.delay_us=2000", "step_times=off") as server:
        verdict = scenarios.one_of_a_split_model(ScenarioStage(server, max_tokens=128), WITHIN_S)
    assert verdict.passed, verdict.seen
    assert re.search("rank 1 (was|is) lost", verdict.seen)  # rank 0 may say so and end before the front end sees it
