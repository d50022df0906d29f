"""Approximate patterns against float64 attention under masks and formulas that are built here, token by token."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from headroom.attention.local import (
    LSH,
    MEASURED_ONLY,
    PATTERNS,
    BigBird,
    BlockSparse,
    KMeans,
    KVPool,
    LinearElu,
    LocalGlobal,
    LocalPool,
    Performer,
    Strided,
    TokenGrid,
    Window,
    sampled_error,
    unread_error,
)
from headroom.attention.local.error import sample_rows
from headroom.benchmarks._harness import peak_bytes

from .reference import reference_attention, relative_error

SCALE = 0.3
# Odd sizes, that no block, cell or stride divides; text at either end, at both, and none; one frame and several.
GRIDS = {
    "picture": TokenGrid(16, 16),
    "odd": TokenGrid(19, 13),
    "text before": TokenGrid(14, 11, before=7),
    "text around": TokenGrid(9, 15, before=3, after=5),
    "video": TokenGrid(7, 10, frames=5, after=4),
    "one row": TokenGrid(1, 23, before=2),
}
# Small windows, so that there are many blocks; each also in time.
SMALL = {
    "window": Window(radius=2, block=4),
    "window in time": Window(radius=1, block=5, frames=1),
    "no radius": Window(radius=0, block=3),
    "kv_pool": KVPool(2),
    "kv_pool 3": KVPool(3),
    "strided": Strided(2),
    "strided 3": Strided(3),
    "local_pool": LocalPool(radius=2, block=4, pool=4),
    "local_pool in time": LocalPool(radius=1, block=3, frames=1, pool=3),
    "block_sparse": BlockSparse(block=4, keep=0.3),
    "local_global": LocalGlobal(radius=2, block=4, every=3),
    "local_global in time": LocalGlobal(radius=1, block=3, frames=1, every=4),
    "bigbird": BigBird(radius=2, block=4, every=5, random=6),
    "bigbird in time": BigBird(radius=1, block=3, frames=1, every=4, random=9, seed=3),
    "kmeans": KMeans(clusters=9, top=2, iterations=3),
    "lsh": LSH(buckets=6, rounds=2, chunk=16),
    "performer": Performer(features=64),
    "linear_elu": LinearElu(),
}
EVERYTHING = {
    "window": Window(radius=40),
    "kv_pool": KVPool(1),
    "strided": Strided(1),
    "local_pool": LocalPool(radius=40),
    "local_pool of single tokens": LocalPool(radius=1, block=3, pool=1),
    "block_sparse": BlockSparse(block=4, keep=1.0),
    "local_global": LocalGlobal(radius=40),
    "local_global, all global": LocalGlobal(radius=1, block=3, every=1),
    "bigbird": BigBird(radius=40),
    "bigbird, all random": BigBird(radius=1, block=3, every=7, random=1000),
    "kmeans": KMeans(clusters=9, top=9),
    "lsh": LSH(buckets=4, rounds=2, chunk=512),
}


def operands(grid: TokenGrid, heads: int = 2, dim: int = 12, batch: int = 1, key_heads: int = 0, dim_v: int = 0):
    generator = torch.Generator().manual_seed(grid.tokens)
    shapes = ((heads, dim), (key_heads or heads, dim), (key_heads or heads, dim_v or dim))
    return [torch.randn(batch, h, grid.tokens, d, generator=generator) for h, d in shapes]


def attend(pattern, q: Tensor, k: Tensor, v: Tensor, grid: TokenGrid) -> Tensor:
    """(B, H, N, Dv), after checking what every pattern promises about its result."""
    out = pattern.attend(q, k, v, SCALE, grid)
    assert out.shape == (q.shape[0], q.shape[2], q.shape[1], v.shape[3])
    assert out.is_contiguous()
    assert out.dtype == q.dtype
    assert out.isfinite().all()
    return out.transpose(1, 2)


def weights(pattern, q: Tensor, k: Tensor, grid: TokenGrid) -> Tensor:
    """(B, H, N, N) weight of every token for every query: the output where values are unit vectors."""
    unit = torch.eye(grid.tokens, dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    return attend(pattern, q, k, unit, grid)


def picture_tokens(grid: TokenGrid) -> slice:
    return slice(grid.before, grid.before + grid.frames * grid.height * grid.width)


def coordinates(grid: TokenGrid) -> Tensor:
    """(cells, 3): frame, row and column, in the order of the tokens."""
    return torch.tensor(list(itertools.product(range(grid.frames), range(grid.height), range(grid.width))))


def with_text(mask: Tensor, grid: TokenGrid) -> Tensor:
    """(..., cells, cells) -> (..., N, N): all see the text, the text sees all."""
    full = torch.ones(*mask.shape[:-2], grid.tokens, grid.tokens, dtype=torch.bool)
    full[..., picture_tokens(grid), picture_tokens(grid)] = mask
    return full


def axis_blocks(length: int, block: int, radius: int) -> list[tuple[range, range]]:
    """Queries and the keys they see, along one axis."""
    size = math.ceil(length / math.ceil(length / block))
    if size + 2 * radius >= length:
        return [(range(length), range(length))]
    found = []
    for start in range(0, length, size):
        start = min(start, length - size)
        low = max(0, min(start - radius, length - size - 2 * radius))
        found.append((range(start, start + size), range(low, low + size + 2 * radius)))
    return found


def axes_of(pattern, grid: TokenGrid) -> list[list[tuple[range, range]]]:
    in_time = pattern.frames or 10**6
    return [
        axis_blocks(grid.frames, min(4, 2 * in_time), in_time),
        axis_blocks(grid.height, pattern.block, pattern.radius),
        axis_blocks(grid.width, pattern.block, pattern.radius),
    ]


def window_mask(pattern, grid: TokenGrid) -> Tensor:
    """(cells, cells): of which later blocks take the queries they share with earlier ones."""
    axes = []
    for length, blocks in zip((grid.frames, grid.height, grid.width), axes_of(pattern, grid)):
        sees = torch.zeros(length, length, dtype=torch.bool)
        for queries, keys in blocks:
            sees[list(queries)] = False
            sees[queries.start : queries.stop, keys.start : keys.stop] = True
        axes.append(sees)
    at = coordinates(grid)
    return torch.stack([sees[at[:, i]][:, at[:, i]] for i, sees in enumerate(axes)]).all(0)


def lattice(every: int, grid: TokenGrid) -> Tensor:
    """(cells,) bool."""
    on = torch.ones(grid.frames * grid.height * grid.width, dtype=torch.bool)
    for axis, length in ((1, grid.height), (2, grid.width)):
        place = coordinates(grid)[:, axis] - min(every // 2, length // 2)
        on &= (place >= 0) & (place % every == 0)
    return on


def tile_mask(pattern: BlockSparse, q: Tensor, k: Tensor, grid: TokenGrid) -> Tensor:
    """(B, H, cells, cells): tiles by their means, one after the other."""
    at = coordinates(grid)
    sizes = [math.ceil(n / math.ceil(n / pattern.block)) for n in (grid.height, grid.width)]
    across = math.ceil(grid.width / sizes[1])
    tile = (at[:, 0] * math.ceil(grid.height / sizes[0]) + at[:, 1] // sizes[0]) * across + at[:, 2] // sizes[1]
    count = int(tile.max()) + 1
    kept = math.ceil(pattern.keep * count)
    group = q.shape[1] // k.shape[1]
    mask = torch.zeros(q.shape[0], q.shape[1], len(at), len(at), dtype=torch.bool)
    q, k = (x[:, :, picture_tokens(grid)].double() for x in (q, k))
    for b, h, own in itertools.product(range(q.shape[0]), range(q.shape[1]), range(count)):
        mean = q[b, h, tile == own].mean(0)
        score = torch.stack([mean @ k[b, h // group, tile == other].mean(0) for other in range(count)])
        score[own] = torch.inf
        for best in score.argsort(descending=True)[:kept]:
            mask[b, h] |= (tile == own)[:, None] & (tile == best)[None]
    return mask


def own_mask(pattern, q: Tensor, k: Tensor, grid: TokenGrid) -> Tensor:
    if isinstance(pattern, Strided):
        place = coordinates(grid)[:, 1:] % pattern.stride
        return (place[:, None] == place[None]).all(2)
    if isinstance(pattern, BlockSparse):
        return tile_mask(pattern, q, k, grid)
    mask = window_mask(pattern, grid)
    if isinstance(pattern, LocalGlobal):
        on = lattice(pattern.every, grid)
        mask |= on[:, None] | on[None]
    return mask


MASKED = [name for name, p in SMALL.items() if isinstance(p, Window | Strided | BlockSparse | LocalGlobal)]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", MASKED)
def test_it_is_dense_attention_under_the_patterns_mask(name: str, grid: TokenGrid) -> None:
    q, k, v = operands(grid, batch=2, heads=4, key_heads=2)
    mask = with_text(own_mask(SMALL[name], q, k, grid), grid)
    expected = reference_attention(q, k, v, SCALE, mask if mask.ndim == 4 else mask[None, None])
    assert relative_error(attend(SMALL[name], q, k, v, grid), expected) <= 1e-6


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", ["window", "window in time", "no radius"])
def test_a_window_reaches_its_radius_from_every_query(name: str, grid: TokenGrid) -> None:
    pattern, at = SMALL[name], coordinates(grid)
    near = ((at[:, None, 1:] - at[None, :, 1:]).abs() <= pattern.radius).all(2)
    if pattern.frames:
        near &= (at[:, None, 0] - at[None, :, 0]).abs() <= pattern.frames
    q, k, _ = operands(grid)
    seen = weights(pattern, q * 0, k, grid)[0, 0, picture_tokens(grid), picture_tokens(grid)] > 0
    assert seen[near].all()


@pytest.mark.parametrize("name", ["bigbird", "bigbird in time"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_bigbird_sees_window_lattice_and_as_many_random_keys(name: str, grid: TokenGrid) -> None:
    pattern = SMALL[name]
    q, k, v = operands(grid, batch=2)
    uniform = weights(pattern, q * 0, k, grid)
    seen = uniform > 0
    # Every key that is seen is counted once.
    assert relative_error(uniform, (seen / seen.sum(-1, keepdim=True)).double()) <= 1e-6
    assert (seen == seen[0, 0]).all()
    assert relative_error(attend(pattern, q, k, v, grid), reference_attention(q, k, v, SCALE, seen)) <= 1e-6

    cells = seen[0, 0, picture_tokens(grid), picture_tokens(grid)]
    window, on = window_mask(pattern, grid), lattice(pattern.every, grid)
    assert cells[window | on[None]].all()
    assert cells[on].all()
    random = (cells & ~window & ~on[None])[~on]
    left = (~window & ~on[None])[~on].sum(1)
    assert (random.sum(1) == left.clamp_max(pattern.random)).all()
    assert seen[0, 0][:, : grid.before].all()


def test_bigbirds_draw_differs_by_block_and_by_seed() -> None:
    grid = TokenGrid(24, 24)
    q, k, _ = operands(grid, heads=1)
    seen = [weights(BigBird(2, 8, 0, 8, 20, seed), q * 0, k, grid)[0, 0] > 0 for seed in (0, 0, 1)]
    assert (seen[0] == seen[1]).all()
    assert (seen[0] != seen[2]).any()
    beyond = seen[0] & ~window_mask(Window(2, 8), grid)
    assert (beyond[0] != beyond[-1]).any()


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", EVERYTHING)
def test_exact_where_the_pattern_sees_everything(name: str, grid: TokenGrid) -> None:
    q, k, v = operands(grid, batch=2)
    assert relative_error(attend(EVERYTHING[name], q, k, v, grid), reference_attention(q, k, v, SCALE)) <= 1e-6


@pytest.mark.parametrize("name", SMALL)
def test_text_queries_are_exact(name: str) -> None:
    grid = GRIDS["text around"]
    q, k, v = operands(grid, heads=4, key_heads=2)
    is_text = torch.ones(grid.tokens, dtype=torch.bool)
    is_text[picture_tokens(grid)] = False
    out, expected = attend(SMALL[name], q, k, v, grid), reference_attention(q, k, v, SCALE)
    assert relative_error(out[:, :, is_text], expected[:, :, is_text]) <= 1e-6


@pytest.mark.parametrize("name", [n for n in SMALL if n != "linear_elu"])
def test_text_keys_weigh_each_other_as_in_dense_attention(name: str) -> None:
    grid = GRIDS["text around"]
    q, k, _ = (x.double() for x in operands(grid))
    is_text = torch.ones(grid.tokens, dtype=torch.bool)
    is_text[picture_tokens(grid)] = False
    found = weights(SMALL[name], q, k, grid)[..., is_text]
    expected = torch.softmax(q @ k.transpose(2, 3) * SCALE, -1)[..., is_text]
    assert relative_error(found / found.sum(-1, True), expected / expected.sum(-1, True)) <= 1e-9


def pooled(x: Tensor, cells: list[list[int]]) -> Tensor:
    """(N, D) -> the means over lists of tokens, in float64."""
    return torch.stack([x[cell].double().mean(0) for cell in cells])


def coarse_cells(grid: TokenGrid, size: int, without: set[int] = frozenset()) -> list[list[int]]:
    """Tokens of every cell of a picture, less those in ``without``; no empty cells."""
    cells: dict[tuple[int, int, int], list[int]] = {}
    for i, (frame, row, column) in enumerate(coordinates(grid).tolist()):
        if grid.before + i not in without:
            cells.setdefault((frame, row // size, column // size), []).append(grid.before + i)
    return list(cells.values())


def text_cells(grid: TokenGrid) -> list[list[int]]:
    return [[i] for i in (*range(grid.before), *range(grid.tokens - grid.after, grid.tokens))]


def merged_attention(q: Tensor, k: Tensor, v: Tensor, cells: list[list[int]]) -> Tensor:
    """(n, D) queries against the means over ``cells``, each weighing as many tokens as it has."""
    scores = q.double() @ pooled(k, cells).T * SCALE + torch.tensor([float(len(c)) for c in cells]).double().log()
    return torch.softmax(scores, -1) @ pooled(v, cells)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", ["kv_pool", "kv_pool 3"])
def test_pooled_keys_by_their_formula(name: str, grid: TokenGrid) -> None:
    q, k, v = operands(grid)
    cells = coarse_cells(grid, SMALL[name].factor) + text_cells(grid)
    out = attend(SMALL[name], q, k, v, grid)
    for head in range(q.shape[1]):
        rows = picture_tokens(grid)
        expected = merged_attention(q[0, head, rows], k[0, head], v[0, head], cells)
        assert relative_error(out[0, head, rows], expected) <= 1e-6


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("name", ["local_pool", "local_pool in time"])
def test_far_field_by_its_formula(name: str, grid: TokenGrid) -> None:
    """Every block's patch token by token, and beyond it means over exactly the tokens that are not in the patch."""
    pattern = SMALL[name]
    q, k, v = operands(grid, heads=1)

    def tokens(box: tuple[range, ...]) -> list[int]:
        return [grid.before + (f * grid.height + y) * grid.width + x for f, y, x in itertools.product(*box)]

    expected = torch.zeros_like(q[0, 0]).double()
    for axes in itertools.product(*axes_of(pattern, grid)):
        own, patch = tokens(tuple(a[0] for a in axes)), tokens(tuple(a[1] for a in axes))
        cells = [[i] for i in patch] + coarse_cells(grid, pattern.pool, set(patch)) + text_cells(grid)
        expected[own] = merged_attention(q[0, 0, own], k[0, 0], v[0, 0], cells)
    rows = picture_tokens(grid)
    assert relative_error(attend(pattern, q, k, v, grid)[0, 0, rows], expected[rows]) <= 1e-6


