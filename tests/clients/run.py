"""Runs the tests of clients against one server: python -m tests.clients.run [--model smollm2] [CLIENT ...].

Every client's tests run in the client's own environment. Where it cannot be made, they are skipped with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.clients.environments import REQUIREMENTS, Environment, environment_of

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
START_LIMIT_S = 300
NO_TESTS = 5  # pytest's exit code where every test of a file is deselected
# Characters of an error in the server's log that are shown.
MOST_OF_AN_ERROR = 6000
DEMO = CHECKOUT / "demo" / "python-11m"
# The demo model continues Python and knows no conversation; with a template, it answers one like any other text.
TEMPLATE = (
    "{% if tools %}# tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls or [] %}# called: {{ call.function | tojson }}\n{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}# assistant: {% endif %}"
)


@contextlib.contextmanager
def model_setting(model: str) -> Iterator[str]:
    """Yields the setting by which the server finds a model of conf/model. The demo model gets a chat template."""
    if model != "demo":
        yield f"model={model}"
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, DEMO.name)
        folder.mkdir()
        for path in DEMO.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        yield f"model.path={folder}"


@contextlib.contextmanager
def serving(*settings: str) -> Iterator[str]:
    """Starts the server as a process on a free port of this machine, and yields its address. An error that ends its
    engine is shown at the end.
    """
    command = [sys.executable, CHECKOUT / "launch" / "serve.py", "server.port=0", *settings]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(command, stderr=log, env=environment_of({"PYTHONPATH": str(CHECKOUT)}), cwd=CHECKOUT)
        try:
            yield _address(process, Path(log.name))
        finally:
            process.terminate()
            process.wait(60)
            _, found, error = Path(log.name).read_text(errors="replace").partition("the engine stopped:")
            if found:
                print(f"\nthe server's log has an error:\n{found}{error[:MOST_OF_AN_ERROR]}", flush=True)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Waits until the server is ready, and reads its address from its log."""
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        found = [word.strip(",;") for word in log.read_text().split() if word.startswith("http://127.0.0.1:")]
        with contextlib.suppress(httpx.TransportError):
            if found and httpx.get(f"{found[0]}/ready").status_code == 200:
                return found[0]
        time.sleep(0.2)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def main() -> int:
    known = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"one of {', '.join(known)}; default: all")
    parser.add_argument("--model", default="demo", help="what `model=` of the server is set to")
    parser.add_argument("--environments", type=Path, default=CHECKOUT / ".venv-clients")
    parser.add_argument("--pytest", default="", help="more arguments for pytest")
    arguments = parser.parse_args()
    if unknown := set(arguments.clients) - set(known):
        parser.error(f"there is no client {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = []
    with model_setting(arguments.model) as setting, serving(setting) as url:
        for client in arguments.clients or known:
            print(f"\n== {client}", flush=True)
            environment = Environment(arguments.environments, client)
            environment.make()
            if run_tests(environment, url, arguments.model, arguments.pytest.split()) not in (0, NO_TESTS):
                failed.append(client)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall clients passed or were skipped")
    return 1 if failed else 0


def run_tests(environment: Environment, url: str, model: str, options: list[str]) -> int:
    variables = {
        "LOOKAHEAD_CLIENT_URL": url,
        "LOOKAHEAD_CLIENT_MODEL": model,
        "LOOKAHEAD_CLIENT_REASON": environment.reason or "",
        "LOOKAHEAD_CLIENT_PYTHON": sys.executable,
    }
    test = HERE / f"test_{environment.client}.py"
    command = [environment.python, "-m", "pytest", "-c", HERE / "pytest.ini", *options, test]
    return subprocess.run(command, env=environment_of(variables), cwd=CHECKOUT).returncode


if __name__ == "__main__":
    sys.exit(main())
