"""How heads and columns are dealt out among ranks."""

from __future__ import annotations

import pytest

from parallel.sharding.slices import HeadShare, deal, deal_heads

COUNTS = [(9, 3), (6, 2), (3, 1), (4, 1), (5, 5), (7, 7), (32, 8), (40, 10), (71, 1), (14, 2)]


@pytest.mark.parametrize(
    ("num_query", "num_key_value", "count", "expected"),
    [
        (9, 3, 2, [("0-6", "0-2"), ("6-9", "2-3")]),
        (9, 3, 3, [("0-3", "0-1"), ("3-6", "1-2"), ("6-9", "2-3")]),
        (9, 3, 4, [("0-2", "0-1"), ("2-3", "0-1"), ("3-6", "1-2"), ("6-9", "2-3")]),
        (3, 1, 2, [("0-2", "0-1"), ("2-3", "0-1")]),
        (5, 5, 3, [("0-2", "0-2"), ("2-4", "2-4"), ("4-5", "4-5")]),
        (8, 2, 4, [("0-2", "0-1"), ("2-4", "0-1"), ("4-6", "1-2"), ("6-8", "1-2")]),
    ],
)
def test_heads_are_dealt_out_by_groups(
    num_query: int, num_key_value: int, count: int, expected: list[tuple[str, str]]
) -> None:
    assert deal_heads(num_query, num_key_value, count) == [
        HeadShare(range(*map(int, query.split("-"))), range(*map(int, key_value.split("-"))))
        for query, key_value in expected
    ]


@pytest.mark.parametrize(("num_query", "num_key_value"), COUNTS)
def test_every_query_head_is_held_once_beside_its_own_key_value_head(num_query: int, num_key_value: int) -> None:
    group = num_query // num_key_value
    for count in range(1, num_query + 1):
        held = deal_heads(num_query, num_key_value, count)
        assert len(held) == count
        assert [head for share in held for head in share.query] == list(range(num_query))
        for share in held:
            own = [head // group for head in share.query]
            assert own == [head for head in share.key_value for _ in range(share.group)]
        numbers = [len(share.key_value) for share in held]
        assert max(numbers) - min(numbers) <= 1
        assert max(numbers) == -(-num_key_value // count)
        assert sum(numbers) == max(num_key_value, count)  # no key/value head is repeated more often than needed


def test_a_single_rank_holds_all_heads() -> None:
    assert deal_heads(9, 3, 1) == [HeadShare(range(9), range(3))]
    assert deal_heads(9, 3, 1)[0].group == 3


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        (1536, 2, [768, 768]),
        (10, 5, [2] * 5),
        (11_008, 3, [3648, 3648, 3712]),  # multiples of 64
        (50_257, 2, [25_152, 25_105]),  # the last one is cut short
        (1000, 3, [320, 352, 328]),
        (70, 4, [16, 18, 18, 18]),
        (5, 4, [1, 1, 1, 2]),
    ],
)
def test_columns_are_dealt_out_in_multiples(size: int, count: int, expected: list[int]) -> None:
    assert [len(held) for held in deal(size, count)] == expected


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        (1536, 2, [768, 768]),
        (13_696, 8, [1664] * 2 + [1728] * 6),  # instead of 1712, which no 32 divides
        (1600, 2, [800, 800]),
        (1568, 2, [768, 800]),
        (96, 2, [48, 48]),  # 32 and 64 would be too uneven
    ],
)
def test_columns_of_packed_weights_are_dealt_out_in_multiples_where_that_is_nearly_even(
    size: int, count: int, expected: list[int]
) -> None:
    assert [len(held) for held in deal(size, count, multiple=32)] == expected


def test_columns_are_dealt_out_without_a_gap_and_evenly() -> None:
    for size in [*range(1, 200), 1000, 1536, 4097, 50_257]:
        for count in range(1, min(size, 9) + 1):
            held = deal(size, count)
            assert [column for own in held for column in own] == list(range(size))
            assert len(held[0]) > 0 and max(map(len, held)) <= max(-(-size // count), 17 / 16 * size / count)
