"""Which hosts a server may fetch from, and which addresses it may connect to for them. No I/O here.

An operator lists names (`files.example.com`, `*.example.com`, `*` for any public host) and addresses or networks
(`10.1.2.3`, `10.0.0.0/8`, `[::1]`), each with `:port` if it is not the scheme's own. A listed name leads to public
addresses alone, unless a listed network holds the address that it resolves to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANY = "*"
PORTS = {"http": 80, "https": 443}
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All IPv6 that is given out for public use; what lies outside is local, multicast, or IPv4 in disguise."""
SPECIAL: tuple[Network, ...] = (
    IPv6Network("2002::/16"),  # 6to4, IPv4 in disguise
    IPv4Network("192.88.99.0/24"),  # its relays
    IPv4Network("192.0.0.0/24"),  # protocol assignments
)
"""What `is_global` of older Pythons lets through."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name or a network; None is a scheme's own port."""

    name: str
    network: Network | None
    port: int | None

    def takes_port(self, scheme: str, port: int) -> bool:
        return port == (PORTS[scheme] if self.port is None else self.port)

    def names(self, host: str) -> bool:
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return self.network is None and self.name in (host, ANY)


def _parse(entry: str) -> _Entry:
    """Raises ValueError if it is neither a name nor a network."""
    text, port = entry.strip().lower(), None
    host, colon, digits = text.rpartition(":")
    # Colons are also what IPv6 is made of: there a port needs brackets around the address.
    if colon and digits.isdecimal() and (":" not in host or host.endswith("]")):
        text, port = host, int(digits)
        if not 0 < port < 65536:
            raise ValueError(f"{entry!r}: there is no port {port}")
    bare = text.removeprefix("[").removesuffix("]")
    try:
        return _Entry("", ip_network(bare), port)
    except ValueError:
        name = text.rstrip(".")
    if not name or any(character in name for character in "/@:?#[] ") or ANY in name.removeprefix("*.").strip(ANY):
        raise ValueError(f"{entry!r} is no host: write a name, *.name, an address or a network, :port after it")
    if name != ANY and ANY in name.removeprefix("*."):
        raise ValueError(f"{entry!r}: * stands alone or before a name, as in *.example.com")
    return _Entry(name, None, port)


def checked_hosts(entries: tuple[str, ...]) -> tuple[str, ...]:
    """The same entries. Raises ValueError if one cannot be understood."""
    AllowedHosts(entries)
    return entries


class AllowedHosts:
    """An operator's list."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = [_parse(entry) for entry in entries]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def admits(self, scheme: str, host: str, port: int) -> bool:
        """Whether a URL may name this host, a name in ASCII or an address. Where it leads is another question."""
        host = host.lower().rstrip(".")
        entries = [entry for entry in self._entries if entry.takes_port(scheme, port)]
        try:
            address = ip_address(host)
        except ValueError:
            return any(entry.names(host) for entry in entries)
        listed = any(entry.network is not None and address in entry.network for entry in entries)
        return listed or (is_public(address) and any(entry.name == ANY for entry in entries))

    def may_connect(self, address: Address) -> bool:
        """Whether a name that is admitted may lead here."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return False
        return is_public(address) or any(entry.network and address in entry.network for entry in self._entries)


def is_public(address: Address) -> bool:
    """Whether it is out in the internet: not private, loopback, link-local, multicast, reserved, or IPv4 in IPv6."""
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if any(address in network for network in SPECIAL):
        return False
    return isinstance(address, IPv4Address) or address in GLOBAL_UNICAST
