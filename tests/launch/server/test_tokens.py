"""Names and bytes of tokens, for byte-level and for SentencePiece vocabularies."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from launch.server.openai_replies import TokenNames
from tests.launch.server.checkpoint import make_tokenizer


def test_byte_level_tokens_make_up_the_text():
    tokenizer = make_tokenizer(None)
    names = TokenNames(tokenizer)
    text = "def f(naïve): 数 🙂\t\n"
    tokens = tokenizer.encode(text)
    assert b"".join(names.bytes_of(token) for token in tokens) == text.encode()
    assert names.name(tokenizer.encode("def")[0]) == "def"
    assert names.name(tokenizer.encode("ï")[0]) == "bytes:\\xc3"
    assert names.name(tokenizer.eos_token_id) == "<|end|>"


def test_an_id_beyond_the_vocabulary_has_no_bytes():
    assert TokenNames(make_tokenizer(None)).bytes_of(5_000) == b""


def test_sentencepiece_tokens():
    vocabulary = {"<unk>": 0, "▁def": 1, "f": 2, "<0xF0>": 3, "é": 4}
    backend = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = TokenNames(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    assert [names.bytes_of(token) for token in (1, 2, 3, 4)] == [b" def", b"f", b"\xf0", "é".encode()]
    assert names.name(3) == "bytes:\\xf0"


def test_a_reply_may_name_tokens_by_their_ids():
    names = TokenNames(make_tokenizer(None))
    by_id = names.for_reply(True)
    assert by_id.name(7) == "token_id:7" and by_id.bytes_of(7) == names.bytes_of(7)
    assert names.for_reply(False).name(7) == names.name(7) != by_id.name(7), "other replies keep the texts"
