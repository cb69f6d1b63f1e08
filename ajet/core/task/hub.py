"""Reads rows of a data set on the Hugging Face Hub, through the `datasets` package.

    gsm8k/main      the Hub's `openai/gsm8k`, configuration `main`
    openai/gsm8k    owner and name, or name and configuration: the first that exists

Where the Hub cannot be reached, data comes from the cache of an earlier run. A missing cache is an
error at once; the library alone would try six times.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.task.arrow_rows import rows_of
from ajet.core.text.error_text import extra_advice, windows_advice

PROBE_TIMEOUT_S = 3.0


def read_hub(path: str, split: str) -> list[dict[str, Any]]:
    """Reads `name` or `name/config` from the Hub, or from the cache if the Hub is unreachable."""
    try:
        import datasets.config
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path}: no such local folder, and a Hub data set needs: {extra_advice('datasets')}",
            code=Code.PACKAGE_MISSING,
        ) from error
    if datasets.config.HF_HUB_OFFLINE or _takes_connections(datasets.config.HF_ENDPOINT):
        return _load(path, split)
    with _offline():
        return _load(path, split)


def _load(path: str, split: str) -> list[dict[str, Any]]:
    from datasets import load_dataset

    failure: Exception | None = None
    for name, config in _hub_names(path):
        try:
            rows: Any = load_dataset(name, config, split=split)
            return rows_of(rows, rows.features.arrow_schema)
        except ValueError as error:
            raise DataError(
                f"{path}: {' '.join(str(error).split())}", code=Code.HUB_UNREACHABLE
            ) from error
        except ConnectionError as error:
            failure = error
            break
        except (OSError, RuntimeError) as error:  # not on the Hub under this name
            failure = error
    raise DataError(
        f"{path}: neither a local folder nor reachable on the Hub ({type(failure).__name__})"
        f"{windows_advice(str(path))}. "
        "Offline, write a folder with `ajet data prepare NAME --from FILES --out DIR` and set "
        "ajet.task_reader.huggingface_dat_repo.dataset_path to it",
        code=Code.HUB_UNREACHABLE,
    )


def _takes_connections(endpoint: str) -> bool:
    """Tells whether the address resolves and answers."""
    if getproxies().keys() - {"no"}:  # behind a proxy only the request itself can tell
        return True
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Makes the libraries read only their caches within the block, as under HF_HUB_OFFLINE=1."""
    import datasets.config
    from huggingface_hub import constants

    # `datasets` copied the constant when it was imported, so both must be set.
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _hub_names(path: str) -> list[tuple[str, str | None]]:
    """Returns the (name, configuration) pairs to try: `a/b` may be owner/name or name/config."""
    names = path.split("/")
    if len(names) == 3:
        return [("/".join(names[:2]), names[2])]
    if names in (["gsm8k", "main"], ["gsm8k", "socratic"]):
        # The Hub has another repository gsm8k; AgentJet's YAMLs mean this one.
        return [("openai/gsm8k", names[1])]
    if len(names) == 2:
        return [(path, None), (names[0], names[1])]
    return [(path, None)]
