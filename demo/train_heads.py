"""Trains Medusa heads for a checkpoint, on the demo model's training text and one CPU or GPU.

    python demo/train_heads.py --minutes 15
    python demo/train_heads.py --model FOLDER --heads 4 --layers 2 --output FOLDER/heads

The model stays as it is (Medusa-1, arXiv 2401.10774, section 2.2.1). The target of head h, from 0, at a token is the
model's own best token h + 1 tokens later, which is what drafts are checked against. Heads end in the model's own output
embedding, so they are small.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import PACKAGES, package_sources, read, standard_library
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from train import LONG_SHARE, SHORT, Stream, learning_rate
from transformers import AutoModelForCausalLM, PreTrainedModel

from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads

TOKENS_A_STEP = 1024
# Of the files, every so many: minutes of training see no more than these.
STRIDE = 4
MUON_RATE, ADAM_RATE = 0.03, 3e-3
# Weight of a head's loss in that of the head before it, as in the paper.
DECAY = 0.8
# Of each head's tokens, those among which the right one is looked for.
NUM_BEST = 6


@dataclass(frozen=True)
class Report:
    """What the training did. It is saved as training.json.

    processor_minutes: of these minutes, those in which the process really ran. held_out_accuracy: of each head, how
    often its best token is the model's own best token h + 1 tokens later. held_out_in_best: how often it is among the
    head's six best. base_accuracy: how often the model's best token is that of the text.
    """

    minutes: float
    processor_minutes: float
    steps: int
    tokens: int
    train_loss: float
    held_out_accuracy: list[float]
    held_out_in_best: list[float]
    base_accuracy: float
    parameters: int
    torch: str


class Trainer:
    """A frozen model and the heads that are trained for it."""

    def __init__(self, model: PreTrainedModel, heads: MedusaHeads):
        self.model, self.heads = model, heads
        self.output = model.get_output_embeddings()
        assert self.output is not None

    def states(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, D], and the model's logits [B, S, V], for the tokens [B, S]."""
        seen: list[Tensor] = []
        handle = self.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            with torch.no_grad():
                logits = self.model(input_ids=batch, use_cache=False).logits
        finally:
            handle.remove()
        return seen[0].detach(), logits.detach()

    def loss(self, batch: Tensor) -> Tensor:
        """The heads' losses, those further ahead with less weight."""
        hidden, logits = self.states(batch)
        total, targets = torch.zeros((), device=batch.device), logits.argmax(-1)
        for number, head in enumerate(self.heads.children()):
            ahead = number + 1
            predicted = self.output(head(hidden[:, :-ahead])).flatten(0, 1)
            total = total + DECAY**number * cross_entropy(predicted, targets[:, ahead:].flatten())
        return total

    @torch.no_grad()
    def measure(self, pieces: list[Tensor]) -> tuple[list[float], list[float], float]:
        """See Report: held_out_accuracy, held_out_in_best and base_accuracy, on pieces [1, S + 1] of text."""
        first, in_best, right = [], [], []
        for piece in pieces:
            hidden, logits = self.states(piece[:, :-1])
            best = logits.argmax(-1)
            right.append((best == piece[:, 1:]).float().mean())
            found = [
                self.output(head(hidden[:, :-ahead])).topk(NUM_BEST).indices == best[:, ahead:, None]
                for ahead, head in enumerate(self.heads.children(), 1)
            ]
            first.append(torch.stack([hits[..., 0].float().mean() for hits in found]))
            in_best.append(torch.stack([hits.any(-1).float().mean() for hits in found]))
        means = [torch.stack(one).mean(0) for one in (first, in_best, right)]
        return means[0].tolist(), means[1].tolist(), means[2].item()

    def train(self, stream: Stream, minutes: float) -> tuple[int, float]:
        """Trains for so many minutes; returns the number of steps and the mean loss of the last 50."""
        optimizers = self._optimizers()
        losses: list[float] = []
        bar = tqdm(total=round(minutes * 60), unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total} s {postfix}")
        started = time.monotonic()
        while (progress := (time.monotonic() - started) / (60 * minutes)) < 1.0:
            length = TOKENS_A_STEP if progress > 1.0 - LONG_SHARE else SHORT
            crops = stream.crops(length)[: TOKENS_A_STEP // length, :-1]
            loss = self.loss(crops.to(self.model.device))
            loss.backward()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * learning_rate(progress)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            bar.n = time.monotonic() - started
            bar.set_postfix_str(f"step {len(losses)}, loss {np.mean(losses[-50:]):.3f}", refresh=len(losses) % 20 == 0)
        bar.close()
        return len(losses), float(np.mean(losses[-50:]))

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        weights = [weight for weight in self.heads.parameters() if weight.ndim == 2]
        biases = [weight for weight in self.heads.parameters() if weight.ndim != 2]
        muon = torch.optim.Muon(weights, lr=MUON_RATE, momentum=0.95, weight_decay=0.02)
        adam = torch.optim.AdamW(biases, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        for optimizer in (muon, adam):
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        return [muon, adam]


def parse_arguments() -> argparse.Namespace:
    demo_model = Path(__file__).parent / "python-11m"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to train (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=demo_model, help="the checkpoint's folder")
    parser.add_argument("--heads", type=int, default=3, help="number of heads (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="residual blocks of a head (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the heads (default: heads/ beside the weights)")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library, held_out_files = standard_library()
    texts = [*read(library), *(text for package in PACKAGES for text in read(package_sources(package)))]
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    corpus, held_out = Stream(tokenizer, texts[::STRIDE]), Stream(tokenizer, list(read(held_out_files))[::STRIDE])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager")
    model.to(device).requires_grad_(False)
    config = model.config.get_text_config(decoder=True)
    info = HeadsInfo(config.hidden_size, config.vocab_size, args.heads, args.layers, shares_output=True)
    trainer = Trainer(model, MedusaHeads(info).to(device))
    steps, train_loss = trainer.train(corpus, args.minutes)
    folder = args.output or args.model / "heads"
    save_heads(copy.deepcopy(trainer.heads).to(torch.bfloat16), folder)
    pieces = [piece.to(device) for piece in held_out.in_order(SHORT, 30_000)]
    accuracy, in_best, base = trainer.measure(pieces)
    parameters = sum(weight.numel() for weight in trainer.heads.parameters())
    report = Report(
        minutes=args.minutes,
        processor_minutes=round(time.process_time() / 60, 1),
        steps=steps,
        tokens=steps * TOKENS_A_STEP,
        train_loss=round(train_loss, 3),
        held_out_accuracy=[round(share, 3) for share in accuracy],
        held_out_in_best=[round(share, 3) for share in in_best],
        base_accuracy=round(base, 3),
        parameters=parameters,
        torch=torch.__version__,
    )
    (folder / "training.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    print(json.dumps(asdict(report), indent=2))


if __name__ == "__main__":
    main()