@pytest.mark.parametrize("name", ["kmeans", "lsh"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_chosen_keys_have_their_exact_weights(name: str, grid: TokenGrid) -> None:
    """Softmax over the union of what a query chose: each key once, however often it was met."""
    q, k, _ = (x.double() for x in operands(grid, heads=4, key_heads=2))
    found = weights(SMALL[name], q, k, grid)
    expected = torch.eye(grid.tokens).double().expand(1, 2, -1, -1)
    assert relative_error(found, reference_attention(q, k, expected, SCALE, found > 0)) <= 1e-12


def test_kmeans_attends_whole_clusters_the_best_ones_first() -> None:
    grid = TokenGrid(16, 16)
    q, k, _ = (x.double() for x in operands(grid, heads=1))
    # Enough iterations to converge: then a centroid is the mean of its cluster, which the test can compute.
    seen = [weights(KMeans(9, top, iterations=60), q, k, grid)[0, 0] > 0 for top in (1, 2, 9)]
    clusters = seen[0].unique(dim=0)
    assert len(clusters) > 3
    assert (clusters.sum(0) <= 1).all(), "a key is of one cluster"
    for more, fewer in ((seen[1], seen[0]), (seen[2], seen[1])):
        assert (more | ~fewer).all()
    for cluster in clusters:
        assert (seen[1][:, cluster].all(1) == seen[1][:, cluster].any(1)).all(), "a cluster is seen whole or not"
    assert (seen[1].sum(1) > seen[0].sum(1)).all()
    assert seen[2].all()
    means = torch.stack([k[0, 0, cluster].mean(0) for cluster in clusters])
    best = (SCALE * q[0, 0] @ means.T + clusters.sum(1).log()).argmax(1)
    assert torch.equal(clusters[best], seen[0])


def test_kmeans_finds_the_keys_of_separate_clusters() -> None:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(6, 16, generator=generator) * 4
    which = torch.randint(6, (256,), generator=generator)
    near = torch.randn(2, 256, 16, generator=generator) * 0.3
    q, k = (centres[which] + n for n in near)
    v = torch.randn(256, 16, generator=generator)
    q, k, v = (x[None, None] for x in (q, k, v))
    out = attend(KMeans(clusters=12, top=6, iterations=10), q, k, v, TokenGrid(16, 16))
    assert relative_error(out, reference_attention(q, k, v, SCALE)) < 0.01


def test_performer_converges_to_softmax() -> None:
    grid = GRIDS["text before"]
    q, k, v = operands(grid, dim=8)
    q, k = q * 0.5, k * 0.5 + 1.0
    expected = reference_attention(q, k, v, SCALE)[:, :, picture_tokens(grid)]
    error = {
        n: relative_error(attend(Performer(n), q, k, v, grid)[:, :, picture_tokens(grid)], expected) for n in (16, 4096)
    }
    assert error[4096] < 0.05
    assert error[4096] < error[16] / 4


def test_performer_has_orthogonal_features() -> None:
    directions = Performer(features=20)._directions(8)
    assert directions.shape == (20, 8)
    gram = directions[:8] @ directions[:8].T
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-4


def test_linear_attention_by_its_formula() -> None:
    grid = GRIDS["text before"]
    q, k, v = operands(grid, heads=4, key_heads=2)
    fq, fk = (torch.where(x > 0, x + 1, x.exp()).double() for x in (q, k.repeat_interleave(2, 1)))
    kernel = fq @ fk.transpose(2, 3)
    expected = kernel @ v.repeat_interleave(2, 1).double() / kernel.sum(-1, True)
    rows = picture_tokens(grid)
    assert relative_error(attend(LinearElu(), q, k, v, grid)[:, :, rows], expected[:, :, rows]) <= 1e-6


@pytest.mark.parametrize("name", SMALL)
def test_grouped_heads_and_batches_are_heads_and_batches_of_their_own(name: str) -> None:
    grid = GRIDS["text around"]
    q, k, v = operands(grid, batch=2, heads=6, key_heads=2, dim_v=8)
    out = attend(SMALL[name], q, k, v, grid)
    for batch in range(2):
        one = [x[batch : batch + 1] for x in (q, *(x.repeat_interleave(3, 1) for x in (k, v)))]
        assert relative_error(attend(SMALL[name], *one, grid), out[batch : batch + 1].double()) <= 1e-6


@pytest.mark.parametrize("name", SMALL)
def test_any_strides(name: str) -> None:
    grid = GRIDS["text around"]
    q, k, v = operands(grid, batch=2)
    expected = attend(SMALL[name], q, k, v, grid).double()
    fused = torch.stack((q, k, v)).permute(1, 3, 0, 2, 4).contiguous()  # (B, N, 3, H, D), as one projection gives it
    layouts = {
        "of one projection": [fused[:, :, i].transpose(1, 2) for i in range(3)],
        "channels first": [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)],
    }
    for layout, strided in layouts.items():
        before = [x.clone() for x in strided]
        assert relative_error(attend(SMALL[name], *strided, grid), expected) <= 1e-6, layout
        assert all(torch.equal(x, y) for x, y in zip(strided, before)), "operands are not written to"


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2), (torch.float64, 1e-5)])
@pytest.mark.parametrize("name", SMALL)
def test_other_dtypes(name: str, dtype: torch.dtype, bound: float) -> None:
    grid = GRIDS["text around"]
    rounded = [x.to(dtype) for x in operands(grid, heads=4, key_heads=2)]
    expected = attend(SMALL[name], *(x.float() for x in rounded), grid).double()
    assert relative_error(attend(SMALL[name], *rounded, grid), expected) <= bound


