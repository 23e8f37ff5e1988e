"""Fine-tunes a causal model so that Jacobi decoding needs fewer steps (CLLM: Kou et al. 2024, arXiv 2403.00835).

    python demo/train_consistency.py --output python-11m-jacobi
    python demo/train_consistency.py --model FOLDER --prompts prompts.jsonl --output FOLDER-jacobi

First the model's own Jacobi trajectories on the prompts are collected. Then the model learns to give, from any iterate
of a block, what it gives from the block's fixed point (the global consistency loss), and still to write the text that
it wrote before (the autoregressive loss). The result is an ordinary checkpoint folder; tokens per step of decode=jacobi
before and after are printed and kept in consistency.json beside it. After an interruption, the same command goes on
from what OUTPUT/unfinished holds.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from tqdm import tqdm
from training_prompts import read_crops
from trajectories import Trajectories, collect, packed_mask
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from unfinished import Recipe, Unfinished

from lp import Autoregressive, Engine, Jacobi, Sampling

COLLECTED_AT_ONCE = 32


def losses(
    model: PreTrainedModel, tokens_BT: Tensor, noisy_BL: Tensor, mask: Tensor, eos: list[int]
) -> tuple[Tensor, Tensor]:
    """The global consistency loss and the autoregressive loss, means over the texts' new tokens.

    noisy_BL: an iterate of each block. mask: see `packed_mask`. Tokens after the end of a text do not count. The model
    is called once: its answers to the text itself are those that the iterates' answers should equal.
    """
    length = noisy_BL.shape[1]
    text = tokens_BT.shape[1]
    places = torch.cat([torch.arange(text), torch.arange(text - length, text)])[None]
    mask = mask[None, None].expand(len(tokens_BT), -1, -1, -1)
    logits = model(
        input_ids=torch.cat([tokens_BT, noisy_BL], 1).to(model.device),
        position_ids=places.to(model.device),
        attention_mask=mask.to(model.device),
        use_cache=False,
        logits_to_keep=2 * length + 1,
    ).logits.float()
    new_BL = tokens_BT[:, text - length :].to(model.device)
    ends = torch.isin(new_BL, torch.tensor(eos, device=model.device)).long()
    counts = (ends.cumsum(1) - ends == 0).float()
    right = log_softmax(logits[:, 1 : length + 1].detach(), -1)
    given = log_softmax(logits[:, length + 1 :], -1)
    apart = kl_div(given, right, reduction="none", log_target=True).sum(-1)
    plain = cross_entropy(logits[:, :length].transpose(1, 2), new_BL, reduction="none")
    return (apart * counts).sum() / counts.sum(), (plain * counts).sum() / counts.sum()


def collect_all(model: PreTrainedModel, crops: Tensor, recipe: Recipe, kept: Unfinished) -> Trajectories:
    """The trajectories of all prompts. Those that an interrupted run has collected are read."""
    parts = []
    for number, prompts in enumerate(tqdm(crops.split(COLLECTED_AT_ONCE), desc="trajectories", unit="batch")):
        path = kept.trajectories(number)
        if not path.exists():
            generator = torch.Generator().manual_seed(recipe.seed + number)
            collect(model, prompts.to(model.device), recipe.blocks, recipe.block, generator).save(path)
        parts.append(Trajectories.load(path))
    return Trajectories.join(parts)


def train(
    model: PreTrainedModel, found: Trajectories, recipe: Recipe, kept: Unfinished, save_every: int
) -> dict[str, float]:
    """Trains in place, from the step at which an interrupted run ended. Returns the losses of the last step."""
    eos = model.generation_config.eos_token_id
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    mask = packed_mask(recipe.prompt_tokens, recipe.blocks, recipe.block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)
    begin = kept.load(model, optimizer)
    told: dict[str, float] = {}
    bar = tqdm(range(begin, recipe.steps), initial=begin, total=recipe.steps, desc="training", unit="step")
    for step in bar:
        draw = torch.Generator().manual_seed(recipe.seed + 1_000_003 * (step + 1))  # the same however often we stopped
        texts = torch.randint(len(found.tokens_BT), (recipe.batch,), generator=draw)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            consistency, plain = losses(model, found.tokens_BT[texts], found.some_iterate(texts, draw), mask, ends)
        (consistency + recipe.ar_weight * plain).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told = {"consistency_loss": round(consistency.item(), 4), "autoregressive_loss": round(plain.item(), 4)}
        bar.set_postfix(told, refresh=False)
        if (step + 1) % save_every == 0:
            kept.save(model, optimizer, step + 1)
    return told


@torch.no_grad()
def mean_loss(model: PreTrainedModel, crops: Tensor) -> float:
    """Cross-entropy per token of texts that nobody trained on."""
    parts = [
        cross_entropy(
            model(input_ids=part[:, :-1].to(model.device)).logits.transpose(1, 2).float(), part[:, 1:].to(model.device)
        ).item()
        * len(part)
        for part in crops.split(8)
    ]
    return round(sum(parts) / len(crops), 4)


def measure(folder: Path, prompts: list[list[int]], windows: list[int], max_new_tokens: int) -> dict[str, float]:
    """Tokens per step of decode=jacobi, by window. Raises ValueError if a text is not that of plain decoding."""
    engine = Engine.from_pretrained(str(folder), "float32", "cpu", compile="off", step_times="off", index="off")
    greedy = {"sampling": Sampling(temperature=0.0, seed=0), "max_new_tokens": max_new_tokens}
    steps = dict.fromkeys(windows, 0)
    tokens = 0
    for prompt in tqdm(prompts, desc=f"tokens per step of {folder.name}", unit="prompt"):
        expected = engine.generate(prompt, decode=Autoregressive(), **greedy).token_ids
        tokens += len(expected)
        for window in windows:
            found = engine.generate(prompt, decode=Jacobi(window), **greedy)
            if found.token_ids != expected:
                raise ValueError(f"decode=jacobi with a window of {window} changed a text of {folder}")
            steps[window] += found.stats.steps
    return {str(window): round(tokens / number, 3) for window, number in steps.items()}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "python-11m", help="checkpoint folder")
    parser.add_argument("--output", type=Path, required=True, help="folder for the new checkpoint")
    parser.add_argument(
        "--prompts", type=Path, help="JSONL file with a text under `prompt` in each line (default: Python sources)"
    )
    numbers = {
        "texts": (512, "prompts to collect trajectories on"),
        "prompt-tokens": (48, "tokens of a prompt; longer ones are cut, shorter ones left out"),
        "blocks": (6, "blocks of each text"),
        "block": (16, "tokens of a block"),
        "steps": (400, "training steps"),
        "batch": (16, "texts of a training step"),
        "held-out": (20, "prompts to measure tokens per step on, which are not trained on"),
        "save-every": (25, "training steps between two savings"),
    }
    for name, (default, told) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{told} (default %(default)s)")
    parser.add_argument("--rate", type=float, default=3e-4, help="highest learning rate (default %(default)s)")
    parser.add_argument(
        "--ar-weight", type=float, default=1.0, help="weight of the autoregressive loss (default %(default)s)"
    )
    parser.add_argument(
        "--windows", type=int, nargs="+", default=[8, 16], help="windows to measure with (default 8 16)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads that torch uses (default %(default)s)")
    arguments = parser.parse_args()
    for name in [*(name.replace("-", "_") for name in numbers), "threads", "rate"]:
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {getattr(arguments, name)}")
    if arguments.block < 2 or min(arguments.windows) < 1:
        parser.error("--block must be at least 2 and --windows at least 1")
    if arguments.output.resolve() == arguments.model.resolve():
        parser.error("--output must not be the folder of --model, which is kept as it is")
    return arguments


def load(folder: Path, length: int) -> PreTrainedModel:
    """The model in float32. Raises ValueError if it cannot be read or its context is shorter than `length` tokens."""
    if not (folder / "config.json").exists():
        raise ValueError(f"--model {folder} is no checkpoint folder: it has no config.json")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True
    )
    context = model.config.get_text_config(decoder=True).max_position_embeddings
    if length > context:
        raise ValueError(f"prompts and blocks have {length} tokens, more than the model's context of {context}")
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def run(arguments: argparse.Namespace) -> None:
    """Raises ValueError with a message for the user, OSError."""
    new_tokens = arguments.blocks * arguments.block
    model = load(arguments.model, arguments.prompt_tokens + new_tokens)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    names = ("texts", "prompt_tokens", "blocks", "block", "steps", "batch", "rate", "ar_weight", "seed")
    recipe = Recipe(arguments.model.resolve().name, **{name: getattr(arguments, name) for name in names})
    crops, held_out = read_crops(tokenizer, arguments.prompts, recipe.prompt_tokens, recipe.texts, arguments.held_out)
    kept = Unfinished(arguments.output / "unfinished", recipe)
    found = collect_all(model, crops, recipe, kept)
    report = {**asdict(recipe), "calls_of_a_block": round(found.calls_BK.float().mean().item(), 2)}
    report["held_out_loss_before"] = mean_loss(model, held_out)
    report |= train(model, found, recipe, kept, arguments.save_every)
    report["held_out_loss"] = mean_loss(model, held_out)
    dtype = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto").dtype
    model.to(dtype).save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    for key, folder in {"tokens_per_step_before": arguments.model, "tokens_per_step": arguments.output}.items():
        report[key] = measure(folder, held_out.tolist(), arguments.windows, new_tokens)
    (arguments.output / "consistency.json").write_text(json.dumps(report, indent=1) + "\n")
    shutil.rmtree(kept.folder)
    print(json.dumps(report, indent=1))


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    try:
        run(arguments)
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from here") from None


if __name__ == "__main__":
    main()
