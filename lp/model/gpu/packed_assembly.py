"""PTX that turns codes of four inputs into numbers of 16 bits, which is less than half of what Triton makes of it.

The numbers of two inputs share a register all along: a code is written into the last bits of the mantissa of 2 ** 7
(bfloat16) or 2 ** 10 (float16), from which that power and the format's zero are subtracted. The results are exact.
"""

from __future__ import annotations

import triton

# Which bytes of a register come to the lower bytes of two halves of 16 bits: those of the first two inputs, or of the
# others. 4 stands for a byte that is 0.
HALVES = (0x4140, 0x4342)


@triton.constexpr_function
def decode_pairs(bits: int, zero: float, is_bfloat16: bool, place: int) -> str:
    """Decodes codes of 4 to 6 bits: gives four numbers for the lower halves of four bytes, and four for the upper ones.

    place: which bits of four further bytes are upper bits, for codes of 5 and 6 bits.
    """
    num_bits = bits - 4
    power, one = (0x4300, 0x3F80) if is_bfloat16 else (0x6400, 0x3C00)
    lines = [".reg .b32 codes, bits, low, power, one, zero;"]
    for name, number in (("power", power), ("one", one), ("zero", power | 0x8000 | int(zero))):
        lines.append(f"mov.b32 {name}, {number << 16 | number:#x};")
    for half, selector in enumerate(HALVES):
        lines.append(f"prmt.b32 codes, $4, 0, {selector:#x};")
        if num_bits:
            lines.append(f"prmt.b32 bits, $5, 0, {selector:#x};")
        for group in range(2):
            out = f"${2 * group + half}"
            if group:
                lines.append("shr.u32 codes, codes, 4;")
            lines.append(f"lop3.b32 {out}, codes, 0x000F000F, power, 0xEA;")
            if num_bits:
                mask = ((1 << num_bits) - 1) << 4
                shift = 4 - num_bits * (2 * place + group)
                lines.append(f"{'shl.b32' if shift > 0 else 'shr.u32'} low, bits, {abs(shift)};")
                lines.append(f"lop3.b32 {out}, low, {mask << 16 | mask:#x}, {out}, 0xEA;")
            lines.append(f"fma.rn.{'bf16x2' if is_bfloat16 else 'f16x2'} {out}, {out}, one, zero;")
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def decode_bytes(zero: float, is_bfloat16: bool) -> str:
    """Decodes four codes of 8 bits."""
    lines = [".reg .b32 power;", ".reg .f32 n0, n1, n2, n3;", "mov.b32 power, 0x4B000000;"]
    for place in range(4):
        lines.append("{ .reg .b32 number;")
        lines.append(f"prmt.b32 number, $2, power, {0x7440 + place:#x};")
        lines.append(f"mov.b32 n{place}, number;")
        lines.append(f"add.f32 n{place}, n{place}, 0f{0xCB000000 + int(zero):08X}; }}")
    dtype = "bf16x2" if is_bfloat16 else "f16x2"
    lines.append(f"cvt.rn.{dtype}.f32 $0, n1, n0;")
    lines.append(f"cvt.rn.{dtype}.f32 $1, n3, n2;")
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def write_ones(is_bfloat16: bool) -> str:
    """Gives four ones for any four bytes."""
    one = 0x3F803F80 if is_bfloat16 else 0x3C003C00
    return f"mov.b32 $0, {one:#x}; mov.b32 $1, {one:#x};"
