"""Continues one prompt with transformers' own `generate`, for comparison; takes the settings of launch/generate.py.

    python launch/plain_generate.py model=smollm2 chat=true prompt="What is a prime number?" sampling=greedy

Prints one JSON object. Only greedy decoding is compared: sampling with a seed gives another text here than there.
"""

from __future__ import annotations

import json
import time
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM

from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.data.prompts import collect
from launch.generate import GenerateSettings
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import pick_device, pick_dtype
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.gguf import unpacked_folder


def run(settings: GenerateSettings) -> int:
    """Exit code 0. Raises ValueError for settings that cannot be used, OSError for a model that cannot be read."""
    (prompt, *others) = collect(settings)
    if others:
        raise ValueError(f"there are {len(others) + 1} prompts; give one")
    known = read_checkpoint_info(settings.model.path, settings.model.max_length)
    request = RequestBuilder(known, sampling=settings.sampling).build(prompt.prompt)
    if request.sampling.temperature:
        raise ValueError(f"temperature={request.sampling.temperature} samples; compare greedily, with sampling=greedy")
    torch.set_num_threads(settings.parallel.threads or torch.get_num_threads())
    device = pick_device(settings.model.device)
    dtype = pick_dtype(settings.model.dtype, device, known.config)
    model = AutoModelForCausalLM.from_pretrained(
        unpacked_folder(settings.model.path), dtype=dtype, use_safetensors=True
    ).eval()
    torch.nn.Module.to(model, device)
    _generate(model, request.prompt, 2)  # the first call of a process is slower
    began = time.perf_counter()
    tokens = _generate(model, request.prompt, settings.max_new_tokens or known.max_length - len(request.prompt))
    seconds = time.perf_counter() - began
    record = {"token_ids": tokens, "text": known.tokenizer.decode(tokens), "tokens_per_step": 1.0}
    print(json.dumps({**record, "tokens_per_s": round(len(tokens) / seconds, 3)}))
    return 0


@torch.inference_mode()
def _generate(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    inputs = torch.tensor([prompt], device=model.device)
    mask = torch.ones_like(inputs)
    output = cast(Any, model).generate(inputs, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
    return output[0, len(prompt) :].tolist()


def main() -> int:
    engine_settings.register("generate", GenerateSettings)
    return process.main("generate", GenerateSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
