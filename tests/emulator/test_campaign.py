"""A slice of the campaign on the card: memory taken away in the middle of prompts, until torch's allocator runs out."""

import re

from headroom.tools.card import emulator

from ..campaign.card import CardMemory
from ..campaign.cases import table
from ..campaign.command import one_case
from ..campaign.stand import Stand
from ..host.conftest import ENVIRONMENT
from ..nightly import NIGHTLY

SEED = 1


def test_memory_that_is_taken_away_and_given_back() -> None:
    with Stand(ENVIRONMENT, emulator.variables(ENVIRONMENT, "rtx3060", vram_mb=8192)) as stand:
        part = CardMemory(stand)
        part.graphs = {"flux_text_to_image": part.graphs["flux_text_to_image"]}
        part.rounds = 10 if NIGHTLY else 2
        case = one_case(part, SEED, 0)
    assert case.is_good, table([case])
    assert any(int(count) for count in re.findall(r"(\d+) out of memory", case.what)), case.what
