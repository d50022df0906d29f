"""One ComfyUI server over HTTP: what it has, what it says of a prompt, running one, fetching what came of it.

Ray carries this module to whichever machine speaks to the server, so it needs aiohttp and the standard library alone,
and what it gives and raises is plain. It goes to the address that it is given and nowhere else: no proxy, no redirect.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from .plain import MODEL_FILES, Address

ANSWER = 30.0  # seconds for anything small
ESTIMATE = 300.0  # for an estimate, which waits for the one before
POLL = 0.5  # seconds between looks at the history, where no message comes
SILENT = 30.0  # seconds between two pieces of a file
GONE = 6.0  # seconds without any answer after which a server is gone
FILE_LISTS = ("images", "gifs", "videos", "video", "audio", "3d", "latents", "files")
PIECE = 2**20  # bytes of a file at a time


class Unreachable(Exception):
    """The server does not answer; the message says how it did not."""


class Refused(Exception):
    """The server answered that it will not; the message is its own.

    Attributes:
        answer: all of it, where it was JSON.
    """

    def __init__(self, message: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.answer = dict(answer or {})


@dataclass(frozen=True)
class Ended:
    """How a prompt ended.

    Attributes:
        status: success, error or interrupted.
        seconds: from its begin to its end, by the server's clock.
        outputs: of the history.
        error: in one line; empty if there is none.
        out_of_memory: whether memory ran out.
        cached: nodes whose results the server had already.
    """

    status: str
    seconds: float
    outputs: Mapping[str, Any]
    error: str = ""
    out_of_memory: bool = False
    cached: int = 0


class Comfy:
    """A connection to one server. To be used in one event loop, and closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        context = ssl.create_default_context(cadata=address.ca) if address.ca else True
        connector = aiohttp.TCPConnector(ssl=context)
        watched = aiohttp.TraceConfig()
        watched.on_request_redirect.append(_stay)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=dict(address.headers), trust_env=False, trace_configs=[watched]
        )

    async def close(self) -> None:
        """Ends the connection."""
        await self._session.close()

    async def versions(self) -> dict[str, str]:
        """Of ComfyUI and of the pack; the latter is empty where the pack is missing or older than this question."""
        stats = await self._json("GET", "/system_stats")
        try:
            pack = str((await self._json("GET", "/headroom/version"))["version"])
        except (Refused, KeyError, TypeError):
            pack = ""
        return {"comfyui": str(stats.get("system", {}).get("comfyui_version", "")), "headroom": pack}

    async def choices(self) -> dict[str, dict[str, list[Any]]]:
        """By class and input, what can be chosen: files among it. Inputs that are no choice are not in it."""
        info = await self._json("GET", "/object_info", timeout=ESTIMATE)
        return {kind: dict(_choices(one)) for kind, one in info.items()}

    async def estimate(self, prompt: Mapping[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
        """What the server's own pack predicts of a prompt.

        Raises:
            Refused: it says in a sentence why it cannot.
        """
        answer = await self._json("POST", "/headroom/estimate", {"prompt": prompt, **terms}, ESTIMATE)
        return dict(answer)

    async def submit(self, prompt: Mapping[str, Any], prompt_id: str, client_id: str) -> None:
        """Queues a prompt.

        Raises:
            Refused: with what the server says of each node.
        """
        await self._json("POST", "/prompt", {"prompt": prompt, "prompt_id": prompt_id, "client_id": client_id})

    async def knows(self, prompt_id: str) -> bool:
        """Whether a prompt waits, runs or has ended there."""
        if await self._history(prompt_id):
            return True
        queue = await self._json("GET", "/queue")
        entries = [*queue.get("queue_running", ()), *queue.get("queue_pending", ())]
        if any(len(entry) > 1 and entry[1] == prompt_id for entry in entries):
            return True
        return bool(await self._history(prompt_id))  # it may have ended between the two questions

    async def ended(self, prompt_id: str) -> Ended | None:
        """How a prompt ended; None: it has not."""
        entry = await self._history(prompt_id)
        return _ended(entry) if entry else None

    async def cancel(self, prompt_id: str) -> None:
        """Takes a prompt from the queue, and interrupts it if it runs."""
        await self._json("POST", "/queue", {"delete": [prompt_id]})
        await self._json("POST", "/interrupt", {"prompt_id": prompt_id})

    async def upload(self, name: str, content: bytes, folder: str) -> None:
        """Puts a file into the server's input folder, under a folder of ours."""
        form = aiohttp.FormData(quote_fields=False)  # quoted, a name with a space or an umlaut arrives as another one
        form.add_field("image", content, filename=name)
        form.add_field("subfolder", folder)
        form.add_field("overwrite", "true")
        async with self._answer("POST", "/upload/image", ESTIMATE, data=form) as response:
            await response.read()

    async def file(self, entry: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The content of an entry of the outputs, piece by piece."""
        query = {name: entry.get(name, "") for name in ("filename", "subfolder", "type")}
        async with self._answer("GET", "/view?" + urllib.parse.urlencode(query), None) as response:
            async for piece in response.content.iter_chunked(PIECE):
                yield piece

    async def listen(self, client_id: str) -> AsyncIterator[dict[str, Any]]:
        """The server's messages to a client, for as long as it is connected."""
        try:
            async with self._session.ws_connect(
                f"{self.address.url}/ws?clientId={client_id}", max_msg_size=0, heartbeat=20
            ) as socket:
                async for message in socket:
                    if message.type == aiohttp.WSMsgType.TEXT:
                        yield json.loads(message.data)
        except (aiohttp.ClientError, OSError):
            return

    async def _history(self, prompt_id: str) -> dict[str, Any]:
        return dict((await self._json("GET", f"/history/{prompt_id}")).get(prompt_id, {}))

    async def _json(self, method: str, path: str, body: Any = None, timeout: float = ANSWER) -> Any:
        sent = {} if body is None else {"json": body}
        async with self._answer(method, path, timeout, **sent) as response:
            body = await response.read()
        try:
            return json.loads(body) if body.strip() else {}
        except ValueError as error:
            said = "answers with what is no JSON: is it a ComfyUI, and does nobody before it want a password?"
            raise Unreachable(f"{self.address.url} {said}") from error

    def _answer(self, method: str, path: str, timeout: float | None, **sent: Any) -> _Answer:
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=ANSWER, sock_read=None if timeout else SILENT)
        request = self._session.request(method, self.address.url + path, timeout=limit, allow_redirects=False, **sent)
        return _Answer(request, self.address.url)


class _Answer:
    """A request that is under way, as a context: what goes wrong with it is one of ours."""

    def __init__(self, request: Any, url: str) -> None:
        self._request, self._url = request, url
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._response = response = await self._request
            if response.status >= 500:
                raise Unreachable(f"{self._url} answers with status {response.status}")
            if response.status >= 300:
                raise _refused(response.status, await response.text())
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise Unreachable(f"{self._url} does not answer ({_said(error)})") from error
        return response

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._response is not None:
            self._response.release()
        if isinstance(error, (aiohttp.ClientError, OSError, asyncio.TimeoutError)):
            raise Unreachable(f"{self._url} broke off ({_said(error)})") from error


def files_of(outputs: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The saved files of a prompt's outputs, each once, in order; where nothing was saved, what was shown."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for node, shown in outputs.items():
        for name in FILE_LISTS:
            for entry in shown.get(name) or () if isinstance(shown, dict) else ():
                if isinstance(entry, dict) and isinstance(entry.get("filename"), str):
                    place = {key: str(entry.get(key, "")) for key in ("filename", "subfolder", "type")}
                    found.setdefault(tuple(place.values()), {**place, "node": str(node)})  # type: ignore[arg-type]
    saved = [entry for entry in found.values() if entry["type"] == "output"]
    yield from saved or found.values()


def lacking(prompt: Mapping[str, Any], choices: Mapping[str, Mapping[str, list[Any]]]) -> list[str]:
    """What a server lacks for a prompt: classes of nodes and model files, each once."""
    found: dict[str, None] = {}
    for number, node in prompt.items():
        kind = node["class_type"]
        if kind not in choices:
            found[f"the node {kind}"] = None
            continue
        for name, value in node["inputs"].items():
            known = choices[kind].get(name)
            is_file = isinstance(value, str) and value.lower().endswith(MODEL_FILES)
            if known is not None and is_file and value not in known:
                found[f"{value} (node {number}, {name})"] = None
    return list(found)


def _choices(info: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for part in ("required", "optional"):
        for name, spec in (info.get("input", {}).get(part) or {}).items():
            if isinstance(spec, list) and spec:
                if isinstance(spec[0], list):
                    yield name, spec[0]
                elif spec[0] == "COMBO" and len(spec) > 1 and isinstance(spec[1].get("options"), list):
                    yield name, spec[1]["options"]


def _ended(entry: Mapping[str, Any]) -> Ended | None:
    status = entry.get("status") or {}
    messages = {name: data for name, data in status.get("messages", ())}
    start = messages.get("execution_start", {}).get("timestamp", 0)
    end = max((data.get("timestamp", 0) for data in messages.values()), default=0)
    seconds = max(end - start, 0) / 1000 if start else 0.0
    cached = len(messages.get("execution_cached", {}).get("nodes", ()))
    outputs = entry.get("outputs") or {}
    if (error := messages.get("execution_error")) is not None:
        text = " ".join(str(error.get("exception_message", "")).split())
        kind, node = str(error.get("exception_type", "")), f"node {error.get('node_id')} ({error.get('node_type')})"
        is_memory = "OutOfMemory" in kind or "out of memory" in text.lower()
        return Ended("error", seconds, outputs, f"{node}: {kind}: {text}", is_memory, cached)
    if "execution_interrupted" in messages:
        return Ended("interrupted", seconds, outputs, "somebody interrupted it on the server", False, cached)
    if not status.get("completed", True):
        return None
    return Ended("success", seconds, outputs, cached=cached)


def _refused(status: int, body: str) -> Refused:
    """With the pack's sentence, or the host's message and what it says of each node."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return Refused(answer["error"], answer)
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        nodes = answer.get("node_errors") or {}
        parts = [str(answer["error"].get("message", "")), *(_node(*one) for one in nodes.items())]
        return Refused("; ".join(filter(None, parts)), answer)
    hint = {401: ": it wants a password, see --header", 403: ": it forbids that", 404: ": it has no such page",
            413: ": it takes nothing so large, start it with a higher --max-upload-size"}  # fmt: skip
    moved = ": it points elsewhere, name that address itself" if 300 <= status < 400 else ""
    return Refused(f"status {status}{hint.get(status, moved)}")


def _node(number: str, node: Mapping[str, Any]) -> str:
    reasons = [f"{one.get('message', '')}: {one.get('details', '')}" for one in node.get("errors", ())]
    return f"node {number} ({node.get('class_type')}): {', '.join(reasons)}"


async def _stay(*told: Any) -> None:
    """A websocket is not asked whether it follows redirects: it would, with the headers."""
    raise aiohttp.ClientError("it points elsewhere")


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
