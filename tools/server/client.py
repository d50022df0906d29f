"""A small client for ComfyUI's API: submit a workflow, watch it run, fetch what it made."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Workflow = dict[str, dict[str, Any]]  # ComfyUI's API format: node id -> {"class_type": ..., "inputs": ...}

NOTHING: Workflow = {
    "1": {"class_type": "EmptyLatentImage", "inputs": {"width": 16, "height": 16, "batch_size": 1}},
    "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
}
PREVIEW_EVENTS = (1, 4)  # the first four bytes of a binary message: a preview, plain or with metadata


class ClientError(RuntimeError):
    """Something went wrong with a prompt, in one sentence."""


class PromptRejected(ClientError):
    """The host did not accept the request (HTTP 4xx or 5xx)."""

    def __init__(self, status: int, message: str, node_errors: Mapping[str, Any]) -> None:
        super().__init__(f"ComfyUI rejected the request (HTTP {status}): {message}")
        self.status, self.message, self.node_errors = status, message, node_errors


class PromptFailed(ClientError):
    """A node raised an exception; `traceback` has its lines."""

    def __init__(
        self, node_id: str, node_type: str, exception_type: str, exception_message: str, traceback: Sequence[str] = ()
    ) -> None:
        reason = exception_message.strip().partition("\n")[0]  # the rest is in the attribute
        super().__init__(f"Node {node_id} ({node_type}) failed with {exception_type}: {reason}")
        self.node_id, self.node_type = node_id, node_type
        self.exception_type, self.exception_message = exception_type, exception_message
        self.traceback = tuple(traceback)


class PromptInterrupted(ClientError):
    """Somebody cancelled the prompt."""


@dataclass(frozen=True)
class Progress:
    """How far a node is; `maximum` is 0 when it has only just begun and states no steps."""

    node_id: str
    node_type: str
    value: int = 0
    maximum: int = 0


@dataclass
class Result:
    """What a prompt did: seconds overall and per node, nodes that were cached, outputs as in the history."""

    prompt_id: str
    seconds: float = 0.0
    node_seconds: dict[str, float] = field(default_factory=dict)
    cached: list[str] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    progress_events: int = 0
    previews: int = 0


class Client:
    """One user of a ComfyUI server. Everything blocks; all but `run` may be called from `run`'s callback."""

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        self.client_id = uuid.uuid4().hex
        # The host is on this machine: no proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def run(
        self,
        workflow: Workflow,
        *,
        progress: Callable[[Progress], None] | None = None,
        timeout: float = 600.0,
        extra_data: Mapping[str, Any] | None = None,
    ) -> Result:
        """Submit a workflow and wait for its end.

        Raises `PromptRejected`, `PromptFailed`, `PromptInterrupted`, or TimeoutError (after cancelling it).
        """
        return asyncio.run(self._run(workflow, progress or (lambda _: None), timeout, extra_data or {}))

    def submit(self, workflow: Workflow, *, extra_data: Mapping[str, Any] | None = None) -> str:
        """Queue a workflow and return its prompt id at once. Raises `PromptRejected`."""
        payload = {"prompt": workflow, "client_id": self.client_id, "extra_data": dict(extra_data or {})}
        return str(self.post("/prompt", payload)["prompt_id"])

    def history(self, prompt_id: str) -> dict[str, Any]:
        """What the host remembers of a prompt; empty until it has ended."""
        return dict(self.get(f"/history/{prompt_id}").get(prompt_id, {}))

    def interrupt(self) -> None:
        """Cancel the running prompt."""
        self.post("/interrupt")

    def free(self) -> None:
        """Have the host forget its models and results, and wait until it has.

        Its worker does so when it wakes, at the latest behind a prompt and before the next one: so a small one follows.
        """
        self.post("/free", {"unload_models": True, "free_memory": True})
        self.run(NOTHING)

    def object_info(self, node: str | None = None) -> dict[str, Any]:
        """The inputs and outputs of one node class, or of all."""
        return dict(self.get(f"/object_info/{node}" if node else "/object_info"))

    def system_stats(self) -> dict[str, Any]:
        """Versions and devices of the host."""
        return dict(self.get("/system_stats"))

    def file(self, entry: Mapping[str, str]) -> bytes:
        """The file behind an entry of `Result.outputs`, such as `outputs["9"]["images"][0]`."""
        query = {"filename": entry["filename"], "subfolder": entry["subfolder"], "type": entry["type"]}
        return self._request(f"/view?{urllib.parse.urlencode(query)}")

    image = latent = file

    def get(self, path: str) -> Any:
        """The JSON answer to a GET request."""
        return json.loads(self._request(path))

    def post(self, path: str, payload: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer to a POST request with a JSON body; None if there is no answer."""
        answer = self._request(path, json.dumps(payload or {}).encode())
        return json.loads(answer) if answer else None

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace") or str(error.reason)
            raise _rejection(error.code, reason) from error
        except urllib.error.URLError as error:
            sentence = f"ComfyUI at {self.url} does not answer ({error.reason}): is it running?"
            raise ClientError(sentence) from error

    async def _run(
        self,
        workflow: Workflow,
        progress: Callable[[Progress], None],
        timeout: float,
        extra_data: Mapping[str, Any],
    ) -> Result:
        async with aiohttp.ClientSession() as session:
            address = f"{self.url}/ws?clientId={self.client_id}"
            async with session.ws_connect(address, max_msg_size=0) as socket:
                # Connected first, so that no message of a quick prompt is missed.
                watch = _Watch(self.submit(workflow, extra_data=extra_data), workflow, progress)
                try:
                    await asyncio.wait_for(_listen(socket, watch), timeout)
                except asyncio.TimeoutError as error:
                    self.interrupt()
                    sentence = f"The prompt did not end within {timeout:g} s{watch.where()}."
                    raise TimeoutError(sentence) from error
        result = watch.finish()
        result.outputs = self.history(result.prompt_id).get("outputs", {})
        return result


class _Watch:
    """Gathers a `Result` from the messages about one prompt."""

    def __init__(self, prompt_id: str, workflow: Workflow, progress: Callable[[Progress], None]) -> None:
        self.result = Result(prompt_id)
        self.error: ClientError | None = None
        self._workflow, self._progress = workflow, progress
        self._node: str | None = None
        self._began = self._node_began = time.perf_counter()

    def binary(self, message: bytes) -> None:
        self.result.previews += int.from_bytes(message[:4], "big") in PREVIEW_EVENTS

    def text(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Take one message; True if it was the prompt's last."""
        if data.get("prompt_id") != self.result.prompt_id:
            return False
        if kind == "executing":
            self._enter(data["node"])
            return data["node"] is None
        if kind == "execution_start":
            self._began = time.perf_counter()
        elif kind == "execution_cached":
            self.result.cached = list(data["nodes"])
        elif kind == "progress":
            self.result.progress_events += 1
            self._progress(Progress(data["node"], self._type(data["node"]), data["value"], data["max"]))
        elif kind == "execution_error":
            names = ("node_id", "node_type", "exception_type", "exception_message")
            node, kind, error, message = (str(data[name]) for name in names)
            self.error = PromptFailed(node, kind, error, message, data.get("traceback") or ())
        elif kind == "execution_interrupted":
            self.error = PromptInterrupted(f"The prompt was interrupted{self.where()}.")
        return False

    def where(self) -> str:
        """The node that runs, for a sentence."""
        return f" in node {self._node} ({self._type(self._node)})" if self._node else ""

    def finish(self) -> Result:
        """The result. Raises what the prompt ended with."""
        if self.error:
            raise self.error
        return self.result

    def _enter(self, node: str | None) -> None:
        now = time.perf_counter()
        if self._node is not None:
            seconds = self.result.node_seconds
            seconds[self._node] = seconds.get(self._node, 0.0) + now - self._node_began
        self._node, self._node_began = node, now
        self.result.seconds = now - self._began
        if node is not None:
            self._progress(Progress(node, self._type(node)))

    def _type(self, node: str) -> str:
        """The class of a node; one that a node expanded into is not in the workflow."""
        return str(self._workflow.get(node, {}).get("class_type", "expanded node"))


async def _listen(socket: aiohttp.ClientWebSocketResponse[bool], watch: _Watch) -> None:
    async for message in socket:
        if message.type == aiohttp.WSMsgType.BINARY:
            watch.binary(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:
            event = json.loads(message.data)
            if watch.text(event["type"], event["data"]):
                return
    raise ClientError(f"ComfyUI closed the connection{watch.where()}: its log says why.")


def _rejection(status: int, body: str) -> PromptRejected:
    """The host's error, its general message followed by what it says about each node."""
    try:
        answer = json.loads(body)
        error, node_errors = answer["error"], answer["node_errors"] or {}
        parts = [error["message"], *(_node_sentence(*item) for item in node_errors.items())]
    except (ValueError, TypeError, KeyError):  # not about a prompt
        return PromptRejected(status, body.strip()[:300], {})
    return PromptRejected(status, "; ".join(parts), node_errors)


def _node_sentence(node_id: str, node: Mapping[str, Any]) -> str:
    reasons = (": ".join(filter(None, (error["message"], error["details"]))) for error in node["errors"])
    return f"node {node_id} ({node['class_type']}): {', '.join(reasons)}"
