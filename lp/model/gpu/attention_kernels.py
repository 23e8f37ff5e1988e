"""Tree attention over keys and values in pages, as Triton kernels. Import this only where Triton is.

The keys and values of a step's rows are in their places before attention starts. A row sees the cached prefix of its
sequence, and those of the step's rows that its row of `visible` names. The softmax is computed block by block of keys,
as in FlashAttention (Dao, arXiv 2307.08691), in float32.

    R rows, H key/value heads, G query heads for each of them, D numbers of a value, S splits, P tokens of a page
"""

import triton
import triton.language as tl

# Keys of a share of a prefix, at least: fewer would not be worth a program.
LEAST_KEYS = tl.constexpr(256)


@triton.jit(do_not_specialize=["num_rows", "max_pages"])
def attend(
    queries, keys, values, sinks, out, parts, sums, counters, slots, positions, visible, sequence_of, row_starts,
    block_table, lengths, num_rows, max_pages, query_stride, head_stride, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, SPLITS: tl.constexpr,
    MERGED: tl.constexpr,
):  # fmt: skip
    """Programs [tiles of ROWS rows, H, S]. Each takes all query heads of one key/value head. The S programs of a tile
    take turns: a share of the prefix of a sequence each, then the sequence's own rows of the step, then the next
    sequence's. Writes attention if S is 1 or MERGED is not 0, else unscaled sums for `merge`.

    MERGED: query rows that the last program of a tile to finish merges at a time. counters: int32 [tiles, H], all 0
    before and afterwards. sinks: [H * G], the score of a further key without a value; the first of S programs has it.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    v = tl.arange(0, BLOCK_V)
    n = tl.arange(0, BLOCK_N)
    row = tile * ROWS + m // GROUPS
    query_head = head * GROUPS + m % GROUPS
    is_row = (m < ROWS * GROUPS) & (row < num_rows)
    is_query = is_row[:, None] & (d < HEAD_DIM)[None, :]
    at = row[:, None] * query_stride + query_head[:, None] * head_stride + d[None, :]
    query = tl.load(queries + at, mask=is_query, other=0.0).to(keys.dtype.element_ty)
    position = tl.load(positions + row, mask=is_row, other=0).to(tl.int32)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + query_head, mask=is_row, other=0.0).to(tl.float32)
        most = tl.where(split == 0, sink, most)
        total += tl.where(split == 0, 1.0, 0.0)
    result = tl.full([BLOCK_M, BLOCK_V], 0.0, tl.float32)
    last_row = tl.minimum(tile * ROWS + ROWS, num_rows) - 1
    next_program = 0  # the one that takes the next share
    for one in range(tl.load(sequence_of + tile * ROWS), tl.load(sequence_of + last_row) + 1):
        first = tl.load(row_starts + one)
        behind = tl.load(row_starts + one + 1)
        length = tl.load(lengths + one)
        is_own = (row >= first) & (row < behind)
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(length + 1 - WINDOW, 0) // BLOCK_N
        if CHUNK > 0:
            begin = length // CHUNK * CHUNK // BLOCK_N
        end = (length + BLOCK_N - 1) // BLOCK_N
        share = tl.maximum((end - begin + SPLITS - 1) // SPLITS, LEAST_KEYS // BLOCK_N)
        num_shares = (end - begin + share - 1) // share
        takes_own_rows = split == (next_program + num_shares) % SPLITS
        begin += (split + SPLITS - next_program) % SPLITS * share
        end = tl.minimum(begin + share, end)
        next_program = (next_program + num_shares + 1) % SPLITS
        pages = block_table + one * max_pages
        # The page of a block is loaded one block ahead, so that loads of keys and values need not wait for it.
        page = tl.load(pages + begin * BLOCK_N // PAGE, mask=begin < end, other=0)
        for block in range(begin, end):
            key_position = block * BLOCK_N + n
            place = page.to(tl.int64) * PAGE + (block * BLOCK_N % PAGE + n)
            page = tl.load(pages + (block + 1) * BLOCK_N // PAGE, mask=block + 1 < end, other=0)
            is_key = key_position < length
            pointer = (place * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
            is_number = is_key[:, None] & (d < HEAD_DIM)[None, :]
            key = tl.load(keys + pointer, mask=is_number, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if SOFTCAP > 0:
                scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0))
            is_seen = is_own[:, None] & is_key[None, :]
            if WINDOW > 0:
                is_seen = is_seen & (position[:, None] - key_position[None, :] < WINDOW)
            if CHUNK > 0:
                is_seen = is_seen & ((position // CHUNK)[:, None] == (key_position // CHUNK)[None, :])
            scores = tl.where(is_seen, scores, float("-inf"))
            highest = tl.maximum(most, tl.max(scores, axis=1))
            base = tl.where(highest == float("-inf"), 0.0, highest)
            shares = tl.exp(scores - base[:, None])
            decay = tl.exp(most - base)
            total = total * decay + tl.sum(shares, axis=1)
            pointer = (place * HEADS + head)[:, None] * VALUE_DIM + v[None, :]
            value = tl.load(values + pointer, mask=is_key[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
            result = result * decay[:, None]
            result += tl.dot(shares.to(value.dtype), value, input_precision="ieee")
            most = highest
        last_block = tl.where(takes_own_rows, (behind + BLOCK_N - 1) // BLOCK_N, 0)
        for block in range(first // BLOCK_N, last_block):
            other = block * BLOCK_N + n
            is_key = (other >= first) & (other < behind)
            place = tl.load(slots + other, mask=is_key, other=0)
            pointer = (place * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
            is_number = is_key[:, None] & (d < HEAD_DIM)[None, :]
            key = tl.load(keys + pointer, mask=is_number, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if SOFTCAP > 0:
                scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0))
            is_pair = (is_row & is_own)[:, None] & is_key[None, :]
            is_seen = tl.load(visible + row[:, None] * num_rows + other[None, :], mask=is_pair, other=0) != 0
            if WINDOW + CHUNK > 0:
                key_position = tl.load(positions + other, mask=is_key, other=0).to(tl.int32)
            if WINDOW > 0:
                is_seen = is_seen & (position[:, None] - key_position[None, :] < WINDOW)
            if CHUNK > 0:
                is_seen = is_seen & ((position // CHUNK)[:, None] == (key_position // CHUNK)[None, :])
            scores = tl.where(is_seen, scores, float("-inf"))
            highest = tl.maximum(most, tl.max(scores, axis=1))
            base = tl.where(highest == float("-inf"), 0.0, highest)
            shares = tl.exp(scores - base[:, None])
            decay = tl.exp(most - base)
            total = total * decay + tl.sum(shares, axis=1)
            pointer = (place * HEADS + head)[:, None] * VALUE_DIM + v[None, :]
            value = tl.load(values + pointer, mask=is_key[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
            result = result * decay[:, None]
            result += tl.dot(shares.to(value.dtype), value, input_precision="ieee")
            most = highest
    target = row * (HEADS * GROUPS) + query_head
    is_out = is_row[:, None] & (v < VALUE_DIM)[None, :]
    if SPLITS == 1:
        tl.store(out + target[:, None] * VALUE_DIM + v[None, :], result / total[:, None], mask=is_out)
    else:
        target += split * num_rows * (HEADS * GROUPS)
        tl.store(parts + target[:, None] * VALUE_DIM + v[None, :], result, mask=is_out & (total > 0.0)[:, None])
        tl.store(sums + target * 2, most, mask=is_row)
        tl.store(sums + target * 2 + 1, total, mask=is_row)
        if MERGED > 0:
            counter = counters + tile * HEADS + head
            tl.debug_barrier()  # all threads have stored before one of them signals other programs
            if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
                for done in range(0, (last_row + 1 - tile * ROWS) * GROUPS, MERGED):
                    m_merged = done + tl.arange(0, MERGED)
                    merged_row = tile * ROWS + m_merged // GROUPS
                    merged = merged_row * (HEADS * GROUPS) + head * GROUPS + m_merged % GROUPS
                    merge_shares(
                        parts, sums, out, merged, merged_row <= last_row, num_rows * (HEADS * GROUPS), VALUE_DIM,
                        BLOCK_V, SPLITS,
                    )  # fmt: skip
                tl.store(counter, 0)


@triton.jit(do_not_specialize=["num_rows"])
def merge(
    parts, sums, out, num_rows,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Programs [R, all query heads]: see merge_shares."""
    target = tl.program_id(0) * HEADS + tl.program_id(1) + tl.arange(0, 1)
    merge_shares(parts, sums, out, target, target >= 0, num_rows * HEADS, VALUE_DIM, BLOCK_V, SPLITS)


