"""What whole maps are wanted for, as text: beside "whole", results and the statistics of a norm."""

OUTPUTS = ("output", "sent")  # as they are, or to host memory


def moments_of(groups: int) -> str:
    """The purpose of a map whose mean and variance are wanted, per image and group of channels."""
    return f"moments:{groups}"


def groups_of(purpose: str) -> int:
    """The number of groups that :func:`moments_of` was given."""
    return int(purpose.partition(":")[2])
