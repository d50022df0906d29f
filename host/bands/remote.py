"""The pack's side of a process of a Ray cluster: what :class:`.carried.BandActor` calls."""

from __future__ import annotations

import pickle
import time
from collections.abc import Hashable, Sequence
from typing import Any

import comfy.model_management as model_management
import torch

from ...graph.version import pack_version
from ...memory.accelerator import device_name, random_state, set_random_state
from ...vae.exact.bands.peers import ASKER, PeerLost, Peers
from ...vae.exact.cutting.share import Share
from ...vae.exact.running.banded import Gift
from ..core.compat import comfyui_version
from ..core.device import memory_budget
from .sent import SentModule, bytes_of, packed, put_together, unpacked, work_of
from .work import computed, follow_attention

INLINE = 1 << 16  # bytes that go through the board itself
TOLD_EVERY = 0.1  # seconds
HOST = torch.device("cpu")


def about() -> dict[str, Any]:
    """What whoever asks has to know of this process."""
    device = model_management.get_torch_device()
    return {
        "pack": pack_version(),
        "comfyui": comfyui_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "kind": device.type,
        "bytes": memory_budget(device),
    }


def module(sent: dict[str, Any]) -> Any:
    """A module on this process's device, in whose attention blocks strips are followed."""
    device = model_management.get_torch_device()
    made = put_together(SentModule(sent["structure"], unpacked(sent["tensors"], HOST)), device)
    follow_attention(made)
    return made


def weights(model: Any) -> int:
    """Bytes of a module."""
    return sum(one.nbytes for one in (*model.parameters(), *model.buffers()))


def band(model: Any, board: Any, rank: int, cuts: Sequence[int], grain: int, work: dict[str, Any]) -> dict[str, Any]:
    """A band of an encode or decode; its tensor packed."""
    peers = RayPeers(board, rank)
    device = model_management.get_torch_device()
    # A device of another kind has random numbers of its own, which know no state of this one's.
    common = None if work.pop("random_of") == device.type else 1
    set_random_state(device, unpacked(work.pop("random"), HOST)[:common])
    asked = work_of(work)
    share = Share(rank, tuple(cuts), grain)
    answer = computed(model, asked, share, peers, device, peers.tell)
    if answer["status"] == "done":
        answer["random"] = packed(random_state(device)[:common])
        answer["measured"] = peers.received
        (answer["band"],) = packed([answer["band"]])
    elif answer["status"] != "lost":
        peers.fail(str(answer.get("why", answer["status"])))
    return answer


class RayPeers(Peers):
    """The other processes, over Ray's object store.

    Attributes:
        received: bytes of tensors that were taken from other workers.
    """

    def __init__(self, board: Any, rank: int) -> None:
        import ray

        self.ray, self.board, self.rank = ray, board, rank
        self.received, self.told = 0, 0.0

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        if not to:
            return
        there: Any = packed(things)
        # The board is to hold a name or bytes: it could not read what is the pack's own.
        there = {"ref": [self.ray.put(there)]} if bytes_of(there) > INLINE else {"bytes": pickle.dumps(there)}
        self.board.give.remote(self.rank, key, list(to), there)

    def take(self, key: Hashable, of: int) -> Gift:
        answer = self.there(self.board.take.remote(self.rank, key, of))
        if "lost" in answer:
            raise PeerLost(*answer["lost"])
        given = answer["things"]
        try:
            # Of another worker's, whom the cluster's token lets run anything here as it is.
            there = pickle.loads(given["bytes"]) if "bytes" in given else self.ray.get(given["ref"][0])  # noqa: S301
        except self.ray.exceptions.RayError as error:
            raise PeerLost(of, "is gone with what it gave") from error
        if of != ASKER:
            self.received += bytes_of(there)
        return lambda device: unpacked(there, device)

    def there(self, wanted: Any) -> dict[str, Any]:
        """What the board says, once it does."""
        found: dict[str, Any] = self.ray.get(wanted)
        return found

    def tell(self, share: float) -> None:
        """How much is done, to whoever asked. Raises :class:`PeerLost` where it is to end."""
        now = time.monotonic()
        if now - self.told < TOLD_EVERY:
            return
        self.told = now
        lost = self.ray.get(self.board.tell.remote(self.rank, share))
        if lost:
            raise PeerLost(*lost)

    def fail(self, why: str) -> None:
        """Has the others end."""
        self.ray.get(self.board.fail.remote(self.rank, why))
