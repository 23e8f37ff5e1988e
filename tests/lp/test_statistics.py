"""The statistics of a request add up to what it did."""

from __future__ import annotations

from collections import Counter

import pytest

from lp import Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.request import DecodingMethod
from lp.statistics import Statistics
from lp.tree import Drafted

PROMPT = [5, 6, 7, 8, 9, 10] * 8


def test_counts_add_up() -> None:
    stats = Statistics(prompt_tokens=3)
    for num_rows, num_tokens in [(10, 1), (20, 3), (30, 2)]:
        stats.start_step()
        stats.end_step(num_rows, num_tokens, Drafted(Counter(window=4), ["window"] * (num_tokens - 1)))
    assert (stats.steps, stats.tokens, stats.rows) == (3, 6, 60)
    assert (stats.tokens_per_step, stats.rows_per_step) == (2.0, 20.0)
    assert stats.accepted_lengths == {1: 1, 2: 1, 3: 1}
    assert stats.proposed == {"window": 12} and stats.accepted == {"window": 3}
    assert stats.ttft_s >= 0 and stats.decode_s > 0
    assert stats.tokens_per_s == pytest.approx(6 / stats.decode_s)


def test_drafts_beyond_the_end_of_a_text_were_not_accepted() -> None:
    stats = Statistics()
    stats.start_step()
    stats.end_step(9, 2, Drafted(Counter(prompt=5, window=3), ["prompt", "prompt", "window"]))
    assert stats.accepted == {"prompt": 2}


def test_without_steps_there_is_no_division_by_zero() -> None:
    assert Statistics().to_dict()["tokens_per_step"] == 0.0


METHODS: list[DecodingMethod] = [Autoregressive(), Jacobi(5), PromptLookup(4, 3), Lookahead(5, 4, 3)]


@pytest.mark.parametrize("how", METHODS, ids=lambda how: how.method)
def test_statistics_of_a_request(how: DecodingMethod, llama: Engine) -> None:
    stop = Stopping(50, ignore_eos=True)
    completion = llama.generate(PROMPT, decode=how, sampling=Sampling(temperature=0.0), stopping=stop)
    stats = completion.stats
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.tokens == len(completion.token_ids) == 50
    assert sum(length * count for length, count in stats.accepted_lengths.items()) == 50
    assert sum(stats.accepted_lengths.values()) == stats.steps
    for source, count in stats.accepted.items():
        assert 0 <= count <= stats.proposed[source]
    bonus_tokens = stats.tokens - stats.accepted.total()
    assert bonus_tokens in (stats.steps, stats.steps - 1), (
        "every step yields one bonus token, but the last may be cut before it"
    )
    most = {"autoregressive": 1, "jacobi": 6, "prompt_lookup": 1 + 3 * 3, "lookahead": 1 + 5 * 3 + 3 * 3}[how.method]
    assert 1 <= stats.rows_per_step <= most
    assert stats.ttft_s > 0 and stats.decode_s > 0
    sources = {"autoregressive": set(), "jacobi": {"jacobi"}, "prompt_lookup": {"prompt", "generated"}}
    assert set(stats.proposed) <= sources.get(how.method, {"window", "prompt", "generated"})


def test_reported_values(llama: Engine) -> None:
    stats = llama.generate(PROMPT, max_new_tokens=5).stats.to_dict()
    assert set(stats) == {
        "prompt_tokens", "cached_tokens", "tokens", "steps", "tokens_per_step", "rows_per_step", "accepted_lengths",
        "proposed", "accepted", "ttft_s", "decode_s", "tokens_per_s",
    }  # fmt: skip


def test_a_resumed_request_keeps_what_was_cached_when_it_began() -> None:
    before = Statistics(prompt_tokens=9, cached_tokens=8, tokens=2, steps=2)
    resumed = Statistics(prompt_tokens=9, tokens=5, steps=3).after(before)
    assert (resumed.cached_tokens, resumed.tokens, resumed.steps) == (8, 5, 5)
