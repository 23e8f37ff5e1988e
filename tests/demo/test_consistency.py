"""demo/train_consistency.py makes a model with which Jacobi decoding converges faster; its parts do what they say."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from demo import trajectories
from demo.trajectories import Trajectories, collect, packed_mask
from lp import Engine, Jacobi
from tests.demo.scripts import imported
from tests.models import build_tokenizer, save_checkpoint

# Each letter is followed by the next one of its row, and the last one by the first.
CYCLES = ("ABCDEFGH", "IJKLMNOP", "QRSTUVWX")
NOISE, SHOWN = 8, 12
Run = Callable[..., dict]


@pytest.fixture(scope="module")
def command() -> Iterator[ModuleType]:
    with imported("train_consistency") as module:
        yield module


def made_up_text(draw: random.Random, length: int) -> str:
    """Letters at random, then letters that follow each other."""
    start, cycle = draw.randrange(8), draw.choice(CYCLES)
    noise = "".join(draw.choices("".join(CYCLES), k=NOISE))
    return noise + "".join(cycle[(start + place) % 8] for place in range(length))


@pytest.fixture(scope="module")
def bigram_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learnt which letter follows which, from the letter before alone."""
    folder = save_checkpoint(tmp_path_factory.mktemp("bigram"), hidden_size=64, intermediate_size=128)
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = random.Random(0)
    for _ in range(150):
        batch = torch.tensor([tokenizer.encode(made_up_text(draw, 24)) for _ in range(16)])
        logits = model(input_ids=batch[:, :-1]).logits[:, NOISE:]
        cross_entropy(logits.flatten(0, 1), batch[:, NOISE + 1 :].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def run(command: ModuleType, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the script on made-up prompts; returns what it has written about the run.

    Without an option for the model, that is the bigram model.
    """
    draw = random.Random(1)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": made_up_text(draw, SHOWN)}) + "\n" for _ in range(56)))

    def call(*options: str, output: str = "tuned") -> dict:
        model = [] if "--model" in options else ["--model", str(request.getfixturevalue("bigram_model"))]
        shared = [*model, "--prompts", str(prompts), "--output", str(tmp_path / output)]
        shared += ["--texts", "48", "--held-out", "6", "--prompt-tokens", str(NOISE + SHOWN), "--blocks", "2"]
        shared += ["--block", "8", "--windows", "8", "--batch", "16", "--rate", "3e-3"]
        monkeypatch.setattr(sys, "argv", ["train_consistency.py", *shared, *options])
        threads = torch.get_num_threads()
        try:
            command.main()
        finally:
            torch.set_num_threads(threads)
        return json.loads((tmp_path / output / "consistency.json").read_text())

    return call


@pytest.mark.slow
def test_jacobi_decoding_needs_fewer_steps_afterwards_and_stays_exact(run: Run, tmp_path: Path) -> None:
    report = run("--steps", "200")
    before, after = report["tokens_per_step_before"]["8"], report["tokens_per_step"]["8"]
    print("tokens per step before and after:", before, after)
    assert after > 1.5 * before
    folder = tmp_path / "tuned"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(folder).encode(made_up_text(random.Random(2), SHOWN))
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
    engine = Engine.from_pretrained(str(folder), device="cpu", compile="off", step_times="off")
    for window in (3, 8):
        completion = engine.generate(prompt, decode=Jacobi(window), max_new_tokens=24)
        assert completion.token_ids == expected
    assert completion.stats.tokens_per_step > 1.5 * before
    assert not (folder / "unfinished").exists()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_weights(
    run: Run, command: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--steps", "12", "--save-every", "4"]
    whole = run(*options, output="whole")
    real, calls = command.losses, []

    def counted(*arguments):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(command, "losses", counted)
        with pytest.raises(SystemExit, match="goes on from here"):
            run(*options)
        patched.setattr(command, "collect", None)  # nothing is collected twice
        with pytest.raises(SystemExit, match="steps was 12 and is now 13"):
            run("--steps", "13")
        assert run(*options) == whole
    assert len(calls) == 7 + 12 - 4
    weights = [AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "tuned")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--texts", "51"], "56 prompts of at least 20 tokens, fewer than the 51"),
        (["--prompt-tokens", "1000"], "more than the model's context of 640"),
        (["--model", "/no/such/folder"], "/no/such/folder is no checkpoint folder"),
        (["--prompts", "/no/such/file"], "/no/such/file"),
        (["--block", "1"], "--block must be at least 2"),
        (["--steps", "0"], "--steps must be above 0, not 0"),
        (["--windows", "0"], "--windows"),
    ],
)
def test_mistakes_get_one_message(
    run: Run,
    options: list[str],
    told: str,
    checkpoint_folder: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("--model", str(checkpoint_folder("llama")), *options)
    assert told in f"{stopped.value.code} {capsys.readouterr().err}"


@pytest.mark.parametrize("line", ["not json", '["a"]', '{"text": "a"}', '{"prompt": 3}'])
def test_a_malformed_prompt_is_named_by_its_line(command: ModuleType, line: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        command.read_crops(build_tokenizer(), tmp_path / "bad.jsonl", 1, 1, 1)


def test_the_model_itself_is_never_overwritten(
    run: Run, checkpoint_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint_folder("llama"))
    with pytest.raises(SystemExit):
        run("--model", folder, "--output", folder)
    assert "--output must not be the folder of --model" in capsys.readouterr().err


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, checkpoint_folder: Callable[[str], Path]) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint_folder(request.param), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def found(model: PreTrainedModel) -> Trajectories:
    prompts = torch.randint(2, 300, (3, 7), generator=torch.Generator().manual_seed(0))
    return collect(model, prompts, 3, 4, torch.Generator().manual_seed(1))


def test_trajectories_end_with_greedy_decodings_text(model: PreTrainedModel, found: Trajectories) -> None:
    assert found.num_prompt_tokens == 7
    for tokens, iterates in zip(found.tokens_BT, found.iterates_BKIN, strict=True):
        expected = model.generate(tokens[None, :7], max_new_tokens=12, do_sample=False, eos_token_id=None)[0]
        assert tokens.tolist() == expected.tolist() == [*tokens[:7].tolist(), *iterates[:, -1].flatten().tolist()]


def test_every_call_makes_one_more_token_right(found: Trajectories) -> None:
    for blocks, calls in zip(found.iterates_BKIN, found.calls_BK, strict=True):
        for iterates, number in zip(blocks, calls.tolist(), strict=True):
            for call in range(len(iterates)):
                assert torch.equal(iterates[call, :call], iterates[-1, :call])
                assert torch.equal(iterates[call], iterates[-1]) == (call >= number)


def test_an_iterate_that_is_drawn_is_not_the_fixed_point(found: Trajectories) -> None:
    for seed in range(20):
        drawn = found.some_iterate(torch.tensor([2, 0]), torch.Generator().manual_seed(seed)).view(2, 3, 4)
        for text, blocks in zip((2, 0), drawn, strict=True):
            for number, block in enumerate(blocks):
                calls = int(found.calls_BK[text, number])
                open_ones = found.iterates_BKIN[text, number, : max(1, calls)]
                assert any(torch.equal(block, iterate) for iterate in open_ones)


def test_trajectories_come_back_from_their_file(found: Trajectories, tmp_path: Path) -> None:
    found.save(tmp_path / "kept.safetensors")
    kept = Trajectories.join([Trajectories.load(tmp_path / "kept.safetensors")] * 2)
    assert torch.equal(kept.tokens_BT[:3], found.tokens_BT) and torch.equal(kept.iterates_BKIN[3:], found.iterates_BKIN)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.safetensors"]


def test_the_mask_shows_a_block_the_text_before_it_and_itself() -> None:
    mask = packed_mask(2, 2, 2).int().tolist()
    assert mask[:6] == [[1] * (row + 1) + [0] * (9 - row) for row in range(6)]
    assert mask[6:] == [
        [1, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 1, 1],
    ]


def test_losses_are_those_of_separate_calls(command: ModuleType, model: PreTrainedModel, found: Trajectories) -> None:
    """The consistency loss is nothing for the text itself, and that of each block run alone for its first guesses."""
    mask = packed_mask(7, 3, 4)
    same, plain = command.losses(model, found.tokens_BT, found.tokens_BT[:, 7:], mask, [])
    right = model(input_ids=found.tokens_BT).logits.log_softmax(-1)
    alone = cross_entropy(right[:, 6:-1].transpose(1, 2), found.tokens_BT[:, 7:])
    assert abs(same) < 1e-5 and torch.allclose(plain, alone, atol=1e-5)
    guesses = found.iterates_BKIN[:, :, 0]
    apart, _ = command.losses(model, found.tokens_BT, guesses.flatten(1), mask, [])
    parts = []
    for block in range(3):
        text = torch.cat([found.tokens_BT[:, : 7 + 4 * block], guesses[:, block]], 1)
        given = model(input_ids=text).logits.log_softmax(-1)[:, -4:]
        wanted = right[:, 7 + 4 * block : 11 + 4 * block]
        parts.append((wanted.exp() * (wanted - given)).sum(-1).mean())
    assert torch.allclose(apart, torch.stack(parts).mean(), rtol=1e-4)


def test_tokens_after_the_end_of_a_text_do_not_count(
    command: ModuleType, model: PreTrainedModel, found: Trajectories
) -> None:
    mask, ends = packed_mask(7, 3, 4), [int(found.tokens_BT[0, 9])]
    guesses = found.iterates_BKIN[:1, :, 0].flatten(1)
    _, plain = command.losses(model, found.tokens_BT[:1], guesses, mask, ends)
    logits = model(input_ids=found.tokens_BT[:1]).logits
    counted = 1 + found.tokens_BT[0, 7:].tolist().index(ends[0])
    expected = cross_entropy(logits[0, 6 : 6 + counted], found.tokens_BT[0, 7 : 7 + counted])
    assert torch.allclose(plain, expected, atol=1e-5)


def test_a_file_is_written_whole_or_not_at_all(
    found: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(tensors, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(trajectories, "save_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        found.save(tmp_path / "kept.safetensors")
    assert not (tmp_path / "kept.safetensors").exists()
