"""Headroom over HTTP, in a server that runs: estimates, fitting, the run log, and a limit that prompts may ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...memory import row_numbers
from ..measure.runs import LOG

ESTIMATE, FIT, RUNS = "/headroom/estimate", "/headroom/fit", "/headroom/runs/{prompt_id}"
FOLLOW = "follow"  # of a GET for runs: predict to the byte first
PROMPT_PATHS = ("/prompt", "/api/prompt")
Handler = Callable[[Any], Awaitable[Any]]

log = logging.getLogger(__name__)
# One at a time: a dry run is Python throughout, and two would only slow each other and the prompt.
_WORKER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headroom-estimate")


def install() -> None:
    """Adds the routes to the host's server; nothing where there is none. Call it while custom nodes load."""
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
    server.app.middlewares.append(_admission())


async def post_estimate(request: Any) -> Any:
    """The forecast of a workflow, without running it.

    Args:
        request: a POST of ``{"prompt": workflow in the API format, "vram_gb", "ram_gb", "gpu", "limit"}``; all but the
            first may be missing.

    Returns:
        The forecast's numbers with ``text`` and ``notes`` for people; status 400 with ``error``, a sentence, for what
        makes no sense.
    """
    from aiohttp import web

    from ..workflow.estimate import Terms, checked_prompt

    try:
        asked = _json_object(await request.read())
        prompt = checked_prompt(asked.pop("prompt", None))
        answer = await _estimate(prompt, Terms.of(asked))
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    return web.json_response(answer.numbers | {"text": answer.text, "notes": list(answer.notes)})


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
        asked = _json_object(await request.read(), '{"workflow": workflow}')
        # In a thread of its own: it waits for no estimate, and a large workflow holds nothing up.
        return web.json_response(await asyncio.to_thread(fit_workflow, asked))
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)


async def get_runs(request: Any) -> Any:
    """What the run log holds of a prompt.

    Args:
        request: a GET whose path ends with the prompt's id.

    Returns:
        ``{"prompt_id", "rows": […]}``; status 404 with ``error`` where nothing was measured of it.
    """
    from aiohttp import web

    prompt = request.match_info["prompt_id"]
    if FOLLOW in request.query:
        from ..workflow.followed import follow_rows

        await asyncio.get_running_loop().run_in_executor(_WORKER, follow_rows, prompt)
    rows = [row_numbers(node, row) for node in LOG.nodes(prompt) for row in LOG.rows(prompt, node)]
    if not rows:
        sentence = f"prompt '{prompt}': nothing was measured of it here, or too many prompts have run since"
        return web.json_response({"error": sentence}, status=404)
    return web.json_response({"prompt_id": prompt, "rows": rows})


def _admission() -> Any:
    from aiohttp import web

    @web.middleware
    async def admit(request: Any, handler: Handler) -> Any:
        """The host's handler, unless the prompt has a limit and would not keep it."""
        if request.method == "POST" and request.path in PROMPT_PATHS:
            refused = await _refused(await request.read())  # kept by the request: the host's handler gets it too
            if refused is not None:
                return web.json_response(refused, status=400)
        return await handler(request)

    return admit


async def _refused(body: bytes) -> dict[str, Any] | None:
    from .admission import asks_for_admission, refusal

    return await refusal(body, _estimate) if asks_for_admission(body) else None


async def _estimate(prompt: Any, terms: Any) -> Any:
    """A prediction in the worker's thread, while the server goes on."""
    from ..workflow.estimate import estimate_beside

    return await asyncio.get_running_loop().run_in_executor(_WORKER, estimate_beside, prompt, terms)


def _json_object(body: bytes, form: str = '{"prompt": workflow in the API format}') -> dict[str, Any]:
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
