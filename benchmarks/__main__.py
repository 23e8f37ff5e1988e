"""Lists the benchmark commands, or runs the one that is named.

python -m benchmarks                   lists the commands
python -m benchmarks NAME --help       explains one and its options
python -m benchmarks NAME [OPTIONS]    runs it, as `python -m benchmarks.NAME [OPTIONS]` does

The name of a command in a folder begins with the folder's: paper.ablation.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{(__doc__ or '').strip()}\n\n{list_commands()}")
        return
    name = arguments[0]
    if name not in find_commands():
        print(f"there is no benchmark {name!r}; there are:\n\n{list_commands()}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = arguments
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


def find_commands() -> dict[str, str]:
    """The first line of each command's docstring, by the command's name. Nothing is imported."""
    found = {}
    packages = FOLDER.glob("*/__main__.py")
    for path in sorted([*FOLDER.rglob("[!_]*.py"), *packages], key=lambda path: (path.parent != FOLDER, path)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            name = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__main__")
            found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def list_commands() -> str:
    """One line for each command."""
    commands = find_commands()
    width = max(map(len, commands))
    return "\n".join(f"    {name:{width}}  {sentence}" for name, sentence in commands.items())


if __name__ == "__main__":
    main()
