"""What a module may ask of a map without its data, by the names of torch's functions and properties."""

from __future__ import annotations

#: Properties of a map that need no data.
METADATA = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "is_mps",
        "is_meta",
        "is_sparse",
        "is_quantized",
        "is_nested",
        "itemsize",
        "nbytes",
        "names",
        "grad",
        "grad_fn",
        "is_leaf",
    ]
)
#: Functions that need no data.
QUERIES = frozenset(
    [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "stride",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "__len__",
        "__hash__",
        "__repr__",
        "storage_offset",
        "get_device",
        "is_inference",
        "is_tensor",
        "type",
        "requires_grad_",
        "is_same_size",
    ]
)
#: Properties that are functions by another name.
METHODS: dict[str, tuple[str, tuple[int, ...]]] = {"mT": ("transpose", (-2, -1)), "data": ("detach", ())}
#: Functions that do not read what a map copied into a tensor, so that the copying may wait longer.
WITHOUT_READING = frozenset(
    ["__getitem__", "narrow", "select", "split", "chunk", "view", "__get__", "unsqueeze", "squeeze"]
)
