"""The Ray actor beside a ComfyUI server: asks it, runs prompts on it one after another, hands on what came of them.

Ray carries this module too, see :mod:`.comfy`. What it answers is a dictionary with a ``status``: an exception would
have to be known on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from .comfy import GONE, POLL, Comfy, Ended, Refused, Unreachable, files_of, lacking
from .plain import UNREACHABLE, Address

OF_AN_ESTIMATE = ("card", "card_gb", "allowed_gb", "least_vram_gb", "peak_gb", "seconds")
LAST = {"execution_success", "execution_error", "execution_interrupted"}
BUNDLE = 8 * 2**20  # bytes that are handed on at a time


class ComfyActor:
    """Speaks to one server.

    Args:
        address: as of :class:`.plain.Address`: url, headers, ca.
    """

    def __init__(self, address: Mapping[str, Any]) -> None:
        self._address = Address(**address)
        self._comfy: Comfy | None = None
        self._choices: dict[str, dict[str, list[Any]]] = {}
        self._there: set[str] = set()  # names of files that were put there
        self._client = uuid.uuid4().hex
        self._shown: dict[str, Any] = {}
        self._moved = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def hello(self) -> dict[str, Any]:
        """Whether it answers, with which versions; its files are looked up anew."""
        try:
            versions = await self._server().versions()
            self._choices, self._there = await self._server().choices(), set()
        except (Unreachable, Refused) as error:
            return {"status": UNREACHABLE, "reason": str(error)}
        return {"status": "there", **versions}

    async def ask(
        self, prompt: Mapping[str, Any], terms: Mapping[str, Any], uploads: Mapping[str, bytes]
    ) -> dict[str, Any]:
        """Whether a prompt fits there: status fits, unpredicted, does_not_fit, lacks or unreachable.

        Args:
            terms: of the estimate.
            uploads: by their names, files that it reads: they are put there first, since their sizes matter.
        """
        try:
            if not self._choices:  # Ray has started this process anew
                self._choices = await self._server().choices()
            if missing := lacking(prompt, self._choices):
                return {"status": "lacks", "reason": "lacks " + ", ".join(missing)}
            await self._put(uploads)
        except Refused as error:
            return {"status": "lacks", "reason": f"does not take what the prompt reads ({error})"}
        except Unreachable as error:
            return {"status": UNREACHABLE, "reason": str(error)}
        try:
            found = await self._server().estimate(prompt, terms)
        except Refused as error:
            # Nothing of it takes memory of a card, and all of it was looked at: it fits anywhere.
            status = "fits" if error.answer.get("complete") else "unpredicted"
            return {"status": status, "reason": str(error), "seconds": None}
        except Unreachable as error:
            return {"status": UNREACHABLE, "reason": str(error)}
        known = {key: found.get(key) for key in OF_AN_ESTIMATE}
        if found.get("verdict") == "does_not_fit":
            return {"status": "does_not_fit", **known}
        if not found.get("complete"):
            return {"status": "unpredicted", "reason": "; ".join(found.get("unknown", ())), **known}
        return {"status": "fits", **known}

    async def run(self, prompt: Mapping[str, Any], prompt_id: str, uploads: Mapping[str, bytes]) -> dict[str, Any]:
        """Runs a prompt to its end: status success, error, interrupted, refused or unreachable."""
        try:
            await self._listen()
            await self._put(uploads)
            await self._server().submit(prompt, prompt_id, self._client)
        except Refused as error:
            return {"status": "refused", "reason": str(error)}
        except Unreachable as error:
            return {"status": UNREACHABLE, "reason": str(error)}
        return await self.watch(prompt_id)

    async def watch(self, prompt_id: str) -> dict[str, Any]:
        """Waits for the end of a prompt that is there already; as :meth:`run`."""
        await self._listen()
        silent_since: float | None = None
        while True:
            self._moved.clear()
            try:
                ended = await self._server().ended(prompt_id)
                silent_since = None
                if ended is None and not await self._server().knows(prompt_id):
                    return {"status": UNREACHABLE, "reason": f"{self._address.url} was started anew"}
            except Refused as error:
                return {"status": UNREACHABLE, "reason": str(error)}
            except Unreachable as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > GONE:
                    return {"status": UNREACHABLE, "reason": str(error)}
                ended = None
            if ended is not None:
                self._shown = {}
                return _outcome(ended)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._moved.wait(), POLL)

    async def knows(self, prompt_id: str) -> dict[str, Any]:
        """Whether a prompt waits, runs or has ended there: ``known``."""
        try:
            return {"known": await self._server().knows(prompt_id)}
        except (Unreachable, Refused):
            return {"known": False}

    async def fetch(self, entry: Mapping[str, str]) -> AsyncIterator[bytes]:
        """A file of the outputs, in pieces; the last one is empty, and without it the file is not whole."""
        held = bytearray()
        try:
            async for piece in self._server().file(entry):
                held += piece
                if len(held) >= BUNDLE:
                    yield bytes(held)
                    held.clear()
        except (Unreachable, Refused):
            return
        if held:
            yield bytes(held)
        yield b""

    async def cancel(self, prompt_id: str) -> None:
        """Takes a prompt back, if it is there."""
        with contextlib.suppress(Unreachable, Refused):
            await self._server().cancel(prompt_id)

    async def shown(self) -> dict[str, Any]:
        """What runs there now: prompt_id, node, value, max; empty if nothing of ours does."""
        return self._shown

    def _server(self) -> Comfy:
        if self._comfy is None:
            self._comfy = Comfy(self._address)
        return self._comfy

    async def _put(self, uploads: Mapping[str, bytes]) -> None:
        """Puts files there that are not there yet: their names hold a sum of what is in them."""
        for name, content in uploads.items():
            if name not in self._there:
                folder, _, file = name.rpartition("/")
                await self._server().upload(file, content, folder)
                self._there.add(name)

    async def _listen(self) -> None:
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._heard())

    async def _heard(self) -> None:
        async for message in self._server().listen(self._client):
            kind, data = message.get("type"), message.get("data") or {}
            if kind in LAST or (kind == "executing" and data.get("node") is None):
                self._moved.set()
            elif kind == "executing":
                self._shown = {"prompt_id": data.get("prompt_id"), "node": data.get("node"), "value": 0, "max": 0}
            elif kind == "progress":
                self._shown = {key: data.get(key) for key in ("prompt_id", "node", "value", "max")}


def _outcome(ended: Ended) -> dict[str, Any]:
    return {
        "status": ended.status,
        "seconds": ended.seconds,
        "reason": ended.error,
        "out_of_memory": ended.out_of_memory,
        "cached": ended.cached,
        "files": list(files_of(ended.outputs)),
        "outputs": ended.outputs,
    }
