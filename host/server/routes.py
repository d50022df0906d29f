"""Headroom over HTTP, in a server that runs: estimates, fitting, the run log, and a limit that prompts may ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ...graph.fit.behind import with_sums
from ...graph.fit.cfg_source import follow_cfg
from ...graph.formats import BadWorkflow, check_api
from ...graph.version import pack_version
from ...memory import row_numbers
from ...memory.prediction.numbers import SCHEMA
from ..measure.readers import a_prompt_runs
from ..measure.runs import LOG
from . import advised
from .long_lived import set_aside
from .worker import TookTooLong, Worker

ESTIMATE, FIT, RUNS = "/headroom/estimate", "/headroom/fit", "/headroom/runs/{prompt_id}"
VERSION = "/headroom/version"
ESTIMATE_FORM, FIT_FORM = '{"prompt": workflow in the API format}', '{"workflow": workflow}'
FOLLOW, NONE_TOO = "follow", "none_too"  # of a GET for runs: predict to the byte first; no rows are no error
PROMPT_PATHS = ("/prompt", "/api/prompt")
Handler = Callable[[Any], Awaitable[Any]]

log = logging.getLogger(__name__)
# A dry run of the largest models takes a few seconds, and several times that beside a prompt that runs.
MOST_SECONDS = 60.0  # of an estimate
_WORKER = Worker(MOST_SECONDS, a_prompt_runs)


def install() -> None:
    """Adds the routes to the host's server, and what looks at prompts, and has Python look less at what the server has
    loaded; nothing where there is none. Call it while custom nodes load."""
    module = sys.modules.get("server")  # there where the host serves; importing it would start one's parts
    server = getattr(getattr(module, "PromptServer", None), "instance", None)
    if server is None:
        return
    if server.app.frozen or any(getattr(route, "path", None) == ESTIMATE for route in server.routes):
        log.warning("Headroom: its routes were not added: the server runs already, or another copy of the pack did")
        return
    server.routes.post(ESTIMATE)(post_estimate)
    server.routes.post(FIT)(post_fit)
    server.routes.get(RUNS)(get_runs)
    server.routes.get(VERSION)(get_version)
    server.app.middlewares.append(_admission())
    server.add_on_prompt_handler(with_what_the_graph_says)
    advised.install()
    set_aside()


async def post_estimate(request: Any) -> Any:
    """The forecast of a workflow, without running it.

    Args:
        request: a POST of ``{"prompt": workflow in the API format, "vram_gb", "ram_gb", "gpu", "limit"}``; all but the
            first may be missing.

    Returns:
        The forecast's numbers with ``text`` and ``notes`` for people; status 400 with ``error``, a sentence, for what
        makes no sense, and for what takes no memory of a card: then ``complete`` says whether all of it was looked at.
    """
    from aiohttp import web

    from ..workflow.estimate import NothingToPredict

    try:
        answer = await _beside(request, partial(_estimated, await request.read()))
    except NothingToPredict as error:
        return web.json_response({**_told(error), "complete": error.complete}, status=400)
    except ValueError as error:
        return web.json_response(_told(error), status=400)
    return web.json_response(answer)


async def post_fit(request: Any) -> Any:
    """A workflow with our nodes put in.

    Args:
        request: a POST of ``{"workflow": in either format, "quality", "vram_gb", "gpu", "limit"}``; all but the first
            may be missing.

    Returns:
        What :func:`..workflow.fit_request.fit_workflow` gives; status 400 with ``error`` for what makes no sense.
    """
    from aiohttp import web

    from ..workflow.fit_request import fit_workflow

    try:
        body = await request.read()
        # In a thread of its own: it waits for no estimate, and a large workflow holds nothing up.
        return web.json_response(await asyncio.to_thread(lambda: fit_workflow(_json_object(body, FIT_FORM))))
    except ValueError as error:
        return web.json_response(_told(error), status=400)


def _told(error: ValueError) -> dict[str, Any]:
    """An error as JSON: its sentence, and what that is made of where it is known."""
    code = getattr(error, "code", "")
    return {"error": str(error)} | ({"told": {"code": code, "values": getattr(error, "values", {})}} if code else {})


async def get_runs(request: Any) -> Any:
    """What the run log holds of a prompt.

    Args:
        request: a GET whose path ends with the prompt's id.

    Returns:
        ``{"prompt_id", "rows": […]}``; status 404 with ``error`` where nothing was measured of it, unless the query
        says that there may be none.
    """
    from aiohttp import web

    prompt = request.match_info["prompt_id"]
    if FOLLOW in request.query:
        from ..workflow.followed import follow_rows

        try:
            await _beside(request, partial(follow_rows, prompt))
        except TookTooLong as error:
            log.warning("Headroom: the rows of prompt %s stay as they were: %s", prompt, error)
    rows = [row_numbers(node, row) for node in LOG.nodes(prompt) for row in LOG.rows(prompt, node)]
    if not rows and NONE_TOO not in request.query:
        sentence = f"prompt '{prompt}': nothing was measured of it here, or too many prompts have run since"
        return web.json_response({"error": sentence}, status=404)
    return web.json_response({"prompt_id": prompt, "rows": rows})


async def get_version(request: Any) -> Any:
    """Which pack this is, for who works with several servers: ``{"version", "schema"}``, the latter an estimate's."""
    from aiohttp import web

    return web.json_response({"version": pack_version(), "schema": SCHEMA})


