"""Makes the pictures of the page for README.md and docs/usage.md: docs/pictures/page-light.png and page-dark.png.

python -m tests.page.screenshots                                # starts a server with two ranks of a 135M model
python -m tests.page.screenshots --url http://127.0.0.1:8000    # of a server that runs, with the model it has
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.launch import commands
from tests.page.actions import ask
from tests.page.install import find_system_browser
from tests.page.server import address

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write the same function again, with a comment on every line.",
)
ARGUMENTS = ("launcher=local", "parallel.ranks=2", "server.port=0", "server.page_kills_ranks=true", "model=smollm2")
# How good a picture the shown step makes: it has many accepted tokens and a tree with branches, all of it in view.
SCORE = """() => {
    const [canvas, nodes, lit] = ["#canvas", ".node", ".node-lit"].map((one) => document.querySelectorAll(one));
    const fits = canvas[0].scrollWidth <= canvas[0].clientWidth && canvas[0].scrollHeight <= canvas[0].clientHeight;
    return fits ? Math.min(lit.length, 7) * Math.min(nodes.length, 45) : 0;
}"""
MOST_TOKENS = "120"
WAIT_MS = 240_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the address of a server that runs")
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go (default: docs/pictures)")
    parser.add_argument(
        "--method", default="lookahead", help="how the server decodes (default: lookahead, which has a window)"
    )
    arguments = parser.parse_args()
    with serving(arguments.url) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_system_browser())
        for scheme in ("light", "dark"):
            take(browser, url, scheme, arguments.method, arguments.folder / f"page-{scheme}.png")


@contextmanager
def serving(url: str | None) -> Iterator[str]:
    """The address of a server: the given one, or one that runs meanwhile."""
    if url is not None:
        yield url
        return
    with TemporaryDirectory() as folder, Path(folder, "log").open("wb") as file:
        process = subprocess.Popen(
            commands.command("serve", list(ARGUMENTS)), env=commands.environment(), stdout=file, stderr=file
        )
        try:
            yield address(process, Path(folder, "log"))
        finally:
            process.terminate()
            process.wait(60)


def take(browser: Browser, url: str, scheme: str, method: str, file: Path) -> None:
    """Holds a chat, shows a good step of it, and takes the picture."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=1.25,
    )
    page = context.new_page()
    page.goto(url)
    expect(page.locator('.rank:not([data-state="serving"])')).to_have_count(0, timeout=WAIT_MS)
    page.locator("#settings summary").click()
    page.get_by_label("Method").select_option(method)
    page.locator("#max-tokens").fill(MOST_TOKENS)
    page.locator("#settings summary").click()
    for question in QUESTIONS:
        ask(page, question)
    show_best_step(page)
    page.wait_for_timeout(800)
    page.screenshot(path=file)
    context.close()
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def show_best_step(page: Page) -> None:
    slider = page.locator("#step")
    last = int(slider.get_attribute("max") or 0)
    scores = {}
    for step in range(last // 4, last + 1):
        slider.fill(str(step))
        page.wait_for_timeout(60)
        scores[step] = page.evaluate(SCORE)
    slider.fill(str(max(scores, key=lambda step: scores[step])))
    page.locator("#message").focus()


if __name__ == "__main__":
    main()
