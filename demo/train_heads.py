"""Trains Medusa heads for a checkpoint, on the demo model's training text and one CPU or GPU.

    python demo/train_heads.py --minutes 15
    python demo/train_heads.py --model FOLDER --heads 4 --layers 2 --output FOLDER/heads

The model stays as it is (Medusa-1, arXiv 2401.10774, section 2.2.1). So its hidden states are computed once, in the
first part of the time, and the heads learn from them in the rest. The target of head h, from 0, at a token is the
model's own best token h + 1 tokens later, which is what drafts are checked against. Heads end in the model's own output
embedding, so they are small. Each step compares the target with the frequent tokens, and with a sample of the others
that stands for all of them, which takes a third of the time of the whole vocabulary.

Minutes are those of the processor, so that a busy machine makes no worse heads.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import PACKAGES, package_sources, read, standard_library
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from tqdm import tqdm
from train import Stream, learning_rate
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads

# Tokens of a crop of text, and of the crops that the model computes together; rows of a step of the heads.
LENGTH, TOGETHER, ROWS = 512, 2048, 512
# Of the files, every so many: minutes of training see no more than these.
STRIDE = 32
# The share of the time in which hidden states are computed.
COLLECTING = 0.3
NUM_FREQUENT, NUM_SAMPLED = 1024, 256
RATE = 2e-3
# Weight of a head's loss in that of the head before it, as in the paper.
DECAY = 0.8
# Of each head's tokens, those among which the right one is looked for.
NUM_BEST = 6


@dataclass(frozen=True)
class Report:
    """What the training did. It is saved as training.json.

    minutes: of the processor. tokens: whose hidden states were computed. passes: over these. train_loss: of the last
    fifty steps, all heads together. held_out_accuracy: of each head, how often its best token is the model's own best
    token h + 1 tokens later. held_out_in_best: how often that is among the head's six best. base_accuracy: how often
    the model's best token is that of the text.
    """

    minutes: float
    tokens: int
    steps: int
    passes: float
    train_loss: float
    held_out_accuracy: list[float]
    held_out_in_best: list[float]
    base_accuracy: float
    parameters: int
    torch: str


@dataclass(frozen=True)
class Rows:
    """hidden: [N, D]. targets: [N, H], what each head should guess."""

    hidden: Tensor
    targets: Tensor


class Trainer:
    """A frozen model and the heads that are trained for it."""

    def __init__(self, model: PreTrainedModel, heads: MedusaHeads, seconds: float):
        """seconds: of the processor, for all."""
        self.model, self.heads = model, heads
        output = model.get_output_embeddings()
        assert isinstance(output, torch.nn.Linear)
        self.output = output
        self._seconds, self._began = seconds, time.process_time()

    @property
    def progress(self) -> float:
        """The share of the time that has passed."""
        return (time.process_time() - self._began) / self._seconds

    @torch.no_grad()
    def states(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, D], and the model's best tokens [B, S], for the tokens [B, S]."""
        seen: list[Tensor] = []
        handle = self.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            best = self.model(input_ids=batch.to(self.model.device), use_cache=False).logits.argmax(-1)
        finally:
            handle.remove()
        return seen[0], best

    def collect(self, stream: Stream) -> Rows:
        """Rows from random crops of the text."""
        found, num_heads = list[Rows](), self.heads.info.num_heads
        bar = tqdm(desc="hidden states", unit=" tokens")
        while self.progress < COLLECTING:
            hidden, best = self.states(stream.crops(LENGTH)[: TOGETHER // LENGTH, :-1])
            count = hidden.shape[1] - num_heads
            targets = torch.stack([best[:, 1 + head : 1 + head + count] for head in range(num_heads)], dim=-1)
            found.append(Rows(hidden[:, :count].flatten(0, 1), targets.flatten(0, 1)))
            bar.update(len(found[-1].hidden))
        bar.close()
        return Rows(torch.cat([rows.hidden for rows in found]), torch.cat([rows.targets for rows in found]))

    def train(self, rows: Rows, folder: Path) -> tuple[int, float]:
        """Trains until the time is over; returns the number of steps and the mean loss of the last fifty. The heads are
        saved now and then, so that nothing is lost if the training is stopped.
        """
        optimizer = torch.optim.AdamW(self.heads.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
        counts = rows.targets.flatten().bincount(minlength=self.heads.info.vocab_size)
        frequent = counts.topk(min(NUM_FREQUENT, len(counts))).indices
        others = counts.scatter(0, frequent, -1).ge(0).nonzero()[:, 0]
        losses: list[float] = []
        bar = tqdm(desc="heads", unit=" steps")
        while (progress := (self.progress - COLLECTING) / (1.0 - COLLECTING)) < 1.0:
            own = torch.randint(len(rows.hidden), (ROWS,), device=rows.hidden.device)
            loss = self._loss(rows.hidden[own], rows.targets[own], frequent, others)
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = RATE * learning_rate(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            bar.update()
            if len(losses) % 20 == 0:
                bar.set_postfix_str(f"{progress:.0%}, loss {np.mean(losses[-50:]):.3f}")
                save_heads(copy.deepcopy(self.heads).to(torch.bfloat16), folder)
        bar.close()
        return len(losses), float(np.mean(losses[-50:]))

    def _loss(self, hidden: Tensor, targets: Tensor, frequent: Tensor, others: Tensor) -> Tensor:
        """The heads' losses, those further ahead with less weight."""
        rare = targets.flatten()
        if len(others):
            rare = torch.cat([rare, others[torch.randint(len(others), (NUM_SAMPLED,), device=others.device)]])
        rare = rare.unique()
        rare = rare[~torch.isin(rare, frequent)]
        tokens = torch.cat([frequent, rare])
        places = tokens.new_full((self.heads.info.vocab_size,), -1)
        places[tokens] = torch.arange(len(tokens), device=tokens.device)
        stands_for = hidden.new_zeros(len(tokens))
        stands_for[len(frequent) :] = math.log(max(1.0, len(others) / max(1, len(rare))))
        weights = self.output.weight[tokens]
        total = hidden.new_zeros(())
        for number, head in enumerate(self.heads.children()):
            logits = linear(head(hidden), weights) + stands_for
            total = total + DECAY**number * cross_entropy(logits, places[targets[:, number]])
        return total

    @torch.no_grad()
    def measure(self, pieces: list[Tensor]) -> tuple[list[float], list[float], float]:
        """See Report: held_out_accuracy, held_out_in_best and base_accuracy, on pieces [1, S + 1] of text."""
        first, in_best, right = [], [], []
        for piece in pieces:
            hidden, best = self.states(piece[:, :-1])
            right.append((best == piece[:, 1:].to(best.device)).float().mean())
            found = [
                self.output(head(hidden[:, :-ahead])).topk(NUM_BEST).indices == best[:, ahead:, None]
                for ahead, head in enumerate(self.heads.children(), 1)
            ]
            first.append(torch.stack([hits[..., 0].float().mean() for hits in found]))
            in_best.append(torch.stack([hits.any(-1).float().mean() for hits in found]))
        means = [torch.stack(one).mean(0) for one in (first, in_best, right)]
        return means[0].tolist(), means[1].tolist(), means[2].item()


def parse_arguments() -> argparse.Namespace:
    demo_model = Path(__file__).parent / "python-11m"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="of the processor (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=demo_model, help="the checkpoint's folder")
    parser.add_argument("--heads", type=int, default=3, help="number of heads (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=1, help="residual blocks of a head (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the heads (default: heads/ beside the weights)")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library, held_out_files = standard_library()
    files = [*library, *(file for package in PACKAGES for file in package_sources(package))]
    end = AutoTokenizer.from_pretrained(args.model).eos_token
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    corpus, held_out = (Stream(tokenizer, list(read(some[::STRIDE])), end=end) for some in (files, held_out_files))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager")
    model.to(device).requires_grad_(False)
    config = model.config.get_text_config(decoder=True)
    info = HeadsInfo(config.hidden_size, config.vocab_size, args.heads, args.layers, shares_output=True)
    folder = args.output or args.model / "heads"
    trainer = Trainer(model, MedusaHeads(info).to(device), 60 * args.minutes)
    rows = trainer.collect(corpus)
    steps, train_loss = trainer.train(rows, folder)
    save_heads(copy.deepcopy(trainer.heads).to(torch.bfloat16), folder)
    accuracy, in_best, base = trainer.measure(held_out.in_order(LENGTH, 16_000))
    report = Report(
        minutes=args.minutes,
        tokens=len(rows.hidden),
        steps=steps,
        passes=round(steps * ROWS / len(rows.hidden), 1),
        train_loss=round(train_loss, 3),
        held_out_accuracy=[round(share, 3) for share in accuracy],
        held_out_in_best=[round(share, 3) for share in in_best],
        base_accuracy=round(base, 3),
        parameters=sum(weight.numel() for weight in trainer.heads.parameters()),
        torch=torch.__version__,
    )
    (folder / "training.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    print(json.dumps(asdict(report), indent=2))


if __name__ == "__main__":
    main()
