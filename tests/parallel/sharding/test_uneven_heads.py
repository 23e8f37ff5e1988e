"""Tensor parallelism of models whose heads, columns and tokens do not divide: tokens of transformers' `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore
from transformers import AutoConfig

from lp import Engine, Lookahead, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.kv_cache.contiguous import ContiguousCache
from lp.model.checkpoint import ModelSettings
from lp.model.exactness import UnsupportedArchitecture
from lp.model.quantization.model import empty_model
from lp.tree import chain
from parallel.build import MeshTopology
from parallel.comm.channel import Channel
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from parallel.sharding.slices import count_own_heads, deal_heads, shards, slices
from parallel.sharding.tensor import plan
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.parallel.ranks import run_ranks

# Query heads and key/value heads of each model.
MODELS: list[tuple[str, int, int]] = [
    ("llama", 9, 3),
    ("qwen3", 6, 2),
    ("mistral", 3, 1),
    ("starcoder2", 4, 1),  # biases
    ("gpt_neox", 5, 5),  # one projection for queries, keys and values, head by head
    ("qwen2", 7, 7),
    ("phi3", 9, 3),  # fused projections, whose outputs are gathered
    ("olmo2", 3, 1),  # norms over the whole width, after outputs are gathered
    ("gpt2", 5, 5),  # one projection, part by part
    ("mixtral", 6, 2),
    ("gpt_oss", 6, 2),
]
# The size of the groups in which four ranks hold a replica, or three of them.
DEGREES = (2, 3, 4)
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(12)]
NEW_TOKENS = 8
METHOD = Lookahead(3, 3, 3)


@dataclass
class Found:
    """What one rank found for one model. key_value_heads: those in its cache."""

    text: list[int]
    key_value_heads: int


def save(folder: Path, architecture: str, num_query: int, num_key_value: int, **changes: Any) -> Path:
    """A tiny model with these heads, whose other sizes do not divide either."""
    sizes: dict[str, Any] = {
        "intermediate_size": 70,
        "vocab_size": 299,
        "num_hidden_layers": 2,
        "hidden_size": 8 * num_query,
    }
    heads = {"num_attention_heads": num_query, "num_key_value_heads": num_key_value}
    if architecture == "gpt2":  # which has other names for them as well
        sizes |= {"n_embd": 8 * num_query, "n_layer": 2, "n_inner": 70, "n_head": num_query}
    if architecture in ("mixtral", "gpt_oss"):  # transformers' own products need experts whose rows are aligned
        sizes["intermediate_size"] = 72
    if architecture == "gpt_oss":
        sizes["layer_types"] = ["sliding_attention", "full_attention"]
    return save_checkpoint(folder, architecture, **{**sizes, **heads, **changes})


def decode(mesh: Mesh, channel: Channel, cases: list[tuple[int, str]]) -> dict[tuple[int, str], Found]:
    """Decodes with each of these models by tensor parallelism of this degree, as far as this rank takes part.

    As many replicas as four ranks have room for share the steps.
    """
    torch.set_num_threads(1)
    settings = ParallelSettings(exchange=ExchangeKind.gloo, timeout_s=60)
    store = open_store(mesh, settings.timeout_s)
    found = {}
    for degree in DEGREES:
        num_ranks = mesh.num_ranks // degree * degree
        if mesh.rank < num_ranks:
            placed = Mesh({"lp": num_ranks // degree, "tp": degree}, mesh.rank, num_ranks)
            for folder in [folder for wanted, folder in cases if wanted == degree]:
                place = MeshTopology(settings, placed, PrefixStore(f"{degree}{folder}", store))
                found[degree, folder] = decode_one(place, folder)
                place.close()
    return found


def decode_one(place: MeshTopology, folder: str) -> Found:
    engine = Engine.assemble(EngineSettings(ModelSettings(folder, device="cpu"), METHOD), place)
    sampling = Sampling(temperature=0.0, seed=0)
    text = engine.generate(PROMPT, sampling=sampling, stopping=Stopping(NEW_TOKENS)).token_ids
    cache = engine.checkpoint.model.make_cache(8)
    engine.checkpoint.model.forward(chain(PROMPT), cache, 1)
    assert isinstance(cache, ContiguousCache)
    return Found(text, cache.keys[0].shape[1])


@pytest.mark.parametrize("models", [MODELS[:2], pytest.param(MODELS[2:], marks=pytest.mark.slow)], ids=["few", "more"])
def test_text_is_that_of_generate_whatever_the_heads_and_the_ranks(
    models: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    folders = {model: save(tmp_path / "-".join(map(str, model)), *model) for model in models}
    cases = [(degree, str(folders[model])) for degree in DEGREES for model in models if degree <= model[1]]
    by_rank = run_ranks(decode, 4, cases, exchange="gloo", timeout_s=60)
    for (architecture, num_query, num_key_value), folder in folders.items():
        expected = generate_greedily(load_reference(folder), PROMPT, NEW_TOKENS, eos=[1])
        for degree in [degree for degree in DEGREES if degree <= num_query]:
            found = [rank[degree, str(folder)] for rank in by_rank if (degree, str(folder)) in rank]
            assert [one.text for one in found] == [expected] * (4 // degree * degree), (folder, degree)
            if architecture not in ("phi3", "olmo2"):
                held = [len(share.key_value) for share in deal_heads(num_query, num_key_value, degree)]
                assert [one.key_value_heads for one in found] == held * (4 // degree), (folder, degree)


@pytest.mark.parametrize("degree", [2, 3, 4, 9])
def test_modules_are_told_their_own_heads(degree: int, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(save(tmp_path, "llama", 9, 3))
    for rank, own in enumerate(deal_heads(9, 3, degree)):
        model = empty_model(config, torch.float32)
        styles = plan(model)
        with_number: Any = model.get_submodule("model.layers.1.self_attn")
        with_number.num_heads = 9  # as some models have it
        count_own_heads(model, styles, rank, degree)
        split = shards(model, styles, slices(model, styles, degree), rank)
        for layer in (0, 1):
            name = f"model.layers.{layer}.self_attn"
            attention: Any = model.get_submodule(name)
            assert attention.num_key_value_groups == len(own.query) // len(own.key_value)
            for projection, heads in {"q": own.query, "k": own.key_value, "v": own.key_value, "o": own.query}.items():
                shard = split[f"{name}.{projection}_proj.weight"]
                assert shard.ranges == (range(8 * heads.start, 8 * heads.stop),)
                assert shard.dim == (projection == "o")
        assert with_number.num_heads == len(own.query)
        assert not hasattr(model.get_submodule("model.layers.0.self_attn"), "num_heads")


def test_modules_that_gather_their_outputs_keep_all_heads(tmp_path: Path) -> None:
    model = empty_model(AutoConfig.from_pretrained(save(tmp_path, "phi3", 9, 3)), torch.float32)
    count_own_heads(model, plan(model), 0, 2)
    attention: Any = model.get_submodule("model.layers.0.self_attn")
    assert (attention.num_key_value_heads, attention.num_key_value_groups) == (3, 3)


@pytest.mark.parametrize(("degree", "most"), [(2, 0.54), (3, 0.334), (4, 0.271), (9, 0.14)])
def test_a_rank_holds_about_its_share_of_smollm2(degree: int, most: float) -> None:
    """The sizes of SmolLM2-135M. Two ranks hold 2 and 1 of 3 key/value heads, and half of all else."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
    )
    model = empty_model(config, torch.float32)
    styles = plan(model)
    cut = slices(model, styles, degree)
    held = []
    for rank in range(degree):
        split = shards(model, styles, cut, rank)
        numbers = {name: weight.numel() for name, weight in model.named_parameters()}
        for name, shard in split.items():
            if name in numbers:
                numbers[name] = (
                    numbers[name] * sum(map(len, shard.ranges)) // model.get_parameter(name).shape[shard.dim]
                )
        held.append(sum(numbers.values()))
    assert sum(held) >= model.num_parameters()
    assert 1 / degree < max(held) / model.num_parameters() < most


