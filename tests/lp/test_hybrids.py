"""Models with recurrent layers: the text is that of transformers' `generate`, whatever a tree, a batch or memory do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, DraftModel, Engine, Lookahead, PromptLookup, Sampling, SecondModel, Stopping
from lp.kv_cache.cache import KVCache
from lp.kv_cache.contiguous import ContiguousMemory
from lp.model.causal import CausalModel
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.states import LayerStates
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.fast_forward import SequenceRows
from lp.model.quantization.quantize import Weights
from lp.model.recurrent.base import MOST_ROWS, Factors, Paths
from lp.runner.single_device import SingleDevice
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from lp.tree import TokenTree, TreeBuilder, chain
from tests.lp.scheduling.test_prefixes import ask
from tests.lp.test_lossless import GREEDY, METHODS, NUM_TOKENS, SIZES, decode, make_prompt, settings
from tests.models import HYBRIDS, generate_greedily
from tests.slow import exhaustive_except, slow_except

# A convolution, Gated DeltaNet, Mamba-2 with attention, lightning attention, no attention, and selective scans.
QUICK = ("lfm2", "qwen3_next", "bamba", "minimax", "mamba2", "jamba")
EngineOf = Callable[[str], Engine]


def branching_tree() -> TokenTree:
    """Branches of several lengths, some of which branch again."""
    builder = TreeBuilder(7)
    for token, parent in ((11, 0), (12, 0), (13, 1), (14, 1), (15, 3), (16, 2), (17, 5), (18, 5), (19, 8)):
        builder.add(token, parent)
    return builder.build()


def cached(model: CausalModel, tokens: list[int], chunk: int = 512) -> KVCache:
    """A cache with these tokens, which are computed in chunks."""
    cache = model.make_cache(len(tokens))
    for begin in range(0, len(tokens), chunk):
        part = tokens[begin : begin + chunk]
        model.forward(chain(part), cache, num_logits=0)
        cache.keep(range(len(part)))
    return cache


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.fixture(scope="module")
def native_engine_of(checkpoint_folder: Callable[[str], Path]) -> EngineOf:
    """As `engine_of`, with the native forward, which models as small as these do not get by themselves."""

    @cache
    def engine(architecture: str) -> Engine:
        folder = str(checkpoint_folder(architecture))
        return Engine.from_pretrained(folder, device="cpu", step_times="off", compile="on")

    return engine


# By both forwards, those whose layers differ most; the others are made of the same layers.
IN_BOTH = exhaustive_except(
    [(name, forward) for name in HYBRIDS for forward in ("eager", "native")],
    ("lfm2", "native"), ("qwen3_next", "native"), ("bamba", "eager"), ("bamba", "native"), ("falcon_h1", "native"),
    quick=[("lfm2", "eager")],
)  # fmt: skip


@pytest.fixture(params=["eager", pytest.param("native", marks=pytest.mark.slow)])
def any_engine_of(request: pytest.FixtureRequest, engine_of: EngineOf, native_engine_of: EngineOf) -> EngineOf:
    return native_engine_of if request.param == "native" else engine_of


def no_eager_forward(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Has the test fail if a step is run by anything but the native forward."""
    model = engine.checkpoint.model
    assert isinstance(model.fast, NativeForward)
    monkeypatch.setattr(model, "forward_eager", None)


@pytest.mark.parametrize("architecture", slow_except(HYBRIDS, *QUICK))
def test_every_method_gives_the_text_of_generate(
    architecture: str, engine_of: EngineOf, reference_of: Callable[[str], PreTrainedModel]
) -> None:
    check_text(engine_of(architecture), reference_of(architecture))


