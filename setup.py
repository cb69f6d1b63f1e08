"""Names the packages: those of ajet/, and those of tutorial/ as ajet.examples. The rest is in
pyproject.toml."""

from setuptools import find_packages, setup

setup(
    package_dir={"ajet.examples": "tutorial"},
    packages=[
        *find_packages(include=["ajet", "ajet.*"]),
        "ajet.examples",
        *(f"ajet.examples.{name}" for name in find_packages("tutorial")),
    ],
)
