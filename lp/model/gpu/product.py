"""Products whose every row is computed alike, whatever other rows are in the step.

R rows, K inputs, N outputs
"""

from __future__ import annotations

from torch import Tensor

from lp.platform import build as kernels

# A tile: rows, outputs where there are few and where there are many, bytes of inputs that are added at a time.
ROWS, FEW_OUTPUTS, MANY_OUTPUTS, INPUT_BYTES = 64, 32, 128, 128
# The number of outputs from which tiles of many outputs keep a large GPU busy.
MANY = 16384


def tile_outputs(num_outputs: int) -> int:
    """Outputs of a tile. They depend on the weight alone, never on the number of rows."""
    return MANY_OUTPUTS if num_outputs >= MANY else FEW_OUTPUTS


def block_of_inputs(itemsize: int) -> int:
    """Inputs that are added at a time: as many as shared memory holds, whatever the number of rows."""
    return INPUT_BYTES // itemsize


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [R, K], weight [K, N] with any strides, bias [N] -> [R, N] in the format of x."""
    from lp.model.gpu import invariant_kernels

    num_rows, (num_inputs, num_outputs) = len(x), weight.shape
    out = x.new_empty(num_rows, num_outputs)
    block = tile_outputs(num_outputs)
    kernels.start(
        invariant_kernels.multiply, (-(-num_rows // ROWS), -(-num_outputs // block)),
        x, weight, weight if bias is None else bias, out, num_rows, x.stride(0), weight.stride(0), weight.stride(1),
        K=num_inputs, N=num_outputs, HAS_BIAS=bias is not None, BLOCK_M=ROWS, BLOCK_N=block,
        BLOCK_K=block_of_inputs(x.element_size()),
        num_warps=8 if block == MANY_OUTPUTS else 4, num_stages=3,
    )  # fmt: skip
    return out
