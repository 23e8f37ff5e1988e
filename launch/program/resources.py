"""Where files that come with the programs lie: in a wheel inside the package, in a checkout in folders of their own.

Imports nothing but Python's own modules.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# By what a file is called everywhere (its path in the checkout), the folder of the wheel that holds the same; see
# [tool.setuptools.package-dir] in pyproject.toml.
IN_WHEEL = {"conf": "conf", "demo/python-11m": "models/python-11m"}


def conf() -> Path:
    """The folder of the settings' defaults."""
    return resource("conf")


def resource(name: str) -> Path:
    """The folder that is called so in a checkout. name: a key of IN_WHEEL."""
    shipped = PACKAGE / IN_WHEEL[name]
    return shipped if shipped.is_dir() else PACKAGE.parent / name
