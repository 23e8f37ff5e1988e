"""Tensor parallelism on real ranks: the tokens of transformers' greedy `generate`, with a share of the memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import parse
from transformers import AutoConfig

from benchmarks.families.checkpoints import save_family
from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.exactness import UnsupportedArchitecture
from lp.model.memory import num_weight_bytes
from lp.model.quantization.model import empty_model
from lp.model.weight_files import Shard
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from lp.tree import TreeBuilder
from parallel.comm.base import Collectives, LocalCollectives
from parallel.comm.channel import Channel
from parallel.comm.connect import connect_axis
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings
from parallel.runners.lookahead import LookaheadParallel
from parallel.sharding.slices import shards, slices
from parallel.sharding.tensor import check_degree, plan, read_sharded
from tests.models import SIZES, generate_greedily, load_reference, save_checkpoint
from tests.parallel.ranks import run_ranks

CORE_ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma2"]
OTHER_ARCHITECTURES = [
    "qwen2", "starcoder2", "gpt_neox", "olmo2", "phi3", "granite", "cohere", "gemma3", "gpt2", "mixtral", "qwen3_moe",
    "gpt_oss",
]  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "llama, tied": {"tie_word_embeddings": True, "pad_token_id": 290},  # the last rank holds this token
    "llama, odd vocabulary": {"vocab_size": 299},
}
# All-reduces and all-gathers of a layer, where it has others than two all-reduces: some plans give every rank the whole
# output of a module.
COLLECTIVES_PER_LAYER = {"olmo2": 3 + 1 + 1, "phi3": 2 + 2}
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(40)]
NEW_TOKENS = 12
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11)
RUNS: list[tuple[DecodingMethod, Sampling]] = [
    (Autoregressive(), GREEDY),
    (Lookahead(5, 4, 5), GREEDY),
    (Lookahead(5, 4, 5), SAMPLED),
]


@dataclass
class Found:
    """What one rank found for one model.

    texts: tokens of each run. logits: checksum of a tree's logits. num_steps, num_collectives: counted in the first
    run.
    """

    texts: list[list[int]]
    logits: int
    num_steps: int
    num_collectives: int
    num_weight_bytes: int
    num_cache_bytes: int


def decode(mesh: Mesh, channel: Channel, folders: list[str], exchange: str, tp: int) -> list[Found]:
    torch.set_num_threads(1)
    placed = Mesh({"lp": mesh.num_ranks // tp, "tp": tp}, mesh.rank, mesh.num_ranks)
    collectives = connect_axis(ParallelSettings(exchange=ExchangeKind(exchange), timeout_s=60), placed, "tp")
    return [decode_one(channel, folder, collectives) for folder in folders]


def decode_one(channel: Channel, folder: str, collectives: Collectives) -> Found:
    checkpoint = load(ModelSettings(path=folder, device="cpu"), reader=read_sharded(collectives))
    runner = LookaheadParallel(SingleDevice(checkpoint.model, 64), channel, collectives.num_ranks)
    engine = Engine(checkpoint, runner, fingerprints=True)
    completions, traffic = [], []
    for method, sampling in RUNS:
        before = collectives.traffic.num_collectives
        completions.append(engine.generate(PROMPT, max_new_tokens=NEW_TOKENS, decode=method, sampling=sampling))
        traffic.append(collectives.traffic.num_collectives - before)
    logits, num_cache_bytes = answer_tree(checkpoint.model)
    return Found(
        [completion.token_ids for completion in completions],
        logits,
        completions[0].stats.steps,
        traffic[0],
        num_weight_bytes(checkpoint.model.model),
        num_cache_bytes,
    )


def answer_tree(model: CausalModel) -> tuple[int, int]:
    """Checksum of the logits of all nodes of a small tree, and bytes of its cache."""
    builder = TreeBuilder(5)
    for token in (9, 30, 31):
        builder.add(token, 0)
    tree, cache = builder.build(), model.make_cache(8)
    return zlib.crc32(model.forward(tree, cache, len(tree)).numpy().tobytes()), cache.num_bytes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models whose heads divide by four."""
    return {
        name: save_checkpoint(
            tmp_path_factory.mktemp("model"),
            name.partition(",")[0],
            **{"num_key_value_heads": 4, **VARIANTS.get(name, {})},
        )
        for name in [*CORE_ARCHITECTURES, *OTHER_ARCHITECTURES, *VARIANTS]
    }


