"""Copies tokens within an arena of keys and values, as a Triton kernel. Import this only where Triton is."""
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def move(slots, moves, num_moves, layer_stride, token_stride, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """Programs [n layers' keys and values, blocks of a token's numbers].

    slots: [n, slots, numbers]. moves: int64 [2, MOST], of which the first `num_moves` (int64 [1]) count. One thread
    copies the same numbers of every token, one token after the other, so a target may be the source of an earlier move.
    """
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_number = number < token_stride
    layer = slots + tl.program_id(0).to(tl.int64) * layer_stride
    for one in range(tl.load(num_moves)):
        source = tl.load(moves + one)
        target = tl.load(moves + MOST + one)
        copied = tl.load(layer + source * token_stride + number, mask=is_number)
        tl.store(layer + target * token_stride + number, copied, mask=is_number)
