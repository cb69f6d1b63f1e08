"""Checks the form of an HTTP address, and whether a request comes from this machine."""

from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def checked_address(value: str) -> str:
    """Returns the address, or raises a ValueError of one line. Logins are refused: keys belong in
    the environment."""
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r}: an address begins with http:// or https://")
    if any(letter.isspace() or not letter.isprintable() for letter in value):
        raise ValueError(f"{value!r} is not an address: it has a space or a line break")
    try:
        url = urlsplit(value)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise ValueError(f"{value!r} is not an address: {error}") from None
    if not host:
        raise ValueError(f"{value!r} names no host")
    if "@" in url.netloc:
        raise ValueError(f"the address at {host}: leave the login out")
    return value


def is_loopback_host(host: str) -> bool:
    """Returns whether a Host header names this machine. ssh may forward it from any port."""
    name, colon, port = host.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        name = host
    return name.lower() in LOOPBACK_NAMES


def is_numeric_host(host: str) -> bool:
    """Returns whether a Host header names a machine by its IP address. No web site can point such
    a name at another machine."""
    try:
        ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True


def is_loopback_origin(origin: str) -> bool:
    """Returns whether an Origin header is from a page of this machine."""
    try:
        return is_loopback_host(urlsplit(origin).netloc)
    except ValueError:  # "http://["
        return False


def checked_path_or_address(value: str) -> str:
    """Returns a path unchanged, and an address after its check."""
    return checked_address(value) if value.startswith(("http://", "https://")) else value


def fixed_port(port: int | Literal["auto"]) -> int | None:
    """Returns a port of a config as servers take it: None is any free one."""
    return None if port == "auto" else port