@triton.jit
def merge_shares(
    parts, sums, out, target, is_target, num_targets,
    VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Writes attention [targets, D] of some targets, which are query heads of rows: target, is_target [T].

    parts: [S, targets, D] float32, not written for targets without keys. sums: [S, targets, 2], the largest score and
    the sum of shares.
    """
    v = tl.arange(0, BLOCK_V)
    at = tl.arange(0, SPLITS)[None, :] * num_targets + target[:, None]
    most = tl.load(sums + at * 2, mask=is_target[:, None], other=0.0)
    shares = tl.exp(most - tl.max(most, axis=1, keep_dims=True))
    total = tl.sum(tl.load(sums + at * 2 + 1, mask=is_target[:, None], other=1.0) * shares, axis=1, keep_dims=True)
    is_number = v < VALUE_DIM
    is_part = is_target[:, None] & (most > float("-inf"))
    part = tl.load(
        parts + at[:, :, None] * VALUE_DIM + v[None, None, :],
        mask=is_part[:, :, None] & is_number[None, None, :], other=0.0,
    )  # fmt: skip
    result = tl.sum(part * shares[:, :, None], axis=1) / total  # pyright: ignore[reportOperatorIssue]
    tl.store(out + target[:, None] * VALUE_DIM + v[None, :], result, mask=is_target[:, None] & is_number[None, :])
