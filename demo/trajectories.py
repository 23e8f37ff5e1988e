"""Jacobi trajectories of a causal model: every iterate of blocks of tokens on their way to greedy decoding's text.

They are what consistency training learns from (CLLM: Kou et al. 2024, arXiv 2403.00835, section 3.2). Knows nothing of
training or of texts.

B: texts of a batch; P: tokens of a prompt; K: blocks after it; N: tokens of a block, so that L = K N tokens are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True)
class Trajectories:
    """What a model did with prompts of equal length.

    tokens_BT: prompts, each with its greedy text (T = P + L). iterates_BKIN: the blocks' iterates, the random first one
    included; those after the fixed point repeat it (I = N + 1). calls_BK: iterates that differ from the fixed point,
    which is the number of calls of the model until the block is right.
    """

    tokens_BT: Tensor
    iterates_BKIN: Tensor
    calls_BK: Tensor

    @property
    def num_prompt_tokens(self) -> int:
        _, num_blocks, _, block = self.iterates_BKIN.shape
        return self.tokens_BT.shape[1] - num_blocks * block

    def some_iterate(self, texts: Tensor, generator: torch.Generator) -> Tensor:
        """For each of the given texts, its blocks at an iterate drawn at random: [texts, L] tokens."""
        calls_BK = self.calls_BK[texts].clamp(min=1)
        drawn_BK = (torch.rand(calls_BK.shape, generator=generator) * calls_BK).long()
        of_texts = self.iterates_BKIN[texts]
        index = drawn_BK[:, :, None, None].expand(-1, -1, 1, of_texts.shape[-1])
        return of_texts.gather(2, index).flatten(1).long()

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        unfinished = path.with_suffix(".part")
        save_file({name: tensor.to(torch.int32).contiguous() for name, tensor in vars(self).items()}, unfinished)
        unfinished.replace(path)

    @staticmethod
    def load(path: Path) -> Trajectories:
        return Trajectories(**{name: tensor.long() for name, tensor in load_file(path).items()})

    @staticmethod
    def join(parts: list[Trajectories]) -> Trajectories:
        return Trajectories(**{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})


@torch.no_grad()
def collect(
    model: PreTrainedModel, prompts_BP: Tensor, num_blocks: int, block: int, generator: torch.Generator
) -> Trajectories:
    """Solves one block after another by Jacobi iteration, all prompts at once.

    A block begins with random tokens of its own prompt, as in decode=jacobi.
    """
    num_texts, num_prompt_tokens = prompts_BP.shape
    cache = DynamicCache(config=model.config)
    if num_prompt_tokens > 1:
        model(input_ids=prompts_BP[:, :-1], past_key_values=cache, logits_to_keep=1)
    texts, blocks = [prompts_BP], []
    for _ in range(num_blocks):
        begin = torch.randint(num_prompt_tokens, (num_texts, block), generator=generator).to(prompts_BP.device)
        iterates = solve(model, cache, texts[-1][:, -1:], prompts_BP.gather(1, begin))
        texts.append(iterates[-1])
        blocks.append(torch.stack(iterates + iterates[-1:] * (block + 1 - len(iterates)), 1))
    iterates_BKIN = torch.stack(blocks, 1)
    calls_BK = (iterates_BKIN != iterates_BKIN[:, :, -1:]).any(-1).sum(-1)
    return Trajectories(torch.cat(texts, 1).cpu(), iterates_BKIN.cpu(), calls_BK.cpu())


def solve(model: PreTrainedModel, cache: DynamicCache, root_B1: Tensor, guesses_BN: Tensor) -> list[Tensor]:
    """The iterates of a block after `root_B1`, from the first guesses to the fixed point.

    cache: keys and values of all tokens before the root; then also of the root and the block but its last token.
    """
    known = cache.get_seq_length()
    iterates = [guesses_BN]
    while True:
        inputs = torch.cat([root_B1, iterates[-1][:, :-1]], 1)
        better_BN = model(input_ids=inputs, past_key_values=cache).logits.argmax(-1)
        if torch.equal(better_BN, iterates[-1]) or len(iterates) > guesses_BN.shape[1]:
            return iterates
        cache.crop(known - cache.get_seq_length())  # a negative number: that many tokens from the end
        iterates.append(better_BN)


def packed_mask(num_prompt_tokens: int, num_blocks: int, block: int) -> Tensor:
    """What a text and an iterate of each of its blocks may see in one call of the model: [T + L, T + L], True is seen.

    The text comes first and is causal. A block's iterate sees the text before the block, and itself up to each token.
    """
    length = num_blocks * block
    before = num_prompt_tokens + block * (torch.arange(length) // block)  # where the block of each row begins
    text = num_prompt_tokens + length
    mask = torch.zeros(text + length, text + length, dtype=torch.bool)
    mask[:text, :text] = torch.ones(text, text, dtype=torch.bool).tril()
    mask[text:, :text] = torch.arange(text)[None] < before[:, None]
    mask[text:, text:] = (before[:, None] == before[None]).tril()
    return mask
