"""Take a picture of the page of a run, as `ajet view` shows it.

    python scripts/picture_of_page.py launcher_record/math_demo --out docs/page.png

Needs Playwright and a Chromium that is installed. The picture has a palette, so that it is small.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LARGEST_BYTES = 150_000
LOADING_MS = 3_000


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Serves the page of a run folder; yields its address."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "view", str(run)]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[0]
        finally:
            server.terminate()


def take(address: str, out: Path, width: int, height: int) -> None:
    """Writes a picture of the top of a page; its width and height are in pixels."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit(f"error: no browser to take a picture with: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.goto(address)
        tab.wait_for_selector("main h1")
        tab.wait_for_timeout(LOADING_MS)  # the page polls, so the network is never idle
        tab.screenshot(path=out)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    args = parser.parse_args()
    with served(args.run) as address:
        take(address, args.out, args.width, args.height)
    with Image.open(args.out) as picture:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(
            args.out, optimize=True
        )
    if args.out.stat().st_size > LARGEST_BYTES:
        sys.exit(f"error: {args.out} has more than {LARGEST_BYTES:,} bytes: make it less high")


if __name__ == "__main__":
    main()
