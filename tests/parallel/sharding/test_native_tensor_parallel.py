"""Tensor parallelism in compiled programs on a CPU.

It gives the tokens of `generate`, whatever the split, the threads and the way to the other ranks, and names a rank that
is lost in the middle of a step.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lp import Autoregressive, Engine, Jacobi, Lookahead, Sampling
from lp.model import compilation
from lp.model.checkpoint import Invariance, ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu import make
from lp.model.cpu.forward import NativeForward
from lp.model.program.record import Inexpressible
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from lp.tree import chain
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.comm.connect import connect_axis
from parallel.errors import RankLost
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings
from parallel.runners.lookahead import LookaheadParallel
from parallel.sharding.tensor import read_sharded
from tests.models import LATENT, generate_greedily, load_reference, save_checkpoint
from tests.parallel.ranks import run_ranks, run_ranks_to_end

PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(40)]
NEW_TOKENS = 12
METHODS: list[DecodingMethod] = [Autoregressive(), Lookahead(5, 4, 5), Jacobi()]
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True, "pad_token_id": 290},
    "llama, uneven": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 299},
    "qwen2": {},  # biases
    "gemma2": {},  # windows, softcaps, scaled embeddings
    "phi3": {},  # modules whose whole output each rank gets
    "olmo2": {},
    "starcoder2": {},  # a bias after the sum
    "cohere": {},  # attention and MLP side by side
    "gpt2": {},  # queries, keys and values in one weight
    "mixtral": {},  # experts
    "qwen3_moe": {},
    "gpt_oss": {},  # sinks, experts with biases
    "deepseek_v2": {},  # latent numbers, which every rank has
    "glm4_moe_lite": LATENT,
    "minicpm3": LATENT,
}
# Those that no other case of the test of texts runs.
OTHERS = [name for name in VARIANTS if name.partition(",")[0] not in ("llama", "phi3", "starcoder2", "gemma2")]


def connected(mesh: Mesh, exchange: str, tp: int = 0) -> Collectives:
    tp = tp or mesh.num_ranks
    placed = Mesh({"lp": mesh.num_ranks // tp, "tp": tp}, mesh.rank, mesh.num_ranks)
    return connect_axis(ParallelSettings(exchange=ExchangeKind(exchange), timeout_s=30), placed, "tp")


def load_compiled(folder: str, group: Collectives, dtype: str = "float32", **settings: Any) -> Any:
    compiled = ModelSettings(folder, dtype, "cpu", compile=CompileMode.on, **settings)
    return load(compiled, reader=read_sharded(group), group=group)


@dataclass
class Found:
    """The tokens by each method, a checksum of logits, and whether rows had the same logits in two steps."""

    texts: list[list[int]]
    logits: int
    is_invariant: bool
    num_collectives: int
    bytes_sent: int


def decode(
    mesh: Mesh, channel: Channel, folders: list[str], exchange: str, dtype: str, num_threads: int, tp: int = 0
) -> list[Found]:
    torch.set_num_threads(num_threads)
    group = connected(mesh, exchange, tp)
    return [decode_one(channel, folder, group, dtype) for folder in folders]


def decode_one(channel: Channel, folder: str, group: Collectives, dtype: str) -> Found:
    checkpoint = load_compiled(folder, group, dtype)
    assert isinstance(checkpoint.model.fast, NativeForward)
    engine = Engine(checkpoint, LookaheadParallel(SingleDevice(checkpoint.model, 64), channel, group.num_ranks))
    greedy = Sampling(temperature=0.0, seed=3)
    texts = [
        engine.generate(PROMPT, max_new_tokens=NEW_TOKENS, decode=one, sampling=greedy).token_ids for one in METHODS
    ]
    model, cache = checkpoint.model, checkpoint.model.make_cache(64)
    many = model.forward(chain(PROMPT), cache, len(PROMPT))
    before = group.traffic.num_collectives, group.traffic.bytes_sent
    few = model.forward(chain(PROMPT[:3]), model.make_cache(3), 3)
    sent = group.traffic.num_collectives - before[0], group.traffic.bytes_sent - before[1]
    return Found(texts, zlib.crc32(many.numpy().tobytes()), torch.equal(few, many[:3]), *sent)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: save_checkpoint(
            tmp_path_factory.mktemp("model"), name.partition(",")[0], **{"num_key_value_heads": 4, **changes}
        )
        for name, changes in VARIANTS.items()
    }


@pytest.mark.parametrize(
    ("names", "num_ranks", "exchange", "num_threads", "tp"),
    [
        (["llama", "llama, tied"], 2, "shm", 1, 2),
        pytest.param(OTHERS, 2, "shm", 1, 2, marks=pytest.mark.slow),
        pytest.param(["llama, uneven"], 3, "shm", 1, 3, marks=pytest.mark.slow),
        pytest.param(["llama, uneven", "phi3"], 3, "shm", 2, 3, marks=pytest.mark.exhaustive),
        pytest.param(["phi3"], 2, "gloo", 2, 2, marks=pytest.mark.slow),
        pytest.param(["starcoder2"], 4, "shm", 1, 4, marks=pytest.mark.slow),
        pytest.param(["gemma2"], 4, "shm", 1, 2, marks=pytest.mark.slow),
    ],
    ids=["some", "others", "3", "3, threads", "gloo", "4", "lp x tp"],
)
def test_text_is_that_of_generate(
    names: list[str], num_ranks: int, exchange: str, num_threads: int, tp: int, folders: dict[str, Path]
) -> None:
    paths = [str(folders[name]) for name in names]
    by_rank = run_ranks(decode, num_ranks, paths, exchange, "float32", num_threads, tp, exchange=exchange, timeout_s=60)
    for name, *found in zip(names, *by_rank, strict=True):
        own = generate_greedily(load_reference(folders[name]), PROMPT, NEW_TOKENS, eos=[1])
        for rank in found:
            assert rank.texts == [own] * len(METHODS), name
            assert rank.is_invariant, name
        assert len({rank.logits for rank in found}) == 1, name


@pytest.mark.slow
def test_in_bfloat16_all_methods_give_one_text_and_rows_do_not_depend_on_others(folders: dict[str, Path]) -> None:
    names = ["gemma2", "qwen2"]
    by_rank = run_ranks(decode, 2, [str(folders[name]) for name in names], "shm", "bfloat16", 1, timeout_s=60)
    for name, *found in zip(names, *by_rank, strict=True):
        assert len({str(text) for rank in found for text in rank.texts}) == 1, name
        assert all(rank.is_invariant for rank in found), name


def test_a_step_sums_twice_in_a_layer_once_for_the_embedding_and_gathers_once(folders: dict[str, Path]) -> None:
    """Numbers of the step's 3 rows are sent in float32."""
    for (found,) in run_ranks(decode, 2, [str(folders["llama"])], "shm", "float32", 1):
        config = load_reference(folders["llama"]).config
        assert found.num_collectives == 2 * config.num_hidden_layers + 2
        numbers = (2 * config.num_hidden_layers + 1) * config.hidden_size + config.vocab_size // 2
        assert found.bytes_sent == 3 * 4 * numbers


