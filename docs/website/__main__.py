"""Builds the site: gathers its pages in build/docs, has Zensical make HTML of them in site/, and checks all links.

    python -m docs.website

A warning of Zensical, a link that leads nowhere or a file that would be loaded from another server is an error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from docs.website.html_links import find_faults
from docs.website.pages import BUILT, ROOT, gather

SITE = ROOT / "site"


def main() -> int:
    gather()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        print(f"the pages as they were built are in {BUILT.relative_to(ROOT)}", file=sys.stderr)
        return code
    faults = find_faults(SITE)
    print("\n".join(faults), file=sys.stderr)
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}/, {len(faults)} broken links")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
