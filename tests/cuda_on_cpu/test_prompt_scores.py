"""Log-probabilities of prompts on the emulated GPU, where steps overlap: those of the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.request import Completion
from lp.scheduling import prompt_scores
from tests.models import generate_greedily

PROMPT = [(5 * i) % 97 + 2 for i in range(60)]


def test_beside_another_request(
    folders: dict[str, Path],
    reference_of: Callable[[str], PreTrainedModel],
    cuda: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference is transformers' forward in float32. The prompt is scored in three chunks."""
    reference = reference_of("llama")
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0].float().log_softmax(dim=1)
    engine = Engine.from_pretrained(str(folders["llama"]), device="cuda", step_times="off")
    monkeypatch.setattr(prompt_scores, "MOST_LOGITS", 20 * engine.checkpoint.vocab_size)
    found = {"scored": Completion(), "plain": Completion()}
    for name, decode, num_top in (("plain", Auto(rows=8), None), ("scored", Autoregressive(), 2)):
        sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=num_top)
        stopping = Stopping(8, ignore_eos=True)
        engine.add_request(engine.request_builder.build(PROMPT, decode, sampling, stopping, request_id=name))
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id].extend(output)
    scored = found["scored"].prompt_logprobs
    assert scored is not None and [entry.token for entry in scored] == PROMPT[1:]
    for row, entry in enumerate(scored):
        assert entry.logprob == pytest.approx(float(expected[row, entry.token]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(expected[row].topk(2).values.tolist(), abs=1e-4)
    text = generate_greedily(reference, PROMPT, 8)
    assert found["scored"].token_ids == found["plain"].token_ids == text


@pytest.mark.parametrize("folder", ["llama"])
def test_by_captured_graphs(folder: str, folders: dict[str, Path], cuda: None, few_rungs: None) -> None:
    """Chunks that fit a graph and those that do not report the same, up to rounding."""
    engine = Engine.from_pretrained(
        str(folders[folder]), device="cuda", dtype="bfloat16", compile="on", step_times="off"
    )
    assert engine.checkpoint.model.fast is not None
    sampling = Sampling(temperature=0.0, seed=0, prompt_logprobs=1)
    long = engine.generate(PROMPT, max_new_tokens=4, sampling=sampling).prompt_logprobs
    short = engine.generate(PROMPT[:4], max_new_tokens=4, sampling=sampling).prompt_logprobs
    assert long is not None and short is not None and len(long) == len(PROMPT) - 1
    assert [entry.logprob for entry in short] == pytest.approx([entry.logprob for entry in long[:3]], abs=0.1)
