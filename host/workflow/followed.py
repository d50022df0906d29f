"""Work that a prompt has done, predicted when somebody asks: strips to the byte, in about a second each."""

from __future__ import annotations

import logging

import torch

from ...memory.prediction import CannotPredict
from ..measure.runs import LOG
from ..planning.rows import ask
from .isolation import beside_the_prompt

log = logging.getLogger(__name__)


def follow_rows(prompt: str) -> None:
    """Has every finished row of a prompt predicted, in a thread of a server that may run another prompt meanwhile.

    A row that cannot be predicted keeps what is known of it, with a line in the log.
    """
    with torch.inference_mode(), beside_the_prompt():
        for node in LOG.nodes(prompt):
            for row in LOG.rows(prompt, node):
                try:
                    if row.outcome == "done":
                        ask(row)
                except (CannotPredict, ValueError, RuntimeError) as error:
                    log.info("Headroom: node %s was not predicted: %s", node, error)
