"""What a training step keeps for its backward, and which of it to compute again instead.

On plain tensors: chains of blocks, plans of checkpoints, and the plan that computes least again within a budget.
"""

from .block_input import ComputedOtherwise
from .chain import BlockCost, Checkpoints, StepCost, before_gradients_come, every, spent
from .checkpoint import CheckpointedChain, WrittenPlaces, run_alone
from .in_ram import InRam
from .optimal import StepDoesNotFit, least_recomputation, least_recomputation_in_ram, least_room

__all__ = [
    "BlockCost",
    "CheckpointedChain",
    "Checkpoints",
    "ComputedOtherwise",
    "InRam",
    "StepCost",
    "StepDoesNotFit",
    "WrittenPlaces",
    "before_gradients_come",
    "every",
    "least_recomputation",
    "least_recomputation_in_ram",
    "least_room",
    "run_alone",
    "spent",
]
