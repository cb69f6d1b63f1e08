"""Take a picture of the page of a run, as `ajet view --export` makes it.

    python scripts/picture_of_page.py launcher_record/math_demo --out docs/page.png

Needs Playwright and a Chromium that is installed. The picture has a palette, so that it is small.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LARGEST_BYTES = 150_000


def take(page: Path, out: Path, width: int, height: int) -> None:
    """Writes a picture of the top of an HTML file; its width and height are in pixels."""
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit(f"error: no browser to take a picture with: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": width, "height": height})
        opened.goto(page.resolve().as_uri())
        opened.wait_for_selector("main h1")
        opened.wait_for_load_state("networkidle")
        opened.screenshot(path=out)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run folder, or an exported page")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = args.run
        if page.is_dir():
            page = Path(folder) / "page.html"
            command = [sys.executable, "-m", "ajet.cli.launcher", "view", str(args.run)]
            subprocess.run([*command, "--export", str(page)], check=True)
        take(page, args.out, args.width, args.height)
    with Image.open(args.out) as picture:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(
            args.out, optimize=True
        )
    if args.out.stat().st_size > LARGEST_BYTES:
        sys.exit(f"error: {args.out} has more than {LARGEST_BYTES:,} bytes: make it less high")


if __name__ == "__main__":
    main()
