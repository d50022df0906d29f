"""Operators on the emulated device give the CPU's bits, products in 16 bits a card's; what it refuses is refused."""

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = torch.device(os.environ["EMU_DEVICE"])
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _gradients() -> Any:
    """Not in inference mode, which the host's tests use: gradients are among what is compared."""
    with torch.inference_mode(False):
        yield


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def each(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    return type(tree)(each(one, change) for one in tree) if isinstance(tree, (list, tuple)) else tree


def require_same(expected: Any, given: Any) -> None:
    """Same bits, shapes and dtypes, and all of it on the device."""
    if isinstance(expected, Tensor):
        assert given.device.type == DEVICE.type
        assert (given.dtype, given.shape) == (expected.dtype, expected.shape)
        bits = (torch.uint8,) if expected.dtype.itemsize == 1 and expected.dtype.is_floating_point else ()
        a, b = (expected.view(*bits), given.cpu().view(*bits)) if bits else (expected, given.cpu())
        assert torch.equal(*(t.nan_to_num() if t.is_floating_point() else t for t in (a, b)))
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(tuple(expected), tuple(given)):
            require_same(one, other)
    else:
        assert expected == given


def require_same_on_both(function: Function, *arguments: Any) -> None:
    expected = function(*each(list(arguments), Tensor.clone))
    given = function(*each(list(arguments), lambda one: one.clone().to(DEVICE)))
    require_same(expected, given)


def _map(dtype: torch.dtype) -> Tensor:
    return drawn(2, 8, 16, 16, dtype=dtype)


def _kernels(dtype: torch.dtype) -> list[Tensor]:
    return [drawn(16, 8, 3, 3, dtype=dtype), drawn(16, dtype=dtype)]


def _queries(dtype: torch.dtype) -> list[Tensor]:
    return [drawn(2, 4, 33, 16, dtype=dtype, seed=n) for n in range(3)]


def _channels_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.conv2d(x.to(memory_format=torch.channels_last), w, b)


def _activations(x: Tensor) -> list[Tensor]:
    gelus = [functional.gelu(x), functional.gelu(x, approximate="tanh")]
    return [x.softmax(-1), *gelus, functional.silu(x), x.sigmoid()]


def _reductions(x: Tensor) -> list[Any]:
    return [x.sum(), x.mean((2, 3)), x.amax(1), x.var(-1), x.std(), x.max(-1), x.argmax(), x.norm(), x.cumsum(0)]


def _resizings(x: Tensor) -> list[Tensor]:
    wide = x.float()
    return [
        functional.interpolate(x, scale_factor=2),
        functional.interpolate(x, scale_factor=1.5, mode="bilinear"),
        functional.interpolate(wide, size=(9, 9), mode="bicubic", antialias=True),
        *(functional.pad(x, (1, 1, 2, 2), mode=mode) for mode in ("constant", "reflect", "replicate")),
    ]


OF_A_DTYPE: dict[str, tuple[Function, Callable[[torch.dtype], list[Any]]]] = {
    "matmul": (torch.matmul, lambda d: [drawn(3, 17, 9, dtype=d), drawn(9, 5, dtype=d)]),
    "linear": (functional.linear, lambda d: [drawn(3, 7, 9, dtype=d), drawn(5, 9, dtype=d), drawn(5, dtype=d)]),
    "conv2d": (lambda x, w, b: functional.conv2d(x, w, b, padding=1), lambda d: [_map(d), *_kernels(d)]),
    "conv2d strided": (lambda x, w, b: functional.conv2d(x, w, b, stride=2), lambda d: [_map(d), *_kernels(d)]),
    "conv2d channels_last": (_channels_last, lambda d: [_map(d), *_kernels(d)]),
    "conv_transpose2d": (functional.conv_transpose2d, lambda d: [_map(d), drawn(8, 4, 3, 3, dtype=d)]),
    "conv3d": (functional.conv3d, lambda d: [drawn(1, 3, 5, 6, 7, dtype=d), drawn(4, 3, 3, 3, 3, dtype=d)]),
    "group_norm": (
        lambda x, w, b: functional.group_norm(x, 4, w, b),
        lambda d: [_map(d), drawn(8, dtype=d), drawn(8, dtype=d)],
    ),
    "layer_norm": (lambda x: functional.layer_norm(x, (16,)), lambda d: [_map(d)]),
    "rms_norm": (lambda x: functional.rms_norm(x, (16,)), lambda d: [_map(d)]),
    "batch_norm": (functional.batch_norm, lambda d: [_map(d), drawn(8), drawn(8).abs()]),
    "attention": (functional.scaled_dot_product_attention, _queries),
    "attention causal": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        _queries,
    ),
    "attention masked": (
        functional.scaled_dot_product_attention,
        lambda d: [*_queries(d), drawn(2, 1, 33, 33, dtype=d)],
    ),
    "activations": (_activations, lambda d: [_map(d)]),
    "reductions": (_reductions, lambda d: [_map(d)]),
    "resizing and padding": (_resizings, lambda d: [_map(d)]),
}