def test_weights_of_all_heads_are_refused_by_name(tmp_path: Path) -> None:
    """Each head of this model has a norm of its own, which the plan leaves out."""
    config = AutoConfig.from_pretrained(save(tmp_path, "cohere", 4, 2, use_qk_norm=True))
    model = empty_model(config, torch.float32)
    message = r"Cohere.* has a weight of all heads, model\.layers\.0\.self_attn\.q_norm\.weight, .*; use parallel=lp"
    with pytest.raises(UnsupportedArchitecture, match=message):
        count_own_heads(model, plan(model), 0, 2)


def test_columns_of_unknown_heads_are_refused_unless_they_divide(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(save(tmp_path, "llama", 4, 2))
    model = empty_model(config, torch.float32)
    model.set_submodule("model.layers.0.self_attn.v_proj", torch.nn.Linear(32, 24, device="meta"))
    styles = plan(model)
    assert slices(model, styles, 2)["model.layers.0.self_attn.v_proj"] == [range(12), range(12, 24)]
    message = (
        r"4 query heads and 2 key/value heads of 8, which parallel\.tp=3 .* the 24 columns of model\.layers\.0.*lp"
    )
    with pytest.raises(UnsupportedArchitecture, match=message):
        slices(model, styles, 3)


def test_a_module_with_less_columns_than_ranks_is_named(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(save(tmp_path, "llama", 4, 2, intermediate_size=3))
    model = empty_model(config, torch.float32)
    message = (
        r"tp=4 is more than the 3 outputs of model\.layers\.0\.mlp\.gate_proj: use parallel\.tp=3 or less, or .*lp"
    )
    with pytest.raises(ValueError, match=message):
        slices(model, plan(model), 4)
