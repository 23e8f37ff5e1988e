"""Has the product with the output embedding screened: where only the likeliest token of a row is wanted, most of its
outputs are computed with the upper halves of the weight's codes alone (lp/model/quantization/split.py).
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lp.model.program.steps import AllGather, ExpertProduct, Gather, Product, Program, Value, reads
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.split import SplitWeight, can_split
from lp.model.quantization.weight import QuantizedWeight

# The least share of the bytes of all products that must be the output embedding's. Where it is less, bounds cost more
# than they save (docs/log/kernels.md).
LEAST_SHARE = 0.5


def screen_output(program: Program) -> None:
    """Splits the output embedding, if its product gives the logits as they are and reads most of a step's bytes."""
    products = [step for step in program.steps if isinstance(step, Product | ExpertProduct)]
    logits = _own_logits(program)
    head = next((step for step in products if isinstance(step, Product) and step.out is logits), None)
    if head is None or not isinstance(head.weight, QuantizedWeight) or not can_split(head.weight):
        return
    whole, every = head.weight, {id(step.weight): _num_bytes(step.weight) for step in products}
    if every[id(whole)] < LEAST_SHARE * sum(every.values()):
        return
    split = SplitWeight(whole)
    for number, step in enumerate(program.steps):
        if isinstance(step, Product) and step.weight is whole:
            program.steps[number] = replace(step, weight=split)
        elif isinstance(step, Gather) and step.table is whole:
            program.steps[number] = replace(step, table=split)


def _own_logits(program: Program) -> Value | None:
    """The logits that this rank computes; None if there are none, or if a step uses them.

    Where ranks share the vocabulary, an all-gather makes the program's output of them.
    """
    if not program.gives_logits:
        return None
    gathers = (step for step in program.steps if isinstance(step, AllGather) and step.out is program.output)
    gather = next(gathers, None)
    own = gather.x.source if gather else program.output
    assert isinstance(own, Value), "logits are computed"
    others = (step for step in program.steps if step is not gather)
    return None if any(read.source is own for step in others for read in reads(step)) else own


def _num_bytes(weight: Tensor | QuantizedWeight | QuantizedExperts) -> int:
    return weight.nbytes if isinstance(weight, Tensor) else weight.num_bytes
