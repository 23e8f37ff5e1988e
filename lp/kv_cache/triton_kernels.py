"""Copies tokens within an arena of keys and values, as a Triton kernel. Import this only where Triton is."""
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["most_moves"])
def move(slots, moves, move_starts, layer_stride, token_stride, most_moves, BLOCK: tl.constexpr):
    """Programs [n layers' keys and values, blocks of a token's numbers, G].

    slots: [n, slots, numbers]. moves: int64 [2, most_moves]. move_starts: int64 [G + 1], the first move of each group.
    One thread copies the same numbers of every token of a group, one token after the other, so a target may be the
    source of an earlier move of the group.
    """
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_number = number < token_stride
    layer = slots + tl.program_id(0).to(tl.int64) * layer_stride
    group = tl.program_id(2)
    for one in range(tl.load(move_starts + group), tl.load(move_starts + group + 1)):
        source = tl.load(moves + one)
        target = tl.load(moves + most_moves + one)
        copied = tl.load(layer + source * token_stride + number, mask=is_number)
        tl.store(layer + target * token_stride + number, copied, mask=is_number)
