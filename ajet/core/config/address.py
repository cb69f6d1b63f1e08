"""Defines the types of addresses in the config, which are checked when it is read.

base_url: Address | None           "http://127.0.0.1:8000/v1"
base_url: PathOrAddress | None     the same, or a file
"""

from typing import Annotated

from pydantic import AfterValidator

from ajet.core.address import checked_address, checked_path_or_address

PathOrAddress = Annotated[str, AfterValidator(checked_path_or_address)]
Address = Annotated[str, AfterValidator(checked_address)]