@pytest.mark.parametrize(
    ("names", "num_ranks", "tp", "exchange"),
    [
        (["llama"], 2, 2, "gloo"),
        pytest.param(CORE_ARCHITECTURES, 2, 2, "gloo", marks=pytest.mark.exhaustive),
        pytest.param(CORE_ARCHITECTURES, 4, 4, "gloo", marks=pytest.mark.exhaustive),
        pytest.param(CORE_ARCHITECTURES[-1:], 4, 4, "gloo", marks=pytest.mark.slow),
        pytest.param(CORE_ARCHITECTURES, 4, 2, "gloo", marks=pytest.mark.exhaustive),  # two replicas of two ranks each
        pytest.param(CORE_ARCHITECTURES[:1], 4, 2, "gloo", marks=pytest.mark.slow),
        pytest.param([*OTHER_ARCHITECTURES, *VARIANTS], 2, 2, "shm", marks=pytest.mark.slow),
    ],
    ids=["one", "2", "all, 4", "4", "all, 2x2", "2x2", "others"],
)
def test_text_is_that_of_one_device_with_a_share_of_its_memory(
    names: list[str], num_ranks: int, tp: int, exchange: str, folders: dict[str, Path]
) -> None:
    paths = [str(folders[name]) for name in names]
    by_rank = run_ranks(decode, num_ranks, paths, exchange, tp, exchange=exchange, timeout_s=60)
    for name, *found in zip(names, *by_rank, strict=True):
        whole, texts = on_one_device(folders[name])
        assert [rank.texts for rank in found] == [texts] * num_ranks, name
        assert len({rank.logits for rank in found}) == 1, name
        check_communication(name, found[0], whole)
        check_memory(name, found, whole, tp)


@pytest.mark.slow
def test_layers_of_several_kinds_are_split_each_by_its_own_heads(tmp_path: Path) -> None:
    folders = [
        save_checkpoint(tmp_path / name, name) for name in ("gemma4", "gemma4_moe", "deepseek_v3", "deepseek_v2")
    ]
    by_rank = run_ranks(decode, 2, [str(folder) for folder in folders], "shm", 2, exchange="shm", timeout_s=60)
    for folder, *found in zip(folders, *by_rank, strict=True):
        assert [rank.texts for rank in found] == [on_one_device(folder)[1]] * 2, folder.name


def on_one_device(folder: Path) -> tuple[CausalModel, list[list[int]]]:
    """The whole model, and the tokens of each run."""
    greedy = generate_greedily(load_reference(folder), PROMPT, NEW_TOKENS, eos=[1])
    engine = Engine.from_pretrained(str(folder), device="cpu")
    sampled = engine.generate(PROMPT, max_new_tokens=NEW_TOKENS, decode=Autoregressive(), sampling=SAMPLED)
    return engine.checkpoint.model, [greedy if sampling is GREEDY else sampled.token_ids for _, sampling in RUNS]


def check_communication(name: str, found: Found, whole: CausalModel) -> None:
    """A step has two all-reduces for each layer, one for the embedding, and one all-gather of the logits."""
    per_step = whole.num_layers * COLLECTIVES_PER_LAYER.get(name, 2) + 2
    assert found.num_collectives == found.num_steps * per_step, name


def check_memory(name: str, found: list[Found], whole: CausalModel, degree: int) -> None:
    """A rank holds its share of the cache and of all matrices but for those of positions and routers. It holds norms,
    and some biases, as a whole.
    """
    replicated = sum(
        weight.nbytes
        for name, weight in whole.model.named_parameters()
        if weight.dim() == 1 or name.endswith(("wpe.weight", "mlp.gate.weight", "router.weight", "down_proj_bias"))
    )
    share = (num_weight_bytes(whole.model) - replicated) / degree
    row_of_zeros = SIZES["hidden_size"] * 4  # an embedding of a part of the vocabulary has one
    held = [one.num_weight_bytes for one in found[:degree]]
    assert share <= sum(held) / degree <= share + replicated + row_of_zeros, name
    assert max(held) < 1.03 * min(held) + replicated, name
    if name not in COLLECTIVES_PER_LAYER:
        assert found[0].num_cache_bytes == answer_tree(whole)[1] / degree, name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_a_rank_holds_its_share_of_a_model_of_real_size(degree: int, tied: bool) -> None:
    """In Llama 3.2 1B, the plan splits all weights except the norms."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=tied,
    )
    check_degree(config, degree)
    model = empty_model(config, torch.bfloat16)
    styles = plan(model)
    split = shards(model, styles, slices(model, styles, degree), 0)
    sizes = {name: weight.nbytes for name, weight in model.named_parameters()}
    held = sum(size / degree if name in split else size for name, size in sizes.items())
    assert 1 / degree <= held / sum(sizes.values()) < 1.001 / degree


@pytest.mark.parametrize(
    ("architecture", "degree", "changes", "message"),
    [
        (
            "llama",
            5,
            {},
            r"parallel\.tp=5 is more than the 4 attention heads of Llama.*: use parallel\.tp=4 or less, or parallel=lp",
        ),
        (
            "llama",
            2,
            {"num_key_value_heads": 3},
            r"LlamaForCausalLM has 4 attention heads, which its 3 key/value heads cannot share equally: correct num_at",
        ),
        ("bloom", 2, {}, r"Bloom\w* has no tensor-parallel plan; use parallel=lp"),
    ],
)
def test_models_that_cannot_be_split_are_refused_by_number(
    architecture: str, degree: int, changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(save_checkpoint(tmp_path, architecture))
    config.update(changes)
    with pytest.raises(ValueError, match=message):
        check_degree(config, degree)


class OneOfTwo(LocalCollectives):
    """The first of two ranks, without the other: enough to read a part of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ranks = 2