def with_what_the_graph_says(queued: dict[str, Any]) -> dict[str, Any]:
    """The host's hook for a prompt that comes in: Make It Fit gets its cfg from the graph where it is asked to, and
    a sum of what is sampled behind it.

    Args:
        queued: the body of a POST to /prompt; what the host would refuse is handed on as it is.
    """
    try:
        check_api(queued.get("prompt"))
    except BadWorkflow:
        return queued
    from ..workflow.running import part_that_runs

    return {**queued, "prompt": with_sums(follow_cfg(queued["prompt"], part_that_runs), part_that_runs)}


def _admission() -> Any:
    from aiohttp import web

    @web.middleware
    async def admit(request: Any, handler: Handler) -> Any:
        """The host's handler, unless the prompt has a limit and would not keep it."""
        if request.method == "POST" and request.path in PROMPT_PATHS:
            body = await request.read()  # kept by the request: the host's handler gets it too
            refused = await _refused(request, body)
            if refused is not None:
                return web.json_response(refused, status=400)
        return await handler(request)

    return admit


async def _refused(request: Any, body: bytes) -> dict[str, Any] | None:
    from .admission import asks_for_admission, refusal

    if not asks_for_admission(body):
        return None
    try:
        return await _beside(request, partial(refusal, body))
    except TookTooLong as error:
        log.info("Headroom admits a prompt without a prediction: %s", error)
        return None


async def _beside(request: Any, work: Callable[[], Any]) -> Any:
    """Work in a thread, while the server goes on and for as long as whoever asked is connected."""
    return await _WORKER.run(work, lambda: request.transport is not None and not request.transport.is_closing())


def _estimated(body: bytes) -> dict[str, Any]:
    """What :func:`post_estimate` answers. Away from the server's loop: a small body can hold a large workflow."""
    from ..workflow.estimate import Terms, checked_prompt, estimate_beside

    asked = _json_object(body, ESTIMATE_FORM)
    prompt = checked_prompt(asked.pop("prompt", None))
    answer = estimate_beside(prompt, Terms.of(asked))
    return answer.numbers | {"text": answer.text, "notes": list(answer.notes)}


def _json_object(body: bytes, form: str) -> dict[str, Any]:
    """
    Args:
        form: what is asked for, for the sentence.

    Raises:
        ValueError: something else.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"the body is no JSON object: send {form}")
    return content
