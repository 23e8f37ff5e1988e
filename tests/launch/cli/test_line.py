"""How a line of `lookahead` is understood: models, ranks, options, and what is said of mistakes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from launch.cli.line import LineError, read_line


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("serve", []),
        ("serve demo", ["model=demo"]),
        ("serve org/name server.port=9000", ["model=checkpoint", "model.path=org/name", "server.port=9000"]),
        ("serve smollm2 --ranks 2", ["model=smollm2", "launcher=local", "parallel.ranks=2"]),
        ("serve --ranks 2 smollm2 launcher=torchrun", ["model=smollm2", "parallel.ranks=2", "launcher=torchrun"]),
        ("serve --ranks 1", []),
        ("serve demo --port=9000 --host 0.0.0.0 --decode lookahead server.page=false",
         ["model=demo", "server.host=0.0.0.0", "server.port=9000", "decode=lookahead", "server.page=false"]),
        ("serve --api-key a,b --api-key \"it's\" --served-model-name m",
         [r"server.api_keys=['a,b','it\'s']", "server.model_name='m'"]),
        ("serve --served-model-name m --served-model-name n",
         ["server.model_name='m'", "server.model_names=['n']"]),
        ("serve --tensor-parallel-size 2 --dtype bfloat16 --max-model-len 512 --max-num-seqs 4 --device cpu",
         ["launcher=local", "parallel.ranks=2", "server.max_running=4", "model.dtype=bfloat16", "model.device=cpu",
          "model.max_length=512", "parallel=tp"]),
        ("serve --tensor-parallel-size 1", []),
        ("chat --dtype float32", ["model.dtype=float32"]),
        ("chat --ranks 3 'system=Be brief = short.'", ["parallel.ranks=3", "system=Be brief = short."]),
        ("chat url=http://127.0.0.1:8000 max_tokens=9", ["url=http://127.0.0.1:8000", "max_tokens=9"]),
        ("generate demo --ranks 2 'prompt=a = b'", ["model=demo", "prompt=a = b"]),
        ("generate 'sampling.logit_bias={13: -100}'", ["sampling.logit_bias={13: -100}"]),
        ("generate ++sampling.logit_bias.13=-1 ~sampling.seed hydra.verbose=true prompt=x",
         ["++sampling.logit_bias.13=-1", "~sampling.seed", "hydra.verbose=true", "prompt=x"]),
        ("bench demo -m --ranks 2 decode=auto,lookahead",
         ["-m", "model=demo", "parallel=auto", "parallel.ranks=2", "decode=auto,lookahead"]),
        ("bench --ranks 2 --multirun parallel=lp,dp", ["-m", "parallel.ranks=2", "parallel=lp,dp"]),
        ("""bench "/m/it's a=b" """, ["model=checkpoint", r"model.path='/m/it\'s a=b'"]),
        ("ray generate demo --ranks 4 prompt=x", ["task=generate", "model=demo", "parallel.ranks=4", "prompt=x"]),
        ("demo --ranks 4", ["--ranks=4"]),
        ("doctor --json smollm2", ["json=true", "model=smollm2"]),
        ("cache keep_gb=5", ["keep_gb=5"]),
    ],
)  # fmt: skip
def test_a_line_becomes_the_settings_of_a_command(line: str, arguments: list[str]) -> None:
    assert list(read_line(shlex.split(line)).arguments) == arguments


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("srve", "there is no command 'srve'; did you mean serve?"),
        ("xyzzy", r"there is no command 'xyzzy' \(lookahead --help\)"),
        ("ray", r"ray what\? Use lookahead ray serve\|generate\|bench"),
        ("ray srve", "there is no ray 'srve'; did you mean serve?"),
        ("serve sever.port=1", r"lookahead serve has no setting 'sever.port'; did you mean server.port\?"),
        ("serve port=1", r"no setting 'port'; did you mean (server.)?port\?|did you mean server.port\?"),
        ("cache server.port=1", r"lookahead cache has no setting 'server.port' \("),
        ("serve --max-body-bytes 9", r"no option --max-body-bytes; settings are .*: server.max_body_bytes=VALUE"),
        ("serve --prot 9000", r"there is no option --prot; did you mean --port\?"),
        ("serve --port 9000 server.port=8000", "--port and server.port= say the same"),
        ("serve --port 9000 --port 8000", "--port is given 2 times"),
        ("serve --tensor-parallel-size 2 --ranks 3", "needs as many ranks, and --ranks says 3"),
        ("serve --tensor-parallel-size x", "x is not a number of ranks"),
        ("serve --decode lokahead", r"decode cannot be 'lokahead'; did you mean lookahead\?"),
        ("index --port 9000", "there is no option --port; settings are written without dashes: "),
        ("serve --rank 2", r"there is no option --rank; did you mean --ranks\?"),
        ("serve smolm2", r"there is no model 'smolm2'; did you mean smollm2\?.* model.path=smolm2"),
        ("serve demo smollm2", "'smollm2' is not of the form KEY=VALUE, and 'demo' names the model already"),
        ("serve demo model.path=x", "'demo' names the model, and so does model.path=x"),
        ("chat demo url=http://x", "'demo' names the model, and so does url=http://x"),
        ("cache demo", "takes no model"),
        ("index --ranks 2", "runs on one rank: leave out --ranks"),
        ("serve --ranks 0", "0 is not a number of ranks from 1 on"),
        ("serve --ranks many", "many is not a number of ranks"),
        ("serve --ranks 2 parallel.ranks=3", "--ranks and parallel.ranks= say the same"),
        ("generate decode=lokahead", r"decode cannot be 'lokahead'; did you mean lookahead\? It is one of auto, "),
        ("generate parallel.mode=tpp", r"parallel.mode cannot be 'tpp'; did you mean tp\?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_mend(line: str, message: str) -> None:
    with pytest.raises(LineError, match=message):
        read_line(shlex.split(line))


def test_a_folder_with_nearly_the_name_of_a_model_is_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm").mkdir()
    assert read_line(["serve", "smollm"]).arguments == ("model=checkpoint", "model.path=smollm")


def test_generate_and_tune_get_ranks_of_their_own() -> None:
    for name in ("generate", "tune"):
        line = read_line([name, "--ranks", "3"])
        assert (line.program.spawns, line.ranks, line.arguments) == (True, 3, ())
    assert not read_line(["serve", "--ranks", "3"]).program.spawns
