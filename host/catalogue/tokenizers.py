"""Stand-ins for the tokenizers that lie in some text encoders' files, made when they are needed.

They know a few syllables, single letters or no word at all. A text has about as many tokens with the first and the last
as words, and with the second as letters; most text encoders fill their texts up to a length that is the same for all.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
from functools import lru_cache

SYLLABLES = ("lmnprst", "aeiou", "dgkmnt")  # each a list of first, second and third letters
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]", "<pad>")


def stand_in(tensor: str) -> bytes:
    """The bytes of a tokenizer.

    Args:
        tensor: the name of the tensor that holds it in the file, which says its kind.
    """
    kinds = {"tekken_model": _tekken, "tokenizer_json": _words}
    return next((made for name, made in kinds.items() if tensor.endswith(name)), _sentence_pieces)()


@lru_cache(maxsize=1)
def _sentence_pieces() -> bytes:
    model = io.BytesIO()
    first, second, third = SYLLABLES
    words = " ".join(f"{a}{b}{c}" for a in first for b in second for c in third)
    importlib.import_module("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=iter([words] * 4), model_writer=model, vocab_size=64, model_type="bpe",
        pad_id=0, eos_id=1, unk_id=2, bos_id=3, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


@lru_cache(maxsize=1)
def _tekken() -> bytes:
    letters = [{"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode()} for rank in range(256)]
    special = [{"rank": rank, "token_str": token} for rank, token in enumerate(SPECIAL)]
    size = {"default_vocab_size": len(letters) + len(special), "default_num_special_tokens": len(special)}
    return json.dumps({"config": size, "vocab": letters, "special_tokens": special}).encode()


@lru_cache(maxsize=1)
def _words() -> bytes:
    """Of the ``tokenizers`` library: each word, and each row of marks between words, is one unknown token."""
    tokenizers = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({SPECIAL[0]: 0}, unk_token=SPECIAL[0]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found: str = made.to_str()
    return found.encode()
