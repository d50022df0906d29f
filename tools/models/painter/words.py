"""From sentences to the numbers of the few words that the painter was trained with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..from_host import host


class Words:
    """The host's tokenizer, and a number of our own for each token that is known.

    Attributes:
        known: tokens of the host, by our numbers.
    """

    def __init__(self, known: Sequence[int] = (), sentences: Iterable[str] = ()) -> None:
        self.tokenizer = host("comfy.sd1_clip").SDTokenizer()
        self.known = list(known) or sorted({token for sentence in sentences for token in self.tokens(sentence)})
        self.number = {token: index for index, token in enumerate(self.known)}
        self.cache: dict[str, Tensor] = {}

    def tokens(self, sentence: str) -> list[int]:
        """Of the host, filled up to 77."""
        (tokens,) = self.tokenizer.tokenize_with_weights(sentence)
        return [int(token) for token, _ in tokens]

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Our numbers, (sentences, 77). Raises KeyError for a word that is not known."""
        for sentence in sentences:
            if sentence not in self.cache:
                self.cache[sentence] = torch.tensor([self.number[token] for token in self.tokens(sentence)])
        return torch.stack([self.cache[sentence] for sentence in sentences])
