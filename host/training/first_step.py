"""What is seen of the first step of a training: what its blocks take, and what is held beside them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ...memory.prediction import STATES, CannotPredict, Card
from ...memory.speed.kernels import inner_tensors
from ...memory.units import MB, format_bytes
from ...training import BlockCost, before_gradients_come
from .costs import BlockCosts, trainable
from .nested import like, tensors_in

MOST_STATES = max(STATES.values())  # of an optimizer that is not the host's
OF_EACH = 3  # latents of a picture that is not in the step: itself, as the model takes it, and its noise
LATENTS = 10  # that the host's training holds in a step: noise and pictures, of all and of the batch, mixed, as goal


@dataclass
class HeldInTraining:
    """Bytes on the device throughout a step, activations of the blocks not among them.

    Attributes:
        weights: of the model.
        adapter: trainable tensors.
        gradients: of these.
        states: of the optimizer.
        outside: what the network saves outside of its blocks.
        given: pictures and texts of the step.
    """

    weights: int
    adapter: int
    gradients: int
    states: int
    outside: int
    given: int

    @property
    def beside_weights(self) -> int:
        """What a training allocates itself."""
        return self.gradients + self.states + self.outside + self.given

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.beside_weights

    def __str__(self) -> str:
        parts = {
            "weights": self.weights, "adapter": self.adapter, "its gradients": self.gradients,
            "optimizer": self.states,
            "outside of the blocks": self.outside, "pictures and texts": self.given,
        }  # fmt: skip
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size >= MB / 2)


class FirstStep:
    """Of one size, with a checkpoint around every block.

    Args:
        base: the host's model.
        x: the latents that go into it.
        inputs: whatever else does.
        optimizer: where the training shows it.
        card: that the training runs on.
        pictures: of the training, all of which it holds with their noise.
        held: tensors without data that are there anyway, beside what a block is given.
        texts_too: the host's copies of all texts, which it leaves in the machine's memory, are on the device.
        accumulates: gradients of steps before are there when one begins.

    Attributes:
        why: there is no chain of blocks; empty where there is one.
    """

    def __init__(
        self,
        base: nn.Module,
        x: Tensor,
        inputs: Any,
        optimizer: Any,
        card: Card,
        pictures: int = 0,
        held: Sequence[Tensor] = (),
        *,
        texts_too: bool,
        accumulates: bool = False,
    ) -> None:
        self.base, self.x, self._inputs = base, x, tensors_in(inputs)
        self.optimizer, self.accumulates, self.why = optimizer, accumulates, ""
        self._more, self._texts_too = max(0, pictures - len(x)), texts_too
        self._costs: BlockCosts | None = BlockCosts(card, held)
        # Outside of the blocks, by storage; what comes behind the last block is gone again when its backward begins.
        self._saved, self._behind = dict[int, int](), dict[int, int]()
        self._left_out: dict[int, weakref.ref[Any]] = {}
        self._ahead = 0  # gradients of what is trained ahead of the blocks
        self._leave_out((*base.parameters(), *base.buffers(), *self._inputs, *held))

    def before(self, number: int, block: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Before a block's call."""
        if not number:
            ahead = trainable(tensors_in((args, kwargs)))
            self._ahead = sum(one.nbytes for one in ahead if one is not self.x)
        self._saved |= self._behind
        self.after((args, kwargs))
        if self._costs is None:
            return
        try:
            self._costs.add(number, block, forward, args, kwargs)
        except CannotPredict as error:
            self._costs, self.why = None, str(error)

    def after(self, result: Any) -> None:
        """Leaves out what goes from block to block."""
        self._leave_out(tensors_in(result))
        self._behind = {}

    def _leave_out(self, tensors: Iterable[Tensor]) -> None:
        inner = (one for tensor in tensors for one in inner_tensors(tensor))
        self._left_out |= {int(one.untyped_storage()._cdata): weakref.ref(one.untyped_storage()) for one in inner}

    def _is_left_out(self, storage: int) -> bool:
        """Whether it is one that is left out, and not one in the place of such a one that is gone."""
        found = self._left_out.get(storage)
        return found is not None and found() is not None

    def watched(self) -> saved_tensors_hooks:
        """Within it, what autograd saves outside of the blocks is seen.

        Its graph keeps the hooks. One that kept this step would close a circle through the graph, where no collector of
        garbage sees it: the model stayed for good.
        """
        itself = weakref.ref(self)

        def pack(tensor: Tensor) -> Tensor:
            step = itself()
            if step is not None:
                step._behind |= _sizes((tensor,))
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def result(self) -> Any:
        """What the last block would give. In a fake mode.

        Raises:
            CannotPredict: nobody knows.
        """
        if self._costs is None:
            raise CannotPredict(self.why)
        return like(self._costs.result)

    def chain(self, count: int) -> list[BlockCost] | None:
        """What the blocks take, if each of so many was called once."""
        if self._costs is None or len(self._costs.chain) != count:
            self.why = self.why or "not every block was called once"
            return None
        return self.whole(self._costs, count)

    def whole(self, costs: BlockCosts, count: int) -> list[BlockCost]:
        """A chain of so many blocks, beside gradients that :meth:`held` counts."""
        chain = [costs.chain[number] for number in range(count)]
        return chain if self.accumulates else before_gradients_come(chain, self._ahead)

    def held(self, result: Any) -> HeldInTraining:
        """
        Args:
            result: what the network gave.
        """
        learnt, weights = self._learnt(result), (*self.base.parameters(), *self.base.buffers())
        adapter = sum(one.nbytes for one in learnt)
        states = STATES.get(type(self.optimizer).__name__, MOST_STATES)
        inputs = sum(_sizes(self._inputs).values())
        copies = inputs * (1 + self._more / len(self.x)) if self._texts_too else 0
        return HeldInTraining(
            weights=sum(_sizes(one for one in weights if one.device == self.x.device).values()),
            adapter=adapter,
            gradients=adapter,
            states=states * adapter,
            outside=sum(size for key, size in self._saved.items() if not self._is_left_out(key))
            + (0 if self._costs is None else self._costs.given),
            given=LATENTS * self.x.nbytes + OF_EACH * self._more * self.x.nbytes // len(self.x) + inputs + int(copies),
        )

    def _learnt(self, result: Any) -> list[Tensor]:
        """From the optimizer where the host's training shows it, else what the graph leads to."""
        if self.optimizer is not None:
            return [one for group in self.optimizer.param_groups for one in group["params"]]
        found = trainable([one for one in tree_leaves(result) if isinstance(one, Tensor)])
        return [one for one in found if one is not self.x]


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the storages, each once."""
    return {
        int(inner.untyped_storage()._cdata): inner.untyped_storage().nbytes()
        for one in tensors
        for inner in inner_tensors(one)
    }
