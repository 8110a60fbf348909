"""Rules for outgoing requests: the hosts that a server may fetch from, and the addresses it may connect to. No I/O.

An operator lists names (`files.example.com`, `*.example.com`, `*` for any public host) and addresses or networks
(`10.1.2.3`, `10.0.0.0/8`, `[::1]`). `:port` follows where it differs from the scheme's default port. A listed name
may resolve only to public addresses, unless a listed network contains the address.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANY = "*"
PORTS = {"http": 80, "https": 443}
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""The IPv6 addresses assigned for public use. Addresses outside are local, multicast, or embedded IPv4."""
SPECIAL: tuple[Network, ...] = (
    IPv6Network("2002::/16"),  # 6to4: embedded IPv4
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("192.0.0.0/24"),  # protocol assignments
)
"""Networks that are not public, but pass `is_global` in older versions of Python."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name or a network. `port` None means the scheme's default port."""

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
    """Parses one entry. Raises ValueError if it is neither a name nor a network."""
    text, port = entry.strip().lower(), None
    host, colon, digits = text.rpartition(":")
    # IPv6 addresses contain colons too. A port after one therefore needs brackets around the address.
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
    """Returns the entries unchanged. Raises ValueError if one is invalid."""
    FetchHosts(entries)
    return entries


class FetchHosts:
    """An operator's list of allowed hosts."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = [_parse(entry) for entry in entries]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def admits(self, scheme: str, host: str, port: int) -> bool:
        """True if a URL may name this host, an ASCII name or an address. `may_connect` checks a name's addresses."""
        host = host.lower().rstrip(".")
        entries = [entry for entry in self._entries if entry.takes_port(scheme, port)]
        try:
            address = ip_address(host)
        except ValueError:
            return any(entry.names(host) for entry in entries)
        listed = any(entry.network is not None and address in entry.network for entry in entries)
        return listed or (is_public(address) and any(entry.name == ANY for entry in entries))

    def may_connect(self, address: Address) -> bool:
        """True if an admitted name may resolve to this address."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return False
        return is_public(address) or any(entry.network and address in entry.network for entry in self._entries)


def is_public(address: Address) -> bool:
    """True for an address of the public internet.

    False for private, loopback, link-local, multicast and reserved addresses, and for IPv4 embedded in IPv6.
    """
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if any(address in network for network in SPECIAL):
        return False
    return isinstance(address, IPv4Address) or address in GLOBAL_UNICAST
