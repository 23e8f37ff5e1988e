"""launch/generate.py with decode=best_of and decode=contrastive."""

from __future__ import annotations

import json

import pytest

from tests.launch.conftest import Main


@pytest.mark.slow
def test_the_best_of_several_samples(main: Main, folder: str) -> None:
    common = f"model.path={folder}", "prompt=def f(", "max_new_tokens=12", "sampling.seed=3"
    sampled = *common, "decode=best_of", "sampling.temperature=0.8", "decode.num_return_sequences=4"
    code, out, err = main(*sampled, "format=json")
    assert code == 0, err
    record = json.loads(out)
    texts = record["beams"]["texts"]
    assert (record["decode"], record["text"], len(texts)) == ("best_of", texts[0]["text"], 4)
    code, out, err = main(*sampled)
    assert code == 0 and f"2. (score {texts[1]['score']:.4f})" in err
    assert f"score {texts[0]['score']:.4f}; " in err and " steps of all samples" in err
    code, _, err = main(*common, "decode=best_of")
    assert code != 0 and "temperature=0 is not for decode=best_of" in err


def test_contrastive_decoding_with_the_first_layers_as_the_amateur(main: Main, folder: str) -> None:
    common = f"model.path={folder}", "prompt=def f(", "max_new_tokens=12", "format=json", "ignore_eos=true"
    texts = []
    for inner in ("auto", "lookahead", "autoregressive"):
        code, out, err = main(*common, "decode=contrastive", "second.layers=1", f"decode.inner={inner}")
        assert code == 0, err
        texts.append(json.loads(out)["token_ids"])
    assert texts == [texts[0]] * 3 and texts[0] != json.loads(main(*common)[1])["token_ids"]
    code, _, err = main(*common, "decode=contrastive")
    assert code != 0 and "decode=contrastive needs an amateur" in err
