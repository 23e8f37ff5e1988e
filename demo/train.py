"""Trains the demo model, a small Llama on Python sources, on one CPU or GPU for a given number of minutes.

    make train-demo MINUTES=90
    python demo/train.py --minutes 30 --start demo/python-11m    # trains it further; the rate rises anew

Muon trains the hidden matrices, AdamW the rest. The learning rate rises, stays level, and falls linearly with the time
spent. The last tenth of the time uses long sequences, so that the whole context length has been trained.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import BOS, EOS, HELD_OUT, PACKAGES, package_sources, read, standard_library, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 2048
TOKENS_A_STEP = 8192
SHORT = 512
LONG_SHARE = 0.1
WARMUP_SHARE, DECAY_SHARE = 0.02, 0.5
MUON_RATE, ADAM_RATE = 0.02, 3e-3


@dataclass(frozen=True)
class Report:
    """What the training did, summed over all runs if one started from another. It is saved as training.json."""

    minutes: float
    steps: int
    tokens: int
    tokens_per_s: float
    corpus_tokens: int
    held_out_tokens: int
    train_loss: float
    held_out_loss: float
    held_out_bits_per_byte: float
    parameters: int
    device: str
    torch: str


def learning_rate(progress: float) -> float:
    """Returns the factor on the learning rates after a share `progress` of the time: up, level, down to zero."""
    return min(1.0, progress / WARMUP_SHARE, max(0.0, 1.0 - progress) / DECAY_SHARE)


def make_model(vocab_size: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # on a CPU its compiled matrix products beat the flash kernel's backward
    return model


def load_model(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def make_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(hidden, lr=MUON_RATE, momentum=0.95, weight_decay=0.02)
    adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


class Stream:
    """The token ids of a set of texts, one after another. Returns random crops of them, or consecutive pieces."""

    def __init__(self, tokenizer, texts: list[str], seed: int = 0, end: str | None = EOS):
        """end: the token after each text, if any."""
        encoded = tokenizer.encode_batch(texts)
        ending = [] if end is None else [tokenizer.token_to_id(end)]
        self.tokens = np.concatenate([np.array([*e.ids, *ending], dtype=np.int64) for e in encoded])
        self.num_bytes = sum(len(text.encode()) for text in texts)
        self.random = np.random.default_rng(seed)

    def crops(self, length: int) -> Tensor:
        """Returns [B, length + 1] token ids; B is chosen so that every batch trains on TOKENS_A_STEP tokens."""
        starts = self.random.integers(0, len(self.tokens) - length - 1, TOKENS_A_STEP // length)
        return torch.from_numpy(np.stack([self.tokens[s : s + length + 1] for s in starts]))

    def in_order(self, length: int, most: int) -> list[Tensor]:
        """Returns the first `most` tokens as consecutive [1, length + 1] pieces."""
        ends = range(length + 1, min(most, len(self.tokens)), length)
        return [torch.from_numpy(self.tokens[None, end - length - 1 : end]) for end in ends]


def loss_of(model, batch: Tensor) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, stream: Stream, device: str, most: int = 400_000) -> float:
    pieces = stream.in_order(SHORT, most)
    losses = [loss_of(model, torch.cat(pieces[i : i + 8]).to(device)).item() for i in range(0, len(pieces) - 7, 8)]
    return float(np.mean(losses))


def train(model: LlamaForCausalLM, stream: Stream, minutes: float, device: str) -> tuple[int, float]:
    """Trains in place for `minutes`; returns the number of steps and the mean loss of the last 50."""
    optimizers = make_optimizers(model)
    compiled_loss = torch.compile(loss_of, dynamic=False)
    losses: list[float] = []
    bar = tqdm(total=round(minutes * 60), unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total} s {postfix}")
    started = time.monotonic()
    while (progress := (time.monotonic() - started) / (60 * minutes)) < 1.0:
        length = CONTEXT if progress > 1.0 - LONG_SHARE else SHORT
        loss = compiled_loss(model, stream.crops(length).to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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


def save(model: LlamaForCausalLM, tokenizer, report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    GenerationConfig(bos_token_id=0, eos_token_id=1).save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(asdict(report), indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=90.0, help="how long to train (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=4096, help="tokens of the BPE (default: %(default)s)")
    parser.add_argument(
        "--start", type=Path, help="checkpoint folder of an earlier run to continue, with its tokenizer"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "python-11m", help="folder for the checkpoint"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library, held_out_files = standard_library()
    texts = list(read(library))
    for package in PACKAGES:
        texts.extend(read(package_sources(package)))
    if args.start:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        model = load_model(args.start)
        before = json.loads((args.start / "training.json").read_text())
    else:
        tokenizer = train_tokenizer(texts, args.vocab_size)
        model = make_model(args.vocab_size)
        before = {"minutes": 0.0, "steps": 0}
    corpus, held_out = Stream(tokenizer, texts, before["steps"]), Stream(tokenizer, list(read(held_out_files)))
    print(
        f"{len(corpus.tokens):,} tokens to train on, {len(held_out.tokens):,} held out ({', '.join(HELD_OUT)})",
        flush=True,
    )

    model = model.to(device)
    steps, train_loss = train(model, corpus, args.minutes, device)
    held_out_loss = mean_loss(model, held_out, device)
    tokens_a_byte = len(held_out.tokens) / held_out.num_bytes
    on_cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    report = Report(
        minutes=round(before["minutes"] + args.minutes, 1),
        steps=before["steps"] + steps,
        tokens=(before["steps"] + steps) * TOKENS_A_STEP,
        tokens_per_s=round(steps * TOKENS_A_STEP / (60 * args.minutes)),
        corpus_tokens=len(corpus.tokens),
        held_out_tokens=len(held_out.tokens),
        train_loss=round(train_loss, 3),
        held_out_loss=round(held_out_loss, 3),
        held_out_bits_per_byte=round(held_out_loss * tokens_a_byte / float(np.log(2)), 3),
        parameters=sum(p.numel() for p in model.parameters()),
        device=torch.cuda.get_device_name() if device == "cuda" else on_cpu,
        torch=torch.__version__,
    )
    save(model, tokenizer, report, args.output)
    print(json.dumps(asdict(report), indent=2))


if __name__ == "__main__":
    main()
