"""decode=auto among other sequences: drafts while they pay, plain decoding under load, and any load after any other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lp import Engine, Sampling, Stopping
from lp.decoder import Decoder, ProposedDrafts
from lp.drafting.account import Effort
from lp.drafting.history import DraftHistory, nearest_power
from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.methods.jacobi import Jacobi
from lp.methods.lookahead import Lookahead
from lp.methods.prompt_lookup import PromptLookup
from lp.request import DecodingMethod, Sequence
from lp.runner.runner import StepInput
from lp.scheduling.planner import Prefill, plan_trees
from lp.scheduling.request_state import RequestState
from lp.step_cost import Extras, StepTimes
from lp.tree import TokenTree
from tests.lp.decoders import make_decoder
from tests.lp.drafting.rule_models import PROMPT, Model, answers, counting, sums, unguessable
from tests.slow import slow_except

# About the curve of a small model on one core; a sequence and the host cost something, too.
CPU = StepTimes(
    (1, 4, 8, 16, 32, 64, 128),
    (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064),
    extras=Extras(host_step=6e-5, host_row=1e-6, sequence=1e-4),
)
GREEDY = Sampling(temperature=0.0, seed=0)


@dataclass
class Stream:
    """A generation whose answers come from a rule."""

    model: Model
    decoder: Decoder
    tokens: list[int]
    left: int
    num_drafts: int = 0

    @staticmethod
    def begin(model: Model, history: DraftHistory, number: int = 0, num_tokens: int = 10**9) -> Stream:
        prompt = [*PROMPT, 11 + number]
        return Stream(model, make_decoder(Auto(), prompt, number, 0.0, history), list(prompt), num_tokens)

    @property
    def sequence(self) -> Sequence:
        return Sequence("", self.tokens, len(PROMPT), GREEDY)

    def plan(self, room: int) -> TokenTree:
        return self.decoder.plan(self.tokens, room, self.left)

    def propose(self, room: int, load: int) -> ProposedDrafts:
        return self.decoder.propose(self.tokens, room, self.left, load)

    def build_tree(self, num_drafts: int) -> TokenTree:
        self.num_drafts = num_drafts
        return self.decoder.build_tree(num_drafts)

    def settle(self, tree: TokenTree) -> int:
        """Learns from the answers. Returns the number of new tokens, which must be the model's."""
        given = answers(self.model, tree, self.tokens, self.decoder.num_candidates)
        accepted, count_drafts = self.decoder.commit(self.tokens, given)
        count_drafts()
        for token in accepted.tokens:
            assert token == self.model(tuple(self.tokens[-4:]), len(self.tokens) - 1)[0]
            self.tokens.append(token)
        self.left -= len(accepted.tokens)
        return len(accepted.tokens)


def step(streams: list[Stream], times: StepTimes | None = CPU, num_computed: int = 0) -> tuple[int, float]:
    """A step of all streams. Returns the number of new tokens and the modelled seconds."""
    states: Any = streams
    trees = plan_trees(states, [500] * len(streams), times, 1, Prefill(num_computed))
    rows = sum(map(len, trees)) + num_computed
    times = times or CPU
    seconds = times.at(rows) + times.of_sequences(len(streams))
    seconds += times.extras.host_step * sum(stream.decoder.num_candidates > 0 for stream in streams)
    return sum(stream.settle(tree) for stream, tree in zip(streams, trees, strict=True)), seconds


def run(models: Iterable[Model], num_steps: int, times: StepTimes = CPU) -> tuple[float, list[Stream]]:
    """Tokens per second of streams that decode together, as a multiple of plain batched decoding."""
    history = DraftHistory(times)
    streams = [Stream.begin(model, history, number) for number, model in enumerate(models)]
    tokens = seconds = 0.0
    for _ in range(num_steps):
        found, taken = step(streams, times)
        tokens, seconds = tokens + found, seconds + taken
    load = len(streams)
    plain_s = times.at(load) + times.of_sequences(load)
    return tokens / seconds * plain_s / load, streams


