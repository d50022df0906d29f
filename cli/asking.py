"""Asks a ComfyUI that runs, which has imported all that an answer needs."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

LONGEST = 300.0  # seconds for an answer, which waits for those that were asked for before
NOT_THERE = (404, 405)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A server that points elsewhere is not followed: what it is sent goes to the address that was given."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(server: str, body: dict[str, Any]) -> dict[str, Any]:
    """What its pack answers to ``POST /headroom/estimate``.

    It goes to this address alone: no proxy, no redirect.

    Args:
        server: its address, as http://127.0.0.1:8188.
        body: of the request.

    Raises:
        ValueError: no such address, nobody there, no pack of ours, or what that says in a sentence.
    """
    parts = urllib.parse.urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--server: {server} is no address; give one such as http://127.0.0.1:8188")
    request = urllib.request.Request(  # noqa: S310, the scheme is looked at above
        f"{server.rstrip('/')}/headroom/estimate",
        json.dumps(body).encode("utf-8"),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=LONGEST) as response:
            return _object(server, response.read())
    except urllib.error.HTTPError as error:
        if error.code in NOT_THERE or 300 <= error.code < 400:
            raise ValueError(_no_pack(server)) from error
        said = _object(server, error.read()).get("error")
        sentence = said if isinstance(said, str) else f"--server: {server} answers with status {error.code}"
        raise ValueError(sentence) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"--server: nothing answers at {server} ({reason}); start ComfyUI there, or leave --server out and ask"
            " without it"
        ) from error


def _object(server: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(_no_pack(server))
    return found


def _no_pack(server: str) -> str:
    return (
        f"--server: what answers at {server} has no Headroom; install it there and start it again, or leave --server"
        " out"
    )