PRODUCTS = ("matmul", "linear", "conv")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OF_A_DTYPE)
def test_same_bits(name: str, dtype: torch.dtype) -> None:
    """A product in 16 bits: the CPU's of 32, rounded once."""
    function, made = OF_A_DTYPE[name]
    arguments = made(dtype)
    if dtype.itemsize == 2 and name.startswith(PRODUCTS):
        expected = function(*each(arguments, Tensor.float)).to(dtype)
        require_same(expected, function(*each(arguments, lambda one: one.to(DEVICE))))
    else:
        require_same_on_both(function, *arguments)


def _views(x: Tensor) -> list[Tensor]:
    x[1:5] += 1
    x.t()[2:4].mul_(2)
    x.view(4, 12)[0].zero_()
    x.reshape(2, 3, 8).permute(2, 0, 1)[0] = 7
    x.diagonal().fill_(3)
    part = x.narrow(0, 1, 2)
    part.copy_(part.flip(0))
    torch.split(x, 2)[1].neg_()
    first, second = x.chunk(2, 1)
    first.add_(second)
    return [x, x.unfold(0, 3, 1), x.unsqueeze(0).expand(3, 6, 8)]


def _indexing(x: Tensor, index: Tensor) -> list[Tensor]:
    read = [x[index], x[:, index[:2]], x[x > 0], x.gather(1, index.view(1, -1).expand(6, 4)), x.nonzero()]
    x[index] = 1.5
    x.index_add_(0, index, torch.ones_like(x[index]))
    x.scatter_(1, index.view(1, 4).expand(6, 4), 9.0)
    sorted_ = [*x.topk(3), *x.sort(-1), x.unique(), torch.where(x > 0, x, -x), x.masked_fill(x > 1, 0.5)]
    return [*read, x, *sorted_, torch.cat([x, x]), x.index_select(0, index), functional.one_hot(index, 6)]


def _backward(x: Tensor, w: Tensor, g: Tensor, q: Tensor) -> list[Tensor]:
    x, w, q = (one.requires_grad_() for one in (x, w, q))
    hidden = functional.group_norm(functional.conv2d(x, w, padding=1), 4)
    hidden = functional.silu(functional.max_pool2d(hidden, 2))
    attended = functional.scaled_dot_product_attention(q, q * 2, q + 1)
    loss = (hidden * g).mean() + attended.pow(2).sum() + functional.layer_norm(attended, (16,)).std()
    loss = loss + functional.linear(attended, attended[0, 0]).exp().mean() + x[:, :2].cumsum(1).tanh().sum()
    loss.backward()
    return [loss.detach(), *(one.grad for one in (x, w, q) if one.grad is not None)]


def _checkpointed(x: Tensor) -> Any:
    result = checkpoint(lambda y: (y @ y).tanh(), x.requires_grad_(), use_reentrant=False)
    return torch.autograd.grad(result.sum(), x)


def _eight_bits(x: Tensor) -> list[Tensor]:
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    return [each for kind in kinds for each in (x.to(kind), x.to(kind).float(), x.half().to(kind).to(torch.bfloat16))]


