"""The widgets of the host's *Train LoRA* that memory depends on, and what may stand in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...graph.settings import check_choice
from ...memory.prediction import STATES
from ..core.internals import find

ALGORITHMS = ("LoRA", "LoHa", "LoKr", "OFT")
OPTIMIZERS = tuple(STATES)
TRAINING_DTYPES, LORA_DTYPES = ("bf16", "fp32", "none"), ("bf16", "fp32")
ADAPTERS = "comfy.weight_adapter:adapter_maps"


@dataclass(frozen=True)
class TrainingSettings:
    """By the names and choices of the widgets.

    Attributes:
        batch_size: pictures of a step; no more are taken than there are.
        grad_accumulation_steps: whose gradients are added up.
        rank: of the adapter.
        optimizer: by its class in torch.optim.
        training_dtype: that is computed in; "none": the model's own, in 16 bits.
        lora_dtype: that the adapter is kept in.
        algorithm: of the adapter.
        gradient_checkpointing: the node's own checkpoints; they are left out where the MODEL brings ours.
        bypass_mode: the adapter runs beside the weights, and not in them.
        checkpoint_depth: of the node's own.
        offloading: the host may leave weights in the machine's memory.
    """

    batch_size: int = 1
    grad_accumulation_steps: int = 1
    rank: int = 8
    optimizer: str = OPTIMIZERS[0]
    training_dtype: str = TRAINING_DTYPES[0]
    lora_dtype: str = LORA_DTYPES[0]
    algorithm: str = ALGORITHMS[0]
    gradient_checkpointing: bool = True
    bypass_mode: bool = False
    checkpoint_depth: int = 1
    offloading: bool = False

    @classmethod
    def of(cls, widgets: Mapping[str, Any]) -> TrainingSettings:
        """From a node's widgets; others that it has are left out.

        Raises:
            ValueError: as :meth:`check`.
        """
        settings = cls(**{one.name: widgets[one.name] for one in fields(cls) if one.name in widgets})
        settings.check()
        return settings

    def check(self) -> None:
        """
        Raises:
            ValueError: a choice that the node does not have, or an adapter that this host does not make.
        """
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("training_dtype", self.training_dtype, TRAINING_DTYPES)
        check_choice("lora_dtype", self.lora_dtype, LORA_DTYPES)
        made = tuple(find(ADAPTERS, {}))
        if self.algorithm not in made:
            raise ValueError(
                f"algorithm: this ComfyUI trains no {self.algorithm}; choose from {', '.join(made)}, or update it"
            )
        if self.batch_size < 1 or self.rank < 1:
            raise ValueError("batch_size, rank: both have to be 1 or more")
