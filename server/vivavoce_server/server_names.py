"""Names by which clients may call this server: the check of a request's Host header.

A page of any web site can have its own name point to an address in its visitor's network (DNS rebinding). The browser
then takes the server there for a part of that site, and lets the page read and change everything. Such a request
carries the site's name in its Host header, because the attack needs a name that its author controls.
"""

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

ANY = "*"
HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^:/@\[\]\s]+))(?::\d*)?")
PRIVATE_DOMAINS = (
    ".local",
    ".internal",
    ".home.arpa",
    ".lan",
    ".home",
    ".corp",
    ".intranet",
    ".private",
    ".localdomain",
)
"""Domains that the public DNS does not have, so that no web site can own a name in them (RFC 6762, appendix G)."""
CONTAINERS = frozenset({"host.docker.internal", "gateway.docker.internal", "host.containers.internal"})
"""Names by which containers call their own machine. Docker Desktop and Podman lead them to its 127.0.0.1 too."""


def checked_names(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the entries unchanged. Raises ValueError if one is no name."""
    for entry in entries:
        name = entry.removeprefix("*.")
        if entry != ANY and (ANY in name or HOST.fullmatch(name) is None or re.search(r":\d*$", name)):
            raise ValueError(f"{entry!r} is no name of a host: write a name, *.name or *, without http:// and port")
    return entries


class ServerNames:
    """The names that an operator meant.

    localhost, the address that the server listens on, and the names that containers have for their machine are always
    among them. A server that listens beyond this machine also has every IP address, the machine's name, names without a
    dot, which are those of containers and services, and names in PRIVATE_DOMAINS.
    """

    def __init__(self, bound: str, allowed: Iterable[str]) -> None:
        """`bound` is the name or address to listen on, and `allowed` are further names, *.name or *."""
        self._bound = bound.lower()
        self._is_local = is_loopback(bound)
        self._own_name = socket.gethostname().lower()
        self._allowed = [entry.lower().rstrip(".") for entry in allowed]

    def admit(self, host: str) -> bool:
        """True if a Host header, with or without a port, has one of the names."""
        found = HOST.fullmatch(host)
        if ANY in self._allowed:
            return True
        if found is None:
            return False
        name = (found["address"] or found["name"]).lower().removesuffix(".")
        if name in (self._bound, "localhost", *CONTAINERS) or name.endswith(".localhost") or self._is_listed(name):
            return True
        address = _address(name)
        if address is not None:
            return address.is_loopback or not self._is_local
        return not self._is_local and ("." not in name or name == self._own_name or name.endswith(PRIVATE_DOMAINS))

    def _is_listed(self, name: str) -> bool:
        return any(name.endswith(entry[1:]) if entry.startswith("*.") else name == entry for entry in self._allowed)


def is_loopback(bound: str) -> bool:
    """True if only programs of this machine reach a server that listens on this name or address."""
    address = _address(bound)
    return bound.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
