"""Makes a model's fused forward: its program, with fewer and smaller operations, as a plan of kernels."""

from __future__ import annotations

from lp.kv_cache.arena import Arena
from lp.model.causal import CausalModel
from lp.model.gpu.forward import FusedForward
from lp.model.gpu.passes import choose_formats, look_up_apart, merge_products
from lp.model.gpu.plan import RunProduct, make_plan
from lp.model.gpu.product import multiply as multiply_alike
from lp.model.gpu.product_times import Timer, choose_products
from lp.model.gpu.products import Products
from lp.model.gpu.prompts import PromptAttention
from lp.model.program.record import Inexpressible
from lp.model.program.schedule import schedule
from lp.model.program.steps import Attention, Program, outline
from lp.model.program.translate import FEW_ROWS, MORE_ROWS, translate
from lp.platform import build as kernels


def make_fused(
    model: CausalModel, arena: Arena, is_invariant: bool = False, timer: Timer | None = None
) -> FusedForward:
    """timer: times the candidates for each product of few rows, unless the forward is invariant; None leaves all
    products to cuBLAS. Those with quantised weights have one kernel.

    Raises Inexpressible for a model that has no fused form, and CannotBuild where there is no Triton.
    """
    if missing := kernels.missing_triton():
        raise kernels.CannotBuild(missing)
    program = make_program(model)
    plan = make_plan(program, schedule(program), model.dtype)
    if is_invariant:
        return FusedForward(program, plan, model.dtype, arena, multiply_alike, is_invariant)
    products = Products(arena.device)
    if timer is not None:
        weights = [(one.weight, one.bias) for one in plan if isinstance(one, RunProduct)]
        choose_products(products, weights, arena.device, timer)
    attention = [step for step in program.steps if isinstance(step, Attention)]
    prompts = PromptAttention(attention, model.dtype, arena.device)
    return FusedForward(program, plan, model.dtype, arena, products, prompts=prompts)


def merge_weights(model: CausalModel) -> bool:
    """Merges the weights of a model in place, if it has a fused form. Its forward finds them merged.

    To be called before memory for keys and values takes what is left. Returns whether the model has such a form.
    """
    if kernels.missing_triton():
        return False
    try:
        merge_products(_translate(model, MORE_ROWS), model.model.parameters())
    except Inexpressible:
        return False
    return True


def make_program(model: CausalModel) -> Program:
    """The model's program as a GPU runs it. Weights that are multiplied with the same rows become one tensor.

    Raises Inexpressible if it depends on the number of rows, on tokens or on positions.
    """
    program = _translate(model, MORE_ROWS)
    if outline(program) != outline(_translate(model, FEW_ROWS)):
        raise Inexpressible("what it does depends on the number of rows, on tokens or on positions")
    merge_products(program, model.model.parameters())
    look_up_apart(program)
    choose_formats(program, model.dtype)
    return program


def _translate(model: CausalModel, num_rows: int) -> Program:
    """The program of a model. Raises Inexpressible also for one whose steps have no kernels here."""
    if model.is_recurrent:
        raise Inexpressible("it has recurrent layers")
    return translate(model, num_rows)
