"""The announcement of the Wyoming port by mDNS, by which Home Assistant finds the server without its address.

It needs the package zeroconf, which the extra `zeroconf` installs. An address is announced on its own interface alone.
A port on all interfaces is announced with the address of the one that multicast leaves by.
"""

import logging
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

from vivavoce_server.config import ServerConfig

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

log = logging.getLogger(__name__)

SERVICE = "_wyoming._tcp.local."
MDNS_GROUP = ("224.0.0.251", 5353)
MOST_NAMED = 40
"""Most characters of the machine's name in that of the service, which has 63 bytes."""


def check_announcement(config: ServerConfig) -> None:
    """Checks that what `wyoming_zeroconf` asks for can be done.

    Raises:
        ValueError: it cannot; names the setting, and says what would work.
    """
    if not config.wyoming_zeroconf:
        return
    if not config.wyoming_port:
        raise ValueError(
            "--wyoming-zeroconf: there is no port to announce; set --wyoming-port too, for instance to 10200"
        )
    try:
        import zeroconf  # noqa: F401
    except ImportError:
        message = (
            "--wyoming-zeroconf: the package zeroconf is missing; pip install 'vivavoce-speech[zeroconf]' brings it"
        )
        raise ValueError(message) from None


class Announcement:
    """The announcement of a listening socket: `await start()`, and `await stop()` to withdraw it."""

    def __init__(self, listener: socket.socket) -> None:
        host, self._port = listener.getsockname()[:2]
        self._address = ip_address(host)
        self._zeroconf: AsyncZeroconf | None = None

    async def start(self) -> None:
        """Announces the port. A network without multicast is a warning in the log: the port itself works."""
        from zeroconf import Error, IPVersion
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

        machine = socket.gethostname().partition(".")[0] or "vivavoce"
        try:
            if self._address.is_unspecified:
                self._address = ip_address(_outgoing_address())
            address = str(self._address)
            version = IPVersion.V4Only if self._address.version == 4 else IPVersion.V6Only
            self._zeroconf = AsyncZeroconf(interfaces=[address], ip_version=version)
            info = AsyncServiceInfo(
                SERVICE,
                f"Vivavoce on {machine[:MOST_NAMED]} ({self._port}).{SERVICE}",  # two servers of a machine differ
                port=self._port,
                server=f"{machine}.local.",
                parsed_addresses=[address],
            )
            await (await self._zeroconf.async_register_service(info, allow_name_change=True))
        except (OSError, Error) as error:
            log.warning("the Wyoming port is not announced: %s", error)

    async def stop(self) -> None:
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()


def _outgoing_address() -> str:
    """This machine's address on the interface by which multicast leaves. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(MDNS_GROUP)
        return str(probe.getsockname()[0])