@pytest.mark.parametrize("name", EVERYTHING)
def test_float64_is_computed_in_float64(name: str) -> None:
    grid = GRIDS["text around"]
    q, k, v = (x.double() for x in operands(grid))
    assert relative_error(attend(EVERYTHING[name], q, k, v, grid), reference_attention(q, k, v, SCALE)) <= 1e-14


@pytest.mark.parametrize("name", SMALL)
def test_the_same_every_time(name: str) -> None:
    grid = GRIDS["video"]
    q, k, v = operands(grid)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = attend(SMALL[name], q, k, v, grid)
    assert torch.equal(state, torch.get_rng_state()), "the host's own random numbers are left alone"
    torch.manual_seed(2)
    assert torch.equal(first, attend(SMALL[name], q, k, v, grid))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("pattern", [cls() for cls in (*PATTERNS.values(), *MEASURED_ONLY.values())], ids=str)
def test_defaults_take_grids_smaller_than_their_parameters(pattern, size: int) -> None:
    grid = TokenGrid(size, size, before=1)
    out = attend(pattern, *operands(grid, dim=4), grid)
    assert pattern.describe().count("\n") == 0
    assert out.shape[2] == size * size + 1


def test_patterns_are_known_by_their_names() -> None:
    for key, pattern in {**PATTERNS, **MEASURED_ONLY}.items():
        assert pattern.name == key
        assert hash(pattern()) == hash(pattern())
    assert list(PATTERNS) == [
        "window", "kv_pool", "strided", "local_pool", "block_sparse", "local_global", "bigbird", "kmeans",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (partial(Window, radius=-1), "radius"),
        (partial(Window, radius=1.5), "radius"),
        (partial(Window, block=0), "block"),
        (partial(Window, frames=-1), "frames"),
        (partial(LocalGlobal, every=0), "every"),
        (partial(LocalGlobal, radius=-1), "radius"),
        (partial(BigBird, random=-1), "random"),
        (partial(BigBird, seed=-1), "seed"),
        (partial(KVPool, 0), "factor"),
        (partial(Strided, 0), "stride"),
        (partial(LocalPool, pool=0), "pool"),
        (partial(LocalPool, block=0), "block"),
        (partial(BlockSparse, block=0), "block"),
        (partial(BlockSparse, keep=0), "keep"),
        (partial(BlockSparse, keep=1.1), "keep"),
        (partial(KMeans, clusters=0), "clusters"),
        (partial(KMeans, clusters=4, top=5), "top"),
        (partial(KMeans, iterations=-1), "iterations"),
        (partial(LSH, buckets=7), "buckets"),
        (partial(LSH, rounds=0), "rounds"),
        (partial(LSH, chunk=0), "chunk"),
        (partial(Performer, features=0), "features"),
        (partial(TokenGrid, 0, 4), "height"),
        (partial(TokenGrid, 4, 0), "width"),
        (partial(TokenGrid, 4, 4, frames=0), "frames"),
        (partial(TokenGrid, 4, 4, before=-1), "before"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(make, parameter: str) -> None:
    with pytest.raises(ValueError, match=rf"^{parameter} is .*: write "):
        make()


@pytest.mark.parametrize("name", SMALL)
def test_only_self_attention_over_the_grid(name: str) -> None:
    grid = TokenGrid(4, 5)
    q, k, v = operands(grid, heads=4)
    for wrong in (
        (q, k[:, :, :7], v[:, :, :7]),
        (q[:, :, :7], k, v),
        (q[0], k[0], v[0]),
        (q, k[:, :3], v[:, :3]),
        (q, k, v[:, :2]),
        (q, k[..., :3], v),
        (q.expand(2, -1, -1, -1), k, v),
    ):
        with pytest.raises(ValueError, match="pass "):
            SMALL[name].attend(*wrong, SCALE, grid)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_error_over_all_rows_is_the_true_error(grid: TokenGrid) -> None:
    q, k, v = operands(grid, batch=2, heads=4, key_heads=2)
    out = SMALL["window"].attend(q, k, v, SCALE, grid)
    rows = picture_tokens(grid)
    true = relative_error(out.transpose(1, 2)[:, :, rows], reference_attention(q, k, v, SCALE)[:, :, rows])
    assert sampled_error(out, q, k, v, SCALE, grid, rows=10**6) == pytest.approx(true, rel=1e-5)
    some = sampled_error(out, q, k, v, SCALE, grid, rows=40)
    assert float(unread_error(out, q, k, v, SCALE, grid, rows=40)) == some
    assert some == pytest.approx(true, rel=0.3, abs=1e-6)


def test_error_of_exact_half_precision_is_its_rounding() -> None:
    grid = TokenGrid(16, 16)
    q, k, v = (x.bfloat16() for x in operands(grid))
    out = reference_attention(q, k, v, SCALE).transpose(1, 2)
    assert sampled_error(out, q, k, v, SCALE, grid) < 1e-6
    assert 1e-4 < sampled_error(out.bfloat16(), q, k, v, SCALE, grid) < 4e-3


@pytest.mark.parametrize(("height", "width", "rows"), [(64, 64, 64), (32, 48, 64), (5, 7, 35), (9, 9, 80)])
def test_sampled_rows_are_spread_over_columns_too(height: int, width: int, rows: int) -> None:
    index = sample_rows(TokenGrid(height, width, before=3), rows) - 3
    assert index.min() >= 0
    assert index.max() < height * width
    assert index.diff().max() <= math.ceil(2 * height * width / rows)
    assert len((index % width).unique()) > 0.5 * min(rows, width)


def test_no_rows_is_refused() -> None:
    grid = TokenGrid(2, 2)
    q, k, v = operands(grid)
    with pytest.raises(ValueError, match="rows"):
        sampled_error(Window().attend(q, k, v, SCALE, grid), q, k, v, SCALE, grid, rows=0)


@pytest.mark.parametrize("pattern", [cls() for cls in PATTERNS.values()], ids=PATTERNS)
def test_memory_is_far_below_the_score_matrix(pattern) -> None:
    grid, heads = TokenGrid(64, 64, before=9), 2
    q, k, v = operands(grid, heads=heads, dim=40)
    assert peak_bytes(lambda: pattern.attend(q, k, v, SCALE, grid)) <= 0.15 * heads * grid.tokens**2 * 4


def test_a_window_holds_one_row_of_blocks() -> None:
    grid = TokenGrid(64, 64)
    q, k, v = operands(grid, heads=8, dim=40)
    token = 8 * 40 * 4
    output, keys_and_values, queries = grid.cells * token, 2 * 4 * 32 * 32 * token, 2 * 16 * 64 * token
    working = (4 + torch.get_num_threads()) << 20  # the fused kernel has buffers for each thread
    assert peak_bytes(lambda: Window().attend(q, k, v, SCALE, grid)) <= output + keys_and_values + queries + working
