"""Medusa heads (Cai et al., arXiv 2401.10774, section 2.1.1): each predicts a token further ahead from the hidden state
that the model's output embedding reads.

    N rows, H heads, D numbers of a hidden state, V vocabulary, T best tokens
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Gives the logits [N, V] of hidden states [N, D].
Output = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class HeadsInfo:
    """What heads are like.

    hidden_size: D. vocab_size: V. num_heads: H; head h, from 0, predicts the token h + 2 places behind the row's own.
    num_layers: residual blocks of a head. shares_output: whether the heads end in the model's own output embedding
    rather than in one of their own.
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int
    shares_output: bool


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b). With W and b of zeros, as at the beginning of training, x is left as it is."""

    def __init__(self, size: int):
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """All heads of a model. Its weights have the names of FasterDecoding's: "HEAD.LAYER.linear.weight" and so on, and
    "HEAD.LAYERS.weight" for an output embedding.
    """

    def __init__(self, info: HeadsInfo):
        super().__init__()
        self.info = info
        for head in range(info.num_heads):
            layers: list[nn.Module] = [ResidualBlock(info.hidden_size) for _ in range(info.num_layers)]
            if not info.shares_output:
                layers.append(nn.Linear(info.hidden_size, info.vocab_size, bias=False))
            self.add_module(str(head), nn.Sequential(*layers))

    @property
    def dtype(self) -> torch.dtype:
        """The weights' number format."""
        return next(self.parameters()).dtype

    def logits(self, hidden_ND: Tensor, output: Output) -> Tensor:
        """[H, N, V], of each head for each row. output: the model's own, which heads without one of their own use."""
        outs = [head(hidden_ND) for head in self.children()]
        if not self.info.shares_output:
            return torch.stack(outs)
        return output(torch.cat(outs)).view(len(outs), len(hidden_ND), -1)

    @torch.inference_mode()
    def best(self, hidden_ND: Tensor, output: Output, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The T likeliest tokens of each head for each row, int64 [N, H, T], best first, and float32 [N, H, T] their
        probabilities. T: num_tokens, at most V.
        """
        odds_HNV = self.logits(hidden_ND, output).float().softmax(dim=-1)
        odds_HNT, tokens_HNT = odds_HNV.topk(num_tokens, dim=-1)
        return tokens_HNT.transpose(0, 1), odds_HNT.transpose(0, 1)
