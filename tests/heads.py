"""Heads for the tiny models of the tests, fitted to a few texts, so that drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lp.model.heads.files import save_heads
from lp.model.heads.hidden import collected, output_of
from lp.model.heads.medusa import HeadsInfo, MedusaHeads

NUM_HEADS = 3


def fit_heads(
    model: PreTrainedModel, texts: Sequence[list[int]], folder: Path, shares_output: bool = False, num_steps: int = 150
) -> Path:
    """Writes heads that know what follows in these texts, but for some of it. Returns the folder."""
    config = model.config.get_text_config(decoder=True)
    info = HeadsInfo(config.hidden_size, config.vocab_size, NUM_HEADS, 1, shares_output)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        heads = MedusaHeads(info)
        optimizer = torch.optim.Adam(heads.parameters(), lr=0.02)
        pairs = [_pairs(model, text) for text in texts]
        hidden, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
        for _ in range(num_steps):
            logits = heads.logits(hidden, output_of(model))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.T.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_heads(heads, folder)
    return folder


def _pairs(model: PreTrainedModel, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [N, D] of the tokens that have enough behind them, and what each head should guess, [N, H]."""
    with torch.no_grad(), collected(model) as seen:
        model(input_ids=torch.tensor([text]))
    ends = range(len(text) - NUM_HEADS - 1)
    targets = [[text[at + 2 + head] for head in range(NUM_HEADS)] for at in ends]
    return seen[0][0, : len(ends)].clone(), torch.tensor(targets)
