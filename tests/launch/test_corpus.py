"""launch/index.py corpus=FILES writes what decode=auto then drafts from, and every text stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from launch import index as program
from launch.config import engine_settings, process
from launch.index import IndexSettings
from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.drafting.corpus import Corpus, build_corpus, vocabulary_digest, write_corpus
from lp.engine.builder import digests_of, find_corpus, require_same_files
from lp.model.second_model import vocabulary_of
from tests.launch import commands
from tests.launch.conftest import Main
from tests.models import VOCAB_SIZE, generate_greedily

PROMPT = [5, 9, 17]
NUM_TOKENS = 60
ALONE = Auto(False, False, False, False, False, rows=24)  # no other source of drafts


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Calls launch/index.py in this process: arguments -> (exit code, stderr)."""

    def call(*arguments: str) -> tuple[int, str]:
        engine_settings.register("index", IndexSettings)
        capfd.readouterr()
        code = process.main("index", IndexSettings, program.run, "usage", ["threads=1", *arguments])
        return code, capfd.readouterr().err

    yield call
    torch.set_num_threads(1)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "one.txt").write_text("def f(x):\n    return x + 1\n", encoding="utf-8")
    (folder / "inner" / "two.txt").write_text("def f(x):\n    return x + 2\n", encoding="utf-8")
    (folder / ".hidden").write_text("never", encoding="utf-8")
    (folder / "picture").write_bytes(b"\xff\xfe\x00\x80")
    return folder


def saved(path: Path, engine: Engine, texts: list[list[int]]) -> Path:
    corpus = build_corpus("test", VOCAB_SIZE, texts)
    write_corpus(path, corpus, vocabulary_digest(vocabulary_of(engine.checkpoint)))
    return path


def corpus_of(path: Path, engine: Engine) -> Corpus:
    found = find_corpus(str(path), engine.checkpoint)
    assert found is not None
    return found


def test_it_holds_the_tokens_of_all_texts(run: Callable[..., tuple[int, str]], texts: Path, llama: Engine) -> None:
    path, tokenizer = texts.parent / "corpus", llama.checkpoint.tokenizer
    code, err = run(f"model.path={llama.checkpoint.path}", f"corpus={texts}", f"output={path}")
    assert code == 0 and f"corpus={path}" in err and "1 file(s) hold no text" in err, err
    corpus = corpus_of(path, llama)
    expected = [
        tokenizer.encode((texts / name).read_text(), add_special_tokens=False) for name in ("inner/two.txt", "one.txt")
    ]
    assert corpus.ids.tolist() == [*expected[0], VOCAB_SIZE, *expected[1], VOCAB_SIZE]


def test_it_is_bounded_and_says_so(run: Callable[..., tuple[int, str]], texts: Path, llama: Engine) -> None:
    path = texts.parent / "corpus"
    pattern = f"{texts}/**/*.txt"
    code, err = run(f"model.path={llama.checkpoint.path}", f"corpus={pattern}", f"output={path}", "corpus_tokens=7")
    assert code == 0 and "corpus_tokens=7 is reached: 2 of 2 files" in err, err
    assert len(corpus_of(path, llama).places) == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["corpus=nowhere/*.txt"], "corpus=nowhere/*.txt names no file"),
        (["corpus={texts}/picture"], "none of which holds text in UTF-8"),
        (["corpus={texts}", "prompt=a"], "got corpus and prompts"),
        (["corpus={texts}", "corpus_tokens=0"], "corpus_tokens=0 must be at least 1"),
        (["corpus={texts}", "corpus_tokens=9000000000"], "must be at most 268,435,456"),
        (["corpus={texts}", "output=nowhere/corpus"], "output=FILE"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, run: Callable[..., tuple[int, str]], texts: Path, llama: Engine
) -> None:
    given = [argument.replace("{texts}", str(texts)) for argument in arguments]
    code, err = run(f"model.path={llama.checkpoint.path}", *given)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and said in errors[0], err


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_that_only_the_corpus_has_is_drafted_and_stays_the_same(
    temperature: float, llama: Engine, llama_reference: PreTrainedModel, tmp_path: Path
) -> None:
    sampling, stopping = Sampling(temperature=temperature, seed=3), Stopping(NUM_TOKENS, ignore_eos=True)
    plain = llama.generate(PROMPT, decode=Autoregressive(), sampling=sampling, stopping=stopping)
    if temperature == 0:
        assert plain.token_ids == generate_greedily(llama_reference, PROMPT, NUM_TOKENS)
    path = saved(tmp_path / "corpus", llama, [[*PROMPT, *plain.token_ids], [7, 7, 7]])
    engine = Engine(llama.checkpoint, corpus=corpus_of(path, llama))
    found = engine.generate(PROMPT, decode=ALONE, sampling=sampling, stopping=stopping)
    assert found.token_ids == plain.token_ids
    assert set(found.stats.accepted) == {"corpus"} and found.stats.tokens_per_step > 2
    off = Auto(False, False, False, False, False, corpus_drafts=False, rows=24)
    without = engine.generate(PROMPT, decode=off, sampling=sampling, stopping=stopping)
    assert without.token_ids == plain.token_ids and without.stats.tokens_per_step == 1


@pytest.mark.slow
def test_one_and_two_ranks_use_it_and_give_the_same_text(
    run: Callable[..., tuple[int, str]], main: Main, llama: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "corpus"
    model, prompt = f"model.path={llama.checkpoint.path}", "def f(x):"
    shared = [model, f"prompt={prompt}", "max_new_tokens=40", "ignore_eos=true", "format=json", "decode.rows=32"]
    code, out, err = main(*shared)
    assert code == 0, err
    without = json.loads(out)
    text = tmp_path / "text.txt"
    text.write_text(prompt + without["text"], encoding="utf-8")
    assert run(model, f"corpus={text}", f"output={path}")[0] == 0
    code, out, err = main(*shared, f"corpus={path}")
    assert code == 0 and "corpus of texts: " in err, err
    alone = json.loads(out)
    done = commands.run("generate", [*shared, f"corpus={path}"], tmp_path, num_ranks=2)
    assert done.returncode == 0, done.stderr
    both = json.loads(done.stdout)
    assert alone["token_ids"] == both["token_ids"] == without["token_ids"]
    assert alone["steps"] == both["steps"]


def test_a_corpus_that_cannot_be_used_is_refused(main: Main, llama: Engine, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"broken")
    for named, reason in ((broken, "cannot be read"), (tmp_path / "missing", "is not a file")):
        code, _, err = main(f"model.path={llama.checkpoint.path}", "prompt=a", f"corpus={named}")
        assert code == 2 and err.count("error: ") == 1 and "corpus=off" in err
        assert reason in err


def test_ranks_must_have_the_same_corpus() -> None:
    one, other = (build_corpus("test", VOCAB_SIZE, [[1, 2, last]]) for last in (3, 4))
    require_same_files(None, one, digests_of(None, build_corpus("test", VOCAB_SIZE, [[1, 2, 3]])))
    for told in (other, None):
        with pytest.raises(ValueError, match=r"another corpus of texts than the first rank.*corpus=FILE"):
            require_same_files(None, one, digests_of(None, told))