@pytest.mark.parametrize("architecture", slow_except(HYBRIDS, "lfm2", "qwen3_5"))
def test_every_method_gives_the_text_of_generate_natively(
    architecture: str,
    native_engine_of: EngineOf,
    reference_of: Callable[[str], PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = native_engine_of(architecture)
    no_eager_forward(monkeypatch, engine)
    check_text(engine, reference_of(architecture))


def check_text(engine: Engine, reference: PreTrainedModel) -> None:
    for length in (1, 300):
        prompt = make_prompt(length)
        expected = generate_greedily(reference, prompt, NUM_TOKENS)
        assert len(set(expected)) > 8, "a text of few tokens proves little"
        for method in METHODS:
            found = decode(engine, prompt, settings(method, SIZES[3]), NUM_TOKENS)
            assert found == expected, (length, method)


@pytest.mark.parametrize("architecture", slow_except(HYBRIDS, *QUICK))
def test_a_tree_gives_what_its_paths_give_and_any_path_can_be_kept(architecture: str, engine_of: EngineOf) -> None:
    model, tree = engine_of(architecture).checkpoint.model, branching_tree()
    prompt = make_prompt(20)
    for row in (4, 9):
        path = tree.path(row)
        cache, other = cached(model, prompt), cached(model, prompt, chunk=1)
        of_tree = model.forward(tree, cache, num_logits=len(tree))[path]
        alone = list[torch.Tensor]()
        for one in path:
            alone.append(model.forward(chain([int(tree.tokens[one])]), other, num_logits=1))
            other.keep([0])
        assert error_of(of_tree, torch.cat(alone)) < 1e-4
        cache.keep(path)
        assert cache.length == other.length == len(prompt) + len(path)
        after = [model.forward(chain([21, 22]), one, num_logits=2) for one in (cache, other)]
        assert error_of(*after) < 1e-4


@pytest.mark.parametrize("architecture", QUICK)
def test_a_chunk_of_a_prompt_gives_what_its_tokens_give_one_by_one(architecture: str, engine_of: EngineOf) -> None:
    model, prompt = engine_of(architecture).checkpoint.model, make_prompt(MOST_ROWS + 9)
    expected = model.forward(chain([5]), cached(model, prompt, chunk=1), num_logits=1)
    for chunk in (7, MOST_ROWS, 512):
        assert error_of(model.forward(chain([5]), cached(model, prompt, chunk), num_logits=1), expected) < 1e-4


@pytest.mark.parametrize("architecture", QUICK)
def test_sequences_of_one_step_do_not_mix(architecture: str, engine_of: EngineOf) -> None:
    model, tree = engine_of(architecture).checkpoint.model, branching_tree()
    texts = [make_prompt(40, seed) for seed in range(3)]
    given = [SequenceRows(tree, cached(model, text), len(tree)) for text in texts]
    together = model.forward_many(given).split(len(tree))
    for text, found in zip(texts, together, strict=True):
        assert error_of(found, model.forward(tree, cached(model, text), num_logits=len(tree))) < 1e-5


@pytest.mark.parametrize("architecture", QUICK)
def test_a_state_that_ignores_the_tree_is_found(
    architecture: str, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = engine_of(architecture).checkpoint.model
    check_tree(model)
    of_paths = Paths.__init__

    def in_order(self: Paths, parents: Any, visibility: torch.Tensor) -> None:
        of_paths(self, torch.arange(-1, len(parents) - 1).numpy(), torch.ones_like(visibility).tril())

    monkeypatch.setattr(Paths, "__init__", in_order)
    with pytest.raises(UnsupportedArchitecture, match="other logits for a token tree than for its paths"):
        check_tree(model)


def assert_another_text(engine: Engine, reference: PreTrainedModel) -> None:
    prompt = make_prompt(20)
    expected = generate_greedily(reference, prompt, NUM_TOKENS)
    assert decode(engine, prompt, PromptLookup(), NUM_TOKENS) != expected


@pytest.mark.parametrize("architecture", QUICK)
def test_a_path_that_is_not_replayed_is_found(
    architecture: str,
    engine_of: EngineOf,
    reference_of: Callable[[str], PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the tests of equality would prove little."""
    engine = engine_of(architecture)  # before the fault is there, which the check of a model that is loaded finds
    advance = Factors.advance
    monkeypatch.setattr(Factors, "advance", lambda self, state, rows, parent: advance(self, state, rows[-1:], parent))
    assert_another_text(engine, reference_of(architecture))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", QUICK)
def test_a_path_that_is_not_replayed_natively_is_found(
    architecture: str,
    native_engine_of: EngineOf,
    reference_of: Callable[[str], PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = native_engine_of(architecture)
    monkeypatch.setattr(LayerStates, "replay", lambda self, state, rows: state)
    assert_another_text(engine, reference_of(architecture))


@pytest.mark.parametrize("architecture", exhaustive_except(HYBRIDS, *QUICK[1:], quick=["lfm2"]))
def test_sampled_text_is_the_same_with_every_method(architecture: str, engine_of: EngineOf) -> None:
    engine, prompt, sampling = engine_of(architecture), make_prompt(33), Sampling(temperature=0.8, seed=5)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    first, *others = [
        engine.generate(prompt, decode=settings(method, SIZES[2]), sampling=sampling, stopping=stopping).token_ids
        for method in METHODS
    ]
    assert len(set(first)) > 8 and all(other == first for other in others)


def serve(engine: Engine, prompts: list[list[int]]) -> dict[str, list[int]]:
    """What requests that are served together yield, each with a method of its own."""
    kinds = Autoregressive(), Lookahead(3, 4, 3), PromptLookup()
    tokens: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        stopping, name = Stopping(40, ignore_eos=True), str(number)
        kind = kinds[number % len(kinds)]
        engine.add_request(engine.request_builder.build(prompt, kind, GREEDY, stopping, request_id=name))
        tokens[name] = []
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
    return tokens


@pytest.mark.parametrize(("architecture", "any_engine_of"), IN_BOTH, indirect=["any_engine_of"])
def test_requests_that_lose_their_memory_yield_the_same(
    architecture: str,
    any_engine_of: EngineOf,
    reference_of: Callable[[str], PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [make_prompt(230 + number, seed=number) for number in range(4)]
    expected = {
        str(number): generate_greedily(reference_of(architecture), prompt, 40) for number, prompt in enumerate(prompts)
    }
    checkpoint = any_engine_of(architecture).checkpoint
    assert serve(Engine(checkpoint), prompts) == expected
    memory = ContiguousMemory(len(checkpoint.model.attention_layers), 5)
    memory.keeps_states = True
    monkeypatch.setattr(checkpoint.model, "memory", memory)
    drop, dropped = SingleDevice.drop, list[str]()
    monkeypatch.setattr(SingleDevice, "drop", lambda self, one: (dropped.append(one.id), drop(self, one)))
    assert serve(Engine(checkpoint, budget=KVBudget(5)), prompts) == expected
    assert dropped and not memory.num_used, "else nothing was lost and computed again"


@pytest.mark.parametrize(("architecture", "any_engine_of"), IN_BOTH, indirect=["any_engine_of"])
def test_a_request_that_begins_like_an_earlier_one_yields_the_same(architecture: str, any_engine_of: EngineOf) -> None:
    checkpoint, text = any_engine_of(architecture).checkpoint, make_prompt(300)
    engine = Engine(checkpoint, scheduler=SchedulerSettings(prefix_reuse=PrefixReuse.owner))
    first = ask(engine, text, decode=Lookahead(3, 4, 3))
    # A whole text is reused as it is; a part of it as far as there are states: every 256 tokens, and after a prompt.
    conversation = [*text, *first.token_ids, 5, 6, 7]
    for prompt, reused in ((conversation, 311), ([*text, 8, 9], 299), ([*text[:280], 3, 4], 256), (text[:200], 0)):
        found = ask(engine, prompt, decode=PromptLookup())
        assert found.stats.cached_tokens == reused
        assert found.token_ids == ask(Engine(checkpoint), prompt).token_ids


def test_several_texts_of_one_prompt_share_it(engine_of: EngineOf) -> None:
    checkpoint, text = engine_of("bamba").checkpoint, make_prompt(90)
    engine = Engine(checkpoint, scheduler=SchedulerSettings(prefix_reuse=PrefixReuse.owner))
    alone = ask(Engine(checkpoint), text).token_ids
    for name in ("a", "b", "c"):
        request = engine.request_builder.build(text, None, GREEDY, Stopping(12, ignore_eos=True), request_id=name)
        engine.add_request(request)
    found: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id] += output.tokens
    assert all(tokens == alone for tokens in found.values())


COPY, FIRST_LAYER = SecondModel(weights=Weights.int8), SecondModel(layers=1)


@pytest.mark.parametrize(
    ("architecture", "draft", "mode"),
    exhaustive_except(
        [(name, draft, mode) for name in QUICK for draft in (COPY, FIRST_LAYER) for mode in ("off", "on")],
        *((name, COPY, "on") for name in QUICK),
        ("bamba", FIRST_LAYER, "off"),
        ("lfm2", FIRST_LAYER, "on"),
        quick=[("qwen3_next", COPY, "off")],
    ),
    ids=str,
)
def test_the_model_drafts_for_itself(
    architecture: str, draft: SecondModel, mode: str, checkpoint_folder: Callable[[str], Path], engine_of: EngineOf
) -> None:
    """A copy in 8 bits writes its rows into the caches of the model itself, which must get its own states back."""
    folder, prompt = str(checkpoint_folder(architecture)), make_prompt(40)
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off", draft=draft, compile=mode)
    expected = decode(engine_of(architecture), prompt, Autoregressive(), NUM_TOKENS)
    assert decode(engine, prompt, DraftModel(), NUM_TOKENS) == expected


def test_a_resumed_text_goes_on_from_fewer_tokens(any_engine_of: EngineOf) -> None:
    engine = Engine(any_engine_of("lfm2").checkpoint)
    prompt = make_prompt(280)
    expected = decode(engine, prompt, Autoregressive(), NUM_TOKENS)
    request = engine.request_builder.build(prompt, Lookahead(3, 4, 3), GREEDY, Stopping(NUM_TOKENS, ignore_eos=True))
    request = replace(request, id="it")
    engine.add_request(request)
    for _ in range(12):
        engine.step()
    known = engine.generated()["it"]
    assert known == expected[: len(known)] and len(known) > 8
    (output,) = engine.resume(engine.runner, [(request, known[:4])], None)
    tokens = list(output.tokens)
    while not engine.is_idle:
        tokens += [token for output in engine.step() for token in output.tokens]
    assert tokens == expected
