"""The address to listen on, taken before anything heavy is loaded, so that a taken port fails at once."""

from __future__ import annotations

import socket

from service.errors import StartError


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to the address; connections are refused until a server listens on it.

    Raises:
        StartError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as exc:
        raise StartError(
            f"cannot listen on {host}:{port}: {exc.strerror or exc}. Stop what is there, or choose another "
            "address with TWOPHASE_HOST and TWOPHASE_PORT."
        ) from exc
    return bound
