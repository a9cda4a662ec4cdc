"""Refuse connections to link-local and cloud-metadata addresses."""

from __future__ import annotations

import ipaddress
import os
import socket
from urllib.parse import urlsplit

ALLOW_METADATA = "AGENTEST_ALLOW_METADATA_ENDPOINTS"


# Addresses where clouds publish a machine's credentials, in addition to link-local ones.
_METADATA = tuple(
    ipaddress.ip_network(net)
    for net in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254/128",  # AWS over IPv6
        "fd00:ec2::23/128",  # AWS EKS, credentials of pods
        "fd20:ce::254/128",  # Google Cloud over IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
    )
)


# IPv6 networks whose addresses end with an IPv4 address: NAT64, its local form, IPv4-compatible ones.
_IPV4_INSIDE = tuple(ipaddress.IPv6Network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96"))


class RefusedAddress(Exception):
    """The host is, or resolves to, a link-local or cloud-metadata address."""

    def __init__(self, host: str, address: str) -> None:
        where = host if host == address else f"{host} ({address})"
        super().__init__(
            f"{where} is a link-local or cloud-metadata address and is refused; "
            f"set {ALLOW_METADATA}=1 if the agent really lives there"
        )


class AddressGuard:
    """Refuses link-local and cloud-metadata addresses. Loopback and private ones are allowed."""

    def __init__(self, allow_metadata: bool | None = None) -> None:
        self.allow_metadata = (
            os.environ.get(ALLOW_METADATA) == "1" if allow_metadata is None else allow_metadata
        )

    def check(self, host: str, addresses: list[str]) -> None:
        """Raise RefusedAddress if any of the host's addresses is refused."""
        if self.allow_metadata:
            return
        for address in addresses:
            if _is_metadata(address):
                raise RefusedAddress(host, address)

    def check_literal(self, host: str) -> None:
        """Check a host that is an address itself, in any form that inet_aton reads."""
        address = literal(host)
        if address:
            self.check(host, [address])


def is_loopback(url: str) -> bool:
    """Return True if the URL's host is the machine that connects to it."""
    host = urlsplit(url).hostname or ""
    address = literal(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    # Connecting to the unspecified address reaches this machine.
    return (mapped or ip).is_loopback or ip.is_unspecified


def literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 2852039166, 0xa9fea9fe, 169.254.43518
    except (OSError, ValueError):
        return None


def _is_metadata(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    addresses = [ip]
    if isinstance(ip, ipaddress.IPv6Address):
        addresses += [inner for inner in (ip.ipv4_mapped, ip.sixtofour) if inner]
        if any(ip in net for net in _IPV4_INSIDE):
            addresses.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return any(ip in net for ip in addresses for net in _METADATA if net.version == ip.version)