def _scaled_product(a: Tensor, b: Tensor) -> Tensor:
    one = torch.ones((), device=a.device)
    kind = torch.float8_e4m3fn
    return torch._scaled_mm(a.to(kind), b.to(kind).t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _products(a: Tensor, b: Tensor) -> list[Tensor]:
    into = torch.empty(0, device=a.device)  # grows
    summed = torch.einsum("bij,bjk->bik", a, b)
    return [summed, torch.baddbmm(a @ b, a, b), torch.bmm(a, b, out=into), into]


def _integers(x: Tensor) -> list[Tensor]:
    return [x // 3, x % 2 == 0, x.to(torch.uint8) << 1, (x > 2) & (x < 7), ~(x > 1), x.bool().any(), x.bitwise_and(3)]


def _complex(x: Tensor) -> list[Tensor]:
    return [torch.fft.rfft2(x).abs(), torch.view_as_real(torch.polar(x, x)), torch.fft.fftshift(x)]


def _made(w: Tensor, index: Tensor) -> list[Tensor]:
    where = w.device
    made = [torch.linspace(0, 1, 7, device=where), torch.arange(9, device=where), torch.eye(4, device=where)]
    return [functional.embedding(index, w), *made, w.tril(), w.roll(2), w.rot90(), w.tile(2)]


INDEX = torch.tensor([0, 3, 3, 5])
OTHERS: dict[str, tuple[Function, list[Any]]] = {
    "views and in place": (_views, [drawn(6, 8)]),
    "indexing": (_indexing, [drawn(6, 8), INDEX]),
    "gradients": (_backward, [drawn(2, 8, 16, 16), drawn(8, 8, 3, 3), drawn(2, 8, 8, 8), drawn(2, 4, 33, 16)]),
    "checkpointed gradients": (_checkpointed, [drawn(8, 8)]),
    "float8": (_eight_bits, [drawn(9, 7)]),
    "float8 products": (_scaled_product, [drawn(32, 32), drawn(16, 32)]),
    "int8 products": (torch._int_mm, [torch.arange(512).view(32, 16).char(), torch.arange(384).view(16, 24).char()]),
    "einsum, baddbmm, out=": (_products, [drawn(2, 5, 5), drawn(2, 5, 5, seed=1)]),
    "integers": (_integers, [torch.arange(12)]),
    "complex": (_complex, [drawn(8, 8)]),
    "made on the device": (_made, [drawn(6, 6), INDEX]),
    "foreach": (
        lambda a, b: [*torch._foreach_add([a, b], [b, a]), *torch._foreach_mul([a], 3.0)],
        [drawn(4), drawn(4)],
    ),
    "linear algebra": (lambda x: [torch.linalg.svdvals(x), torch.linalg.inv(x)], [drawn(6, 6)]),
    "inference mode": (torch.inference_mode()(lambda x: (x @ x.t()).relu()[1:]), [drawn(6, 6)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_same_bits_of(name: str) -> None:
    function, arguments = OTHERS[name]
    require_same_on_both(function, *arguments)


def test_same_bits_after_training() -> None:
    results = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(1)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        data = torch.arange(2 * 3 * 64).view(2, 3, 8, 8).float().sin().to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    require_same(*results)


def test_aliases_share_memory() -> None:
    x = drawn(6, 8).to(DEVICE)
    assert x.view(-1).data_ptr() == x.detach().data_ptr() == x.data_ptr()
    assert x[2:].data_ptr() == x.data_ptr() + 2 * 8 * 4
    assert x.add_(1) is x


def test_copies_and_text() -> None:
    x = drawn(6, 8)
    there = x.to(DEVICE)
    assert torch.equal(copy.deepcopy(there).cpu(), x)
    assert there.tolist() == x.tolist()
    assert there[0, 0].item() == x[0, 0].item()
    assert "device=" in repr(there)


def test_generators_repeat_and_go_on() -> None:
    generator = torch.Generator(DEVICE).manual_seed(5)
    first = torch.randn(100, device=DEVICE, generator=generator)
    second = torch.randn(100, device=DEVICE, generator=generator)
    again = torch.randn(100, device=DEVICE, generator=generator.manual_seed(5))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    module = torch.get_device_module(DEVICE)
    state = module.get_rng_state()
    third = torch.rand(9, device=DEVICE)
    module.set_rng_state(state)
    assert torch.equal(third, torch.rand(9, device=DEVICE))


class TestRefused:
    @pytest.mark.parametrize("function", [torch.add, functional.linear], ids=["add", "linear"])
    def test_tensors_of_two_devices(self, function: Function) -> None:
        with pytest.raises(RuntimeError, match="same device"):
            function(drawn(8, 8).to(DEVICE), drawn(8, 8))

    def test_but_not_a_scalar_of_the_cpu(self) -> None:
        x = drawn(6, 8)
        assert torch.equal((x.to(DEVICE) * torch.tensor(2.0)).cpu(), x * 2)

    def test_nor_indices_of_the_cpu(self) -> None:
        x = drawn(6, 8)
        assert torch.equal(x.to(DEVICE)[INDEX].cpu(), x[INDEX])
        assert torch.equal(x.to(DEVICE)[x > 0].cpu(), x[x > 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 16), (16,)])
def test_the_gradient_of_a_fused_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """CUDA has one kernel for it; the CPU's autograd puts it together of others."""
    x, weight = drawn(*shape).to(dtype), drawn(16).to(dtype)
    found = []
    for device, wide in ((DEVICE, dtype), (torch.device("cpu"), torch.float64)):
        inputs = [one.detach().to(device, wide).requires_grad_() for one in (x, weight)]
        torch.nn.functional.rms_norm(inputs[0], (16,), inputs[1], 1e-6).sin().sum().backward()
        found.append([one.grad.cpu().double() for one in inputs])
    for ours, exact in zip(*found):
        assert (ours - exact).norm() / exact.norm() < (1e-6 if dtype == torch.float32 else 1e-2)