@pytest.mark.parametrize("load", [2, 5, 16, 64])
def test_text_that_cannot_be_guessed_is_hardly_slower_than_plain_decoding_at_any_load(load: int) -> None:
    speed_up, streams = run([unguessable] * load, 800 // load + 40)
    assert speed_up > 0.975
    if load >= 16:
        assert all(stream.decoder.num_candidates == 0 for stream in streams), "plain decoding asks for no candidates"


@pytest.mark.parametrize(("load", "least"), [(1, 2.0), (2, 2.0), (4, 2.0), (16, 1.6)])
def test_text_that_can_be_guessed_is_faster_at_any_load(load: int, least: float) -> None:
    assert run([counting] * load, 160)[0] > least


def test_a_text_that_can_be_guessed_gets_the_rows_that_others_have_no_use_for() -> None:
    speed_up, streams = run([counting, *[unguessable] * 7], 150)
    assert len(streams[0].tokens) > 1.5 * len(streams[1].tokens) and speed_up > 1.05


def test_where_a_row_costs_as_much_as_a_token_is_worth_decoding_becomes_plain() -> None:
    linear = StepTimes((1, 128), (0.0011, 0.1281), extras=Extras(host_step=1e-4))
    speed_up, streams = run([sums] * 16, 120, linear)
    assert speed_up > 0.95
    assert sum(stream.decoder.num_candidates == 0 for stream in streams) >= 15


def test_loads_may_follow_each_other_in_any_order() -> None:
    """Every stream's tokens stay the model's, and each stream speculates again when it is alone."""
    history, rng = DraftHistory(CPU), random.Random(1)
    models = [counting, sums, unguessable, counting, sums, counting]
    streams = [Stream.begin(model, history, number) for number, model in enumerate(models)]
    for _ in range(120):
        step(rng.sample(streams, rng.randint(1, len(streams))), num_computed=rng.choice([0, 0, 0, 40]))
    before = len(streams[0].tokens)
    for _ in range(20):
        step(streams[:1])
    assert len(streams[0].tokens) > before + 40


def test_plain_steps_under_load_are_learnt_from_when_a_stream_is_alone() -> None:
    """It has decoded its first tokens without drafts; these are known to the sources at once when the others end."""
    history = DraftHistory(CPU)
    for load in (16, 1):
        history.profile(Auto(), 0.0, load).account.funds = -1e9 if load == 16 else 3.0
        history.profile(Auto(), 0.0, load).account._add(0.0)
    streams = [Stream.begin(counting, history, number) for number in range(16)]
    for _ in range(60):
        step(streams)
    decoder = streams[0].decoder
    assert len(streams[0].tokens) == 60 + len(PROMPT) + 1 and decoder.num_candidates == 0
    found = [step(streams[:1])[0] for _ in range(3)]
    assert max(found) > 3, "the text has repeated itself since its fiftieth token"


def test_what_candidates_are_worth_is_learnt_for_all_loads_together() -> None:
    history = DraftHistory(CPU)
    profiles = [history.profile(Auto(), 0.0, load) for load in (1, 2, 3, 4, 5, 6, 8, 16)]
    assert len({id(profile.estimates) for profile in profiles}) == 1
    assert len({id(profile.account) for profile in profiles}) == 5
    assert profiles[2] is profiles[3] is profiles[4] and profiles[5] is profiles[6]
    assert history.profile(Auto(), 0.7, 2).estimates is not profiles[0].estimates


def test_loads_are_rounded_to_the_nearest_power_of_two() -> None:
    assert [nearest_power(number) for number in range(1, 13)] == [1, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8, 16]


def test_a_fixed_number_of_rows_is_kept_under_load() -> None:
    history = DraftHistory(CPU)
    decoders = [make_decoder(Auto(rows=12, max_rows=12), PROMPT, 0, 0.0, history) for _ in range(8)]
    streams = [Stream(counting, decoder, list(PROMPT), 10**9) for decoder in decoders]
    states: Any = streams
    sizes = set[int]()
    for _ in range(20):
        trees = plan_trees(states, [500] * 8, CPU, 1, Prefill())
        sizes |= {len(tree) for tree in trees}
        for stream, tree in zip(streams, trees, strict=True):
            stream.settle(tree)
    assert max(sizes) == 12 and {stream.num_drafts for stream in streams} == {0}


def test_the_last_token_needs_no_draft() -> None:
    history = DraftHistory(CPU)
    streams = [Stream.begin(counting, history, number) for number in range(2)]
    for _ in range(70):
        step(streams)
    streams[0].left = 1
    assert not streams[0].propose(500, 2).odds and streams[1].propose(500, 2).odds
    streams[1].left = 3
    streams[1].propose(500, 2)
    assert streams[1].build_tree(1).depths.max() <= 2


@pytest.mark.parametrize("times", [None, CPU], ids=["unknown times", "known times"])
def test_an_offer_comes_best_first_and_any_number_of_it_can_be_taken(times: StepTimes | None) -> None:
    history, rng = DraftHistory(times), random.Random(3)
    streams = [Stream.begin(model, history, number) for number, model in enumerate([counting, sums, counting])]
    for _ in range(40):
        for stream in streams:
            num_rows, odds = stream.propose(500, 3)
            assert list(odds) == sorted(odds, reverse=True) and all(0 < probability <= 1 for probability in odds)
            number = rng.randint(0, len(odds))
            tree = stream.build_tree(number)
            assert len(tree) == num_rows + number
            assert (tree.parents[1:] < range(1, len(tree))).all() and tree.tokens[0] == stream.tokens[-1]
            stream.settle(tree)


@pytest.mark.parametrize("method", [Autoregressive(), Jacobi(5), PromptLookup(), Lookahead(4, 3, 4)], ids=str)
def test_methods_without_a_choice_offer_the_tree_that_they_plan(method: DecodingMethod) -> None:
    one, two = (make_decoder(method, PROMPT, 0, 0.0, DraftHistory()) for _ in range(2))
    tokens = list(PROMPT)
    for _ in range(20):
        offered, planned = one.propose(tokens, 300, 300, 5), two.plan(tokens, 300, 300)
        tree = one.build_tree(0)
        assert offered == ProposedDrafts(len(planned), ()) and tree.tokens.tolist() == planned.tokens.tolist()
        assert tree.parents.tolist() == planned.parents.tolist()
        (accepted, _), _ = (each.commit(tokens, answers(counting, tree, tokens, 0)) for each in (one, two))
        tokens += accepted.tokens


def test_one_stream_with_a_prompt_beside_it_speculates_as_alone() -> None:
    history = DraftHistory(CPU)
    stream = Stream.begin(counting, history)
    yields = [step([stream], num_computed=100 if number % 5 == 0 else 0)[0] for number in range(100)]
    assert sum(yields) > 250


@pytest.fixture(scope="module")
def decode_together() -> Callable[..., dict[str, list[int]]]:
    """Decodes requests on an engine's model in batches whose members change."""

    def decode(engine: Engine, requests: list[Any], times: StepTimes | None, seed: int) -> dict[str, list[int]]:
        history, runner, rng = DraftHistory(times), engine.runner, random.Random(seed)
        waiting = [RequestState(request, engine.checkpoint, history) for request in requests]
        texts = {}
        for generation in waiting:
            runner.open(generation.sequence)
        while waiting:
            batch = rng.sample(waiting, rng.randint(1, len(waiting)))
            rooms = [engine.checkpoint.max_length - len(generation.sequence.tokens) for generation in batch]
            trees = plan_trees(batch, rooms, times, 1, Prefill())
            runner.start([
                StepInput.of(generation.sequence, tree, generation.decoder.num_candidates)
                for generation, tree in zip(batch, trees, strict=True)
            ])  # fmt: skip
            for generation, found in zip(batch, runner.finish(), strict=True):
                settled = generation.commit(found)
                generation.output(settled)
                if settled.reason:
                    texts[generation.sequence.id] = generation.sequence.tokens
                    runner.close(generation.sequence)
                    waiting.remove(generation)
        return texts

    return decode


@pytest.mark.parametrize("curve", slow_except(["unknown", "a CPU", "free rows"], "a CPU"))
def test_streams_together_have_the_text_of_each_by_itself(
    llama: Engine, curve: str, decode_together: Callable[..., dict[str, list[int]]]
) -> None:
    times = {"unknown": None, "a CPU": CPU, "free rows": StepTimes((1, 128), (0.01, 0.0101))}[curve]
    kinds: list[DecodingMethod] = [Auto(), Auto(rows=20), Lookahead(4, 4, 4), Autoregressive(), Auto(max_rows=9)]
    requests, texts = [], {}
    for number in range(10):
        sampling = replace(GREEDY, temperature=0.8 * (number % 3 == 2), seed=number)
        prompt = [(7 * number + place * place) % 290 + 2 for place in range(3 + 5 * number)]
        stopping = Stopping(20 + number)
        build = engine_builder(llama)
        requests.append(build(prompt, kinds[number % 5], sampling, stopping, request_id=str(number)))
        alone = llama.generate(prompt, decode=Autoregressive(), sampling=sampling, stopping=stopping)
        texts[str(number)] = [*prompt, *alone.token_ids]
    assert decode_together(llama, requests, times, seed=2) == texts


def engine_builder(engine: Engine) -> Callable[..., Any]:
    return engine.request_builder.build


def test_a_pause_of_one_load_is_none_of_another() -> None:
    history = DraftHistory(CPU)
    busy = history.profile(Auto(), 0.0, 16)
    while busy.account.effort is Effort.speculate:
        busy.account.took_step(1, 1.0)
    assert history.profile(Auto(), 0.0, 1).account.effort is Effort.speculate
