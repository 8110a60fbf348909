"""Downloads reference audio from a client's URL without exposing the server's network to the client.

Only hosts that the operator allowed are contacted. A name is resolved once, every address is checked, and the
connection goes to a checked address. A name that changes its address afterwards therefore gains nothing. Proxies and
cookies from the environment are not used.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import httpx
from vivavoce_engine import MAX_REFERENCE_BYTES, Overloaded

from vivavoce_server.errors import ApiError, invalid
from vivavoce_server.fetch_hosts import PORTS, Address, FetchHosts

FETCH_S = 10.0
"""Seconds for a whole download."""
CONNECT_S = 3.0
MAX_AT_ONCE = 8
"""Maximum number of concurrent downloads. Each may hold MAX_REFERENCE_BYTES."""
RETRY_AFTER_S = 2.0
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FIELD = "ref_audio"


def is_url(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://"))


class Fetcher:
    """Downloads the files behind clients' URLs."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._allowed = FetchHosts(hosts)
        self._running = 0
        self._tls = httpx.create_ssl_context(trust_env=False) if hosts else None

    async def fetch(self, url: str) -> bytes:
        """The file at an http(s) URL, at most MAX_REFERENCE_BYTES long.

        Raises:
            ApiError: 400, the file must not or cannot be fetched.
            Overloaded: too many downloads are running.
        """
        if self._running >= MAX_AT_ONCE:
            raise Overloaded(f"{MAX_AT_ONCE} recordings are being fetched already", RETRY_AFTER_S)
        self._running += 1
        try:
            async with asyncio.timeout(FETCH_S):
                return await self._follow(self._checked(url))
        except TimeoutError:
            raise refused(f"took longer than {FETCH_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise refused("could not be fetched") from error
        finally:
            self._running -= 1

    def _checked(self, url: str) -> httpx.URL:
        """The parsed URL. Raises a 400 unless the operator allows its host."""
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL:
            raise refused("is no URL") from None
        if target.scheme not in PORTS or not target.raw_host or target.userinfo:
            raise refused("is no plain http(s) URL")
        host, port = host_of(target), port_of(target)
        if not self._allowed.admits(target.scheme, host, port):
            raise refused(f"is at {host}, port {port}, which this server may not fetch from")
        return target

    async def _follow(self, target: httpx.URL) -> bytes:
        for _ in range(1 + MAX_REDIRECTS):
            found = await self._get(target)
            if isinstance(found, bytes):
                return found
            moved = self._checked(str(target.join(found)))
            if host_of(moved) != host_of(target) or (target.scheme, moved.scheme) == ("https", "http"):
                raise refused("redirects to another host")
            target = moved
        raise refused("redirects without end")

    async def _get(self, target: httpx.URL) -> bytes | str:
        """The file, or the location that it redirects to."""
        addresses = await self._addresses(target)
        timeout = httpx.Timeout(FETCH_S, connect=CONNECT_S)
        headers = {"Host": target.netloc.decode("ascii"), "Accept-Encoding": "identity", "User-Agent": "vivavoce"}
        # Each download has its own client. A reused TLS connection to an address would skip the check of another name.
        async with httpx.AsyncClient(verify=self._tls or True, trust_env=False, timeout=timeout) as client:
            for address in addresses:
                # The certificate is still checked against the name.
                request = client.build_request(
                    "GET",
                    target.copy_with(host=str(address), fragment=None),
                    headers=headers,
                    extensions={"sni_hostname": host_of(target)},
                )
                try:
                    response = await client.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    continue
                try:
                    return await _read(response)
                finally:
                    await response.aclose()
        raise refused("could not be fetched: nobody answers there")

    async def _addresses(self, target: httpx.URL) -> list[Address]:
        """All addresses of the host. Raises a 400 if one of them is forbidden."""
        found = await resolve(host_of(target), port_of(target))
        if not found or not all(self._allowed.may_connect(address) for address in found):
            raise refused(f"is at {host_of(target)}, which leads to an address that this server may not reach")
        return found


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, without duplicates."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # The part after % names a network interface of this machine. Such an address is never public.
    return list(dict.fromkeys(ip_address(info[4][0]) for info in infos))


async def _read(response: httpx.Response) -> bytes | str:
    if response.status_code in REDIRECTS and "location" in response.headers:
        return str(response.headers["location"])
    if response.status_code != 200:
        raise refused(f"could not be fetched: status {response.status_code}")
    # A small compressed file could unpack to any size.
    if response.headers.get("content-encoding", "identity") != "identity":
        raise refused("could not be fetched: it is sent packed")
    length = response.headers.get("content-length", "0")
    content = bytearray()
    if length.isdecimal() and len(length) < 16 and int(length) <= MAX_REFERENCE_BYTES:
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > MAX_REFERENCE_BYTES:
                break
        else:
            return bytes(content)
    raise refused(f"is larger than {MAX_REFERENCE_BYTES // 2**20} MiB")


def host_of(url: httpx.URL) -> str:
    """The URL's host in ASCII, without the brackets around IPv6 addresses."""
    return url.raw_host.decode("ascii")


def port_of(url: httpx.URL) -> int:
    return url.port or PORTS[url.scheme]


def refused(what: str) -> ApiError:
    return invalid(FIELD, f"The reference audio {what}")
