"""Checks the form of an HTTP address.

Not covered: whether anybody answers there.
"""

from urllib.parse import urlsplit


def checked_address(value: str) -> str:
    """Returns the address, or raises a ValueError of one line. An address may hold no login: keys
    belong in the environment."""
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r}: an address begins with http:// or https://")
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{value!r} is no address: {error}") from None
    if not host:
        raise ValueError(f"{value!r} names no host")
    if "@" in parts.netloc:
        raise ValueError(f"the address at {host}: leave the login out")
    return value


def checked_path_or_address(value: str) -> str:
    """Returns a path as it is, and an address after its check."""
    return checked_address(value) if value.startswith(("http://", "https://")) else value
