"""Methods take turns on prompts, and their texts are added up."""

from __future__ import annotations

from benchmarks.shared.decoded_texts import DecodedText, add_up, take_turns


def test_the_method_that_begins_rotates_and_texts_keep_the_order_of_the_prompts() -> None:
    calls: list[tuple[str, int]] = []

    def method(name: str):
        def decode(prompt: list[int], number: int) -> DecodedText:
            calls.append((name, number))
            return DecodedText(prompt, 1, 1)

        return decode

    prompts = [[1], [2], [3]]
    texts = take_turns({"a": method("a"), "b": method("b")}, prompts)
    assert calls == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [text.tokens for text in texts["b"]] == prompts


def test_totals_are_sums_and_count_the_expected_texts() -> None:
    expected = [DecodedText([1, 2, 3, 4], 4, 4, 2.0), DecodedText([5, 6], 2, 2, 1.0)]
    total = add_up([DecodedText([1, 2, 3, 4], 2, 20, 1.0), DecodedText([5, 7], 1, 10, 0.5)], expected)
    assert (total.tokens, total.steps, total.rows, total.seconds, total.same_text) == (6, 3, 30, 1.5, 1)
    assert (total.tokens_per_step, total.rows_per_step, total.tokens_per_s) == (2, 10, 4)
