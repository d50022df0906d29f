"""Models without data that were loaded before: a server that is asked about a workflow again has them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from ...memory.prediction import fake_mode
from ..prediction.header_loading import Absent
from .calling import Outputs

# Two models, text encoders, a VAE and two more: some ten thousand objects each, which Python's collector looks through.
MOST_KEPT = 6


class Loads:
    """What loaders gave, for runs one after the other, all in one thread.

    Attributes:
        mode: what the tensors are faked in, of all runs: those of two modes do not meet.
    """

    def __init__(self) -> None:
        self.mode = fake_mode()
        self._kept: OrderedDict[Hashable, tuple[Outputs, Absent]] = OrderedDict()

    def get(self, key: Hashable, absent: Absent, load: Callable[[Absent], Outputs]) -> Outputs:
        """What a loader gives.

        Args:
            key: all that it depends on beside its files.
            absent: takes note of the files that it asks for.
            load: has it load; notes the files in what it is given.
        """
        known = self._kept.pop(key, None)
        if known is None or not known[1].holds():  # a file was changed, or is there by now
            noted = Absent()
            known = load(noted), noted
        outputs, noted = self._kept[key] = known
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        absent.add(noted)
        return outputs
