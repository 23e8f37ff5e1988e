"""Lookahead decoding on one device: the algorithm, the model adapter and the engine.

Knows no other rank, no configuration file and no HTTP. The names below are imported when they are first used, so that a
module that needs no model, such as lp.platform.disk_cache, is imported without PyTorch. So is `__version__`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lp.custom_generate import generate
    from lp.engine.engine import Engine
    from lp.grammar.settings import Grammar
    from lp.methods.auto.method import Auto
    from lp.methods.autoregressive import Autoregressive
    from lp.methods.beam import Beam
    from lp.methods.best_of import BestOf
    from lp.methods.contrastive import Contrastive
    from lp.methods.draft_model.method import DraftModel
    from lp.methods.jacobi import Jacobi
    from lp.methods.lookahead import Lookahead
    from lp.methods.medusa import Medusa
    from lp.methods.prompt_lookup import PromptLookup
    from lp.model.second_model import SecondModel
    from lp.request import Completion, DecodeLimits, Output
    from lp.sampling.settings import Sampling
    from lp.text.stopping import Stopping
    from lp.trace import StepTrace

    __version__: str

__all__ = [
    "Auto",
    "Autoregressive",
    "Beam",
    "BestOf",
    "Completion",
    "Contrastive",
    "DecodeLimits",
    "DraftModel",
    "Engine",
    "Grammar",
    "Jacobi",
    "Lookahead",
    "Medusa",
    "Output",
    "PromptLookup",
    "Sampling",
    "SecondModel",
    "StepTrace",
    "Stopping",
    "generate",
]

_CHECKOUT = Path(__file__).resolve().parents[1]
# The modules of the names that are not settings of a decoding method.
_MODULES = {
    "Completion": "lp.request",
    "DecodeLimits": "lp.request",
    "Engine": "lp.engine.engine",
    "Grammar": "lp.grammar.settings",
    "Output": "lp.request",
    "Sampling": "lp.sampling.settings",
    "SecondModel": "lp.model.second_model",
    "StepTrace": "lp.trace",
    "Stopping": "lp.text.stopping",
    "generate": "lp.custom_generate",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return read_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "lp.methods.registry")), name)


def read_version(package: str = "lookahead-parallel", checkout: Path = _CHECKOUT) -> str:
    """The version of the installed package, such as 0.1.0. If it is not installed, that of the checkout with +checkout
    after it.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        import tomllib  # late: nearly always the package is installed

        project = checkout / "pyproject.toml"
        known = tomllib.loads(project.read_text(encoding="utf-8")) if project.is_file() else {}
        return f"{known.get('project', {}).get('version', '0')}+checkout"


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