def test_experts_with_norms_are_refused_by_name(tmp_path: Path) -> None:
    model = empty_model(AutoConfig.from_pretrained(save_checkpoint(tmp_path, "mixtral")), torch.float32)
    model.get_submodule("model.layers.1.mlp.experts").post_expert_norm = torch.nn.RMSNorm(32)  # as in Muse Spark
    with pytest.raises(UnsupportedArchitecture, match=r"MixtralFor\w+ splits .*experts in the style .*parallel=lp"):
        plan(model)


def test_the_language_model_is_split_that_a_model_of_images_has(tmp_path: Path) -> None:
    model = empty_model(AutoConfig.from_pretrained(save_family("gemma3", tmp_path)), torch.float32)
    styles = plan(model)
    split = {name.rpartition(".layers.")[0] for name in styles if ".layers." in name}
    assert split == {"model.language_model"}
    assert "lm_head" in styles or parse(transformers.__version__) < parse("5.20")


def test_a_rank_holds_the_sinks_of_its_heads_and_its_part_of_experts(tmp_path: Path) -> None:
    """Gates and projections lie in turns, and the bias of what is summed is whole."""
    model = empty_model(AutoConfig.from_pretrained(save_checkpoint(tmp_path, "gpt_oss")), torch.float32)
    styles = plan(model)
    split = shards(model, styles, slices(model, styles, 2), 1)
    assert split["model.layers.0.self_attn.sinks"] == Shard(0, (range(2, 4),))
    layer = "model.layers.0.mlp.experts"
    assert split[f"{layer}.gate_up_proj"] == Shard(2, (range(32, 64),))
    assert split[f"{layer}.gate_up_proj_bias"] == Shard(1, (range(32, 64),))
    assert split[f"{layer}.down_proj"] == Shard(1, (range(16, 32),))
    assert f"{layer}.down_proj_bias" not in split


@pytest.mark.parametrize(
    ("changed_plan", "message"),
    [
        ({"layers.*.mlp.up_proj": "diagonal"}, r"splits model\.layers\.0\.mlp\.up_proj in the style 'diagonal'"),
        ({"layers.*.input_layernorm": "colwise"}, r"splits model\.layers\.0\.input_layernorm in the style 'colwise'"),
        ({"layers.*.mlp.up_proj.weight": "local"}, r"splits model\.layers\.0\.mlp\.up_proj\.weight in the style 'loc"),
        ({"blocks.*.up": "colwise"}, r"has none of the modules that its tensor-parallel plan names"),
    ],
)
def test_a_plan_that_is_not_understood_is_refused(
    changed_plan: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AutoConfig.from_pretrained(save_checkpoint(tmp_path, "llama"))
    monkeypatch.setattr(type(config), "base_model_tp_plan", changed_plan)
    with pytest.raises(UnsupportedArchitecture, match=rf"LlamaForCausalLM {message}.*parallel=lp"):
        plan(empty_model(config, torch.float32))


def test_the_embedding_is_split_with_the_head_whatever_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of transformers name the embedding in the plans of models whose head is tied to it."""
    config = AutoConfig.from_pretrained(save_checkpoint(tmp_path, "llama", tie_word_embeddings=True))
    changed_plan = {**(config.base_model_tp_plan or {}), "embed_tokens": "embedding_rowwise"}
    monkeypatch.setattr(type(config), "base_model_tp_plan", changed_plan)
    model = empty_model(config, torch.float32)
    styles = plan(model)
    split = shards(model, styles, slices(model, styles, 2), 1)
    assert split["model.embed_tokens.weight"] == split["lm_head.weight"] == Shard(0, (range(150, 300),))