def long_rows(mesh: Mesh, channel: Channel, folder: str) -> int:
    """Runs a prompt whose rows take several rounds of the shared memory, in two threads."""
    torch.set_num_threads(2)
    group = connected(mesh, "shm")
    model = load_compiled(folder, group).model
    slots = group.shared_slots
    assert slots is not None
    width = model.model.config.hidden_size
    tokens = [token % 40 + 2 for token in range(slots.slot_bytes // 4 // width + 5)]
    before = group.round
    logits = model.forward(chain(tokens), model.make_cache(len(tokens)), len(tokens))
    assert group.round - before > 2 * model.num_layers + 2  # more rounds than collectives
    own = load_reference(Path(folder))(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits, own, rtol=1e-3, atol=1e-3)
    return zlib.crc32(logits.numpy().tobytes())


@pytest.mark.slow
def test_what_does_not_fit_the_shared_memory_goes_in_rounds(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "llama", hidden_size=256, max_position_embeddings=2048)
    assert len(set(run_ranks(long_rows, 2, str(folder), timeout_s=60))) == 1


def lose_a_rank(mesh: Mesh, channel: Channel, folder: str) -> tuple[tuple[int, ...], float]:
    """Whom a rank misses, and how long it took, when the last rank ends between two collectives of a step."""
    group = connected(mesh, "shm")
    model = load_compiled(folder, group).model
    cache = model.make_cache(64)
    model.forward(chain(PROMPT), cache, 1)
    if mesh.rank == mesh.num_ranks - 1:
        time.sleep(0.3)  # the others are in the step by then
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        model.forward(chain(PROMPT[:1]), cache, 1)
    except RankLost as error:
        return error.ranks, time.monotonic() - began
    raise AssertionError("the step ended without a rank")


def test_a_rank_that_is_lost_in_a_step_is_named_within_a_second(folders: dict[str, Path]) -> None:
    first, second, third = run_ranks_to_end(lose_a_rank, 3, str(folders["llama"]))
    assert third.exit_code == -signal.SIGKILL
    for survivor in (first, second):
        assert survivor.error is None, survivor.error
        ranks, seconds = survivor.result
        assert ranks == (2,) and seconds < 1.3


def fail_on_one(mesh: Mesh, channel: Channel, folder: str) -> tuple[bool, list[int]]:
    """Decodes where only the first rank can compile."""
    if mesh.rank:

        def fail(*given: Any) -> Any:
            raise Inexpressible("a test")

        make.make_native = compilation.make_native = fail  # type: ignore[assignment]
    group = connected(mesh, "shm")
    compilation.WORTHWHILE = 1
    checkpoint = load(ModelSettings(folder, device="cpu"), reader=read_sharded(group), group=group)
    engine = Engine(checkpoint, LookaheadParallel(SingleDevice(checkpoint.model, 64), channel, group.num_ranks))
    text = engine.generate(PROMPT, max_new_tokens=NEW_TOKENS, sampling=Sampling(temperature=0.0, seed=3)).token_ids
    return checkpoint.model.fast is None, text


def test_all_ranks_run_the_models_own_forward_if_one_cannot_compile(folders: dict[str, Path]) -> None:
    own = generate_greedily(load_reference(folders["llama"]), PROMPT, NEW_TOKENS, eos=[1])
    assert run_ranks(fail_on_one, 2, str(folders["llama"])) == [(True, own)] * 2


def demand_invariance(mesh: Mesh, channel: Channel, folder: str, exchange: str) -> str:
    try:
        model = load_compiled(folder, connected(mesh, exchange), invariant=Invariance.on).model
    except ValueError as error:
        return str(error)
    assert model.fast is not None and model.fast.is_invariant
    return ""


@pytest.mark.slow
def test_invariance_can_be_demanded_where_ranks_share_memory(folders: dict[str, Path]) -> None:
    folder = str(folders["llama"])
    assert run_ranks(demand_invariance, 3, folder, "shm") == [""] * 3
    for message in run_ranks(demand_invariance, 3, folder, "gloo", exchange="gloo"):
        assert "model.invariant=on" in message and "share no memory" in message
