"""Linear attention. Measured, not offered: a model trained with softmax does not survive it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from ..tiles import score_dtype
from .dense import with_text_rows
from .grid import TokenGrid


@dataclass(frozen=True)
class LinearElu:
    """elu(q) + 1 times elu(k) + 1 in place of the exponential of their score; O(N) time.

    Here text keys weigh what the same kernel gives them: an exponential would not be comparable with it. ``scale``
    plays no part for picture queries.

    Source: Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236), section 3.2.
    """

    name: ClassVar[str] = "linear_elu"

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return "linear: elu(x) + 1 of queries and keys in place of the softmax"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        dtype, group = score_dtype(q), q.shape[1] // max(1, k.shape[1])
        queries, keys = (functional.elu(x.to(dtype)) + 1 for x in (q[:, :, grid.span], k))
        summary, total = keys.transpose(2, 3) @ v.to(dtype), keys.sum(2).unsqueeze(-1)
        summary, total = (x.repeat_interleave(group, 1) for x in (summary, total))
        out[:, grid.span] = (queries @ summary / (queries @ total)).transpose(1, 2).to(out.dtype)
        return out
