"""Names the packages: those of ajet/, and those of tutorial/ as ajet.examples; and the project's
URLs, by its public address in pyproject.toml, which has the rest."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

PROJECT = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))
PAGES = {
    "Repository": "",
    "Documentation": "/tree/main/docs",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}
repository = PROJECT["tool"]["ajet"]["repository"]

setup(
    project_urls={name: f"{repository}{page}" for name, page in PAGES.items() if repository},
    package_dir={"ajet.examples": "tutorial"},
    packages=[
        *find_packages(include=["ajet", "ajet.*"]),
        "ajet.examples",
        *(f"ajet.examples.{name}" for name in find_packages("tutorial")),
    ],
)
