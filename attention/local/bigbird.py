"""Window, global and random keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .checks import check_seed, whole
from .dense import with_text_rows
from .grid import TokenGrid
from .halo import Box, FarKeys, Halo, halo_attention
from .lattice import Lattice, token_index


@dataclass(frozen=True)
class BigBird(Halo):
    """A window, a lattice of global tokens, and random keys for every block of queries.

    Attributes:
        radius, block, frames: the window, as in :class:`Window`.
        every: rows and columns from one global token to the next.
        random: picture keys drawn for every block among those it does not see already, the same for all heads.
        seed: of the draw, which is the same on every device and in every call.

    Exact where the window covers the picture.

    Source: Zaheer et al., "Big Bird" (arXiv 2007.14062), section 2.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "bigbird"
    every: int = 8
    random: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("every", self.every, 1)
        whole("random", self.random, 0)
        check_seed(self.seed)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        globals_ = f"one token in {self.every} x {self.every} is global"
        return f"BigBird: {self.around}; {globals_}; {self.random} random keys a block"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        lattice = Lattice.of(grid, self.every, torch.device("cpu"))
        draw = _Draw(grid, lattice, self.random, self.seed)
        text = [grid.text(x) for x in (k, v)]

        def far_keys(patch: Box) -> FarKeys:
            drawn, drawn_bias = draw.outside(patch)
            index = torch.cat((lattice.index, drawn)).to(q.device)
            keys, values = (torch.cat((x[:, :, index], t), 2) for x, t in zip((k, v), text))
            lattice_bias = torch.zeros(len(lattice.index)).masked_fill_(patch.holds(lattice.cells), -torch.inf)
            bias = torch.cat((lattice_bias, drawn_bias, torch.zeros(text[0].shape[2])))
            return FarKeys(keys, values, bias.to(q.device))

        halo_attention(q, k, v, scale, grid, self, out, far_keys)
        Lattice(lattice.cells, lattice.index.to(q.device)).attend_all(out, q, k, v, scale)
        return out


class _Draw:
    """Random cells outside one patch after another; on the CPU, whose generator is the same everywhere."""

    def __init__(self, grid: TokenGrid, lattice: Lattice, count: int, seed: int) -> None:
        cells = torch.cartesian_prod(*(torch.arange(n) for n in grid.shape))
        is_global = torch.zeros(grid.cells, dtype=torch.bool)
        is_global[lattice.index - grid.before] = True
        self.grid, self.candidates = grid, cells[~is_global]
        self.count = min(count, grid.cells)
        self.generator = torch.Generator().manual_seed(seed)

    def outside(self, patch: Box) -> tuple[Tensor, Tensor]:
        """(random,) places among all tokens and their bias: -inf for those that fill up where too few are left."""
        order = torch.randperm(len(self.candidates), generator=self.generator)
        cells = self.candidates[order]
        cells = cells[~patch.holds(cells)][: self.count]
        missing = self.count - len(cells)
        index = torch.cat((token_index(cells, self.grid), torch.full((missing,), self.grid.before)))
        return index, torch.cat((torch.zeros(len(cells)), torch.full((missing,), -torch.inf)))
