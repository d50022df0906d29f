"""The tracker, copies without data, and the rules for what kernels hold inside, against torch's own profiler."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.benchmarks._harness import peak_bytes
from headroom.memory.prediction import (
    CannotPredict,
    Card,
    Forecast,
    GivenUp,
    LiveBytes,
    Prediction,
    Repeats,
    Stage,
    Verdict,
    Workspaces,
    fake_copy,
    fake_mode,
    fake_tensor,
    live_bytes,
    named_card,
    predict,
    while_wanted,
)
from headroom.memory.prediction.fused_attention import kernel_refusal_on
from headroom.memory.prediction.numbers import forecast_numbers
from headroom.memory.render import draw_forecast, render_forecast

MiB = 2**20
CPU = Card("cpu", torch.device("cpu"), 2**36)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, depth: int = 6, width: int = 64) -> None:
        super().__init__()
        self.entry = nn.Conv2d(16, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x.softmax(-1)


def predicted(module: nn.Module, x: Tensor, card: Card = CPU, repeats: Repeats | None = None) -> Prediction:
    mode = fake_mode()
    copy = fake_copy(module, mode, card.device)
    if repeats is not None:
        repeats.install(copy)
    with mode:
        given = fake_tensor(x, card.device)
    return predict(mode, card, copy.parameters(), lambda tracker: copy(given), repeats=repeats, given=given)


class TestLiveBytes:
    def test_a_storage_counts_once_and_until_its_last_view_is_gone(self) -> None:
        with LiveBytes("cpu") as tracker:
            x = torch.zeros(1000)
            view = x[10:20].view(2, 5)
            assert tracker.live == 4000
            del x
            assert tracker.live == 4000
            del view
            assert tracker.live == 0
        assert tracker.peak == 4000

    def test_other_devices_do_not_count(self) -> None:
        with LiveBytes("cuda") as tracker:
            torch.zeros(1000).add(1)
        assert tracker.peak == 0

    def test_sizes_are_rounded_up_as_the_allocator_does(self) -> None:
        with LiveBytes("cpu", 512) as tracker:
            kept = torch.zeros(3)
            assert tracker.live == 512
        del kept

    def test_a_long_timeline_has_fewer_points_and_its_peak(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live_bytes, "MOST_POINTS", 8)
        with LiveBytes("cpu") as tracker:
            for size in range(1, 41):
                torch.zeros(1000 * size)
                assert len(tracker.timeline) < 8
        assert tracker.operators == 40
        assert list(tracker.timeline) == [4 * 1000 * size for size in range(8, 41, 8)]

    def test_what_belongs_to_somebody_else_is_left_out(self) -> None:
        theirs = torch.zeros(1000)
        tracker = LiveBytes("cpu")
        tracker.leave_out([theirs])
        with tracker:
            mine = theirs.view(10, 100) + 1
        assert tracker.live == 4000
        del mine

    def test_inner_tensors_of_composed_operators_are_seen_under_inference_mode(self) -> None:
        x, kernel = torch.zeros(1, 16, 64, 64), torch.zeros(16, 16, 3, 3)
        with torch.inference_mode(), LiveBytes("cpu", hidden=Workspaces().hidden(CPU)) as tracker:
            functional.conv2d(x, kernel)
        assert tracker.peak_operator == "aten.convolution.default"

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_indices_of_32_bits_are_copied_to_64(self, dtype: torch.dtype) -> None:
        table, places = torch.zeros(16), torch.zeros(300, 700, dtype=dtype)
        with LiveBytes("cpu", hidden=Workspaces().hidden(CPU)) as tracker:
            kept = table[places]
        assert tracker.peak == peak_bytes(lambda: table[places])
        del kept

    def test_operators_that_a_library_wrote_in_python_are_followed(self) -> None:
        """As those that unpack quantised weights."""

        @torch.library.custom_op("headroom_test::doubled_thrice", mutates_args=())
        def doubled_thrice(x: Tensor) -> Tensor:
            wide = torch.cat([x, x, x])
            return wide[: len(x)] * 2

        x = torch.ones(1000)
        with LiveBytes("cpu") as tracker:
            kept = doubled_thrice(x)
        assert tracker.peak == 16000
        assert (tracker.live, len(kept)) == (4000, 1000)


class TestPredict:
    @pytest.mark.parametrize("shape", [(1, 16, 48, 40), (2, 16, 33, 17), (3, 16, 24, 24)])
    def test_it_is_what_the_profiler_sees(self, shape: tuple[int, ...]) -> None:
        module, x = Tower(), torch.zeros(shape)
        module(x)
        prediction = predicted(module, x)
        assert prediction.activations == pytest.approx(peak_bytes(lambda: module(x)), rel=0.005)
        assert prediction.weights == sum(p.nbytes for p in module.parameters())
        assert prediction.live <= prediction.activations

    def test_no_memory_is_taken_and_the_module_is_only_read(self) -> None:
        module = Tower(depth=2)
        before = {name: p.data_ptr() for name, p in module.named_parameters()}
        process = psutil.Process()
        start = process.memory_info().rss
        prediction = predicted(module, torch.zeros(1, 16, 1, 1).expand(1, 16, 4096, 4096))
        assert prediction.activations > 8 * 2**30
        assert process.memory_info().rss - start < 64 * MiB
        assert before == {name: p.data_ptr() for name, p in module.named_parameters()}
        assert "forward" not in vars(module.blocks[0])

    def test_equal_blocks_are_followed_once_with_the_same_answer(self) -> None:
        module, x = Tower(depth=20), torch.zeros(1, 16, 32, 32)
        each, once = predicted(module, x), predicted(module, x, repeats=Repeats())
        assert (once.weights, once.activations, once.live) == (each.weights, each.activations, each.live)
        assert once.operators < each.operators / 3

    def test_blocks_that_differ_are_followed_each(self) -> None:
        module, x = Tower(depth=4), torch.zeros(1, 16, 32, 32)
        for number, block in enumerate(module.blocks):
            block.scale = 1.0 + number
        assert predicted(module, x).operators == predicted(module, x, repeats=Repeats()).operators

    def test_blocks_that_ask_for_free_memory_are_followed_each(self) -> None:
        repeats = Repeats()

        class Asking(Block):
            def forward(self, x: Tensor) -> Tensor:
                repeats.questions += 1
                return super().forward(x)

        module = Tower(depth=0)
        module.blocks = nn.ModuleList(Asking(64) for _ in range(4))
        x = torch.zeros(1, 16, 32, 32)
        copies = predicted(module, x, repeats=repeats).operators
        assert copies == predicted(module, x).operators

    def test_the_operator_that_depends_on_data_is_named(self) -> None:
        class Curious(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x[x > 0]

        with pytest.raises(CannotPredict, match="nonzero"):
            predicted(Curious(), torch.zeros(8))

    def test_a_card_that_is_not_there(self) -> None:
        prediction = predicted(Tower(), torch.zeros(1, 16, 64, 64), named_card("sm86", 8.0))
        assert prediction.constant == int(8.125 * MiB)
        assert prediction.activations % 512 == 0
        assert predicted(Tower(depth=0), torch.zeros(1, 16, 64, 64), named_card("sm86", 8.0)).live < prediction.live


SINGLE = torch.float32
OPERATORS: dict[str, Callable[[], tuple[Callable[..., Tensor], tuple[Tensor, ...]]]] = {
    "convolution": lambda: (lambda x, w: functional.conv2d(x, w, padding=1), (rand(2, 64, 40, 48), rand(96, 64, 3, 3))),
    "convolution, stride": lambda: (
        lambda x, w: functional.conv2d(x, w, stride=2, padding=1), (rand(1, 64, 64, 64), rand(64, 64, 3, 3))
    ),
    "convolution, few channels": lambda: (
        lambda x, w: functional.conv2d(x, w, padding=1), (rand(1, 3, 96, 96), rand(64, 3, 3, 3))
    ),
    "convolution, pointwise": lambda: (functional.conv2d, (rand(1, 64, 64, 64), rand(64, 64, 1, 1))),
    "convolution, small picture": lambda: (
        lambda x, w: functional.conv2d(x, w, padding=1), (rand(1, 4, 32, 32), rand(320, 4, 3, 3))
    ),
    "convolution in time": lambda: (functional.conv3d, (rand(1, 96, 4, 64, 64), rand(96, 96, 3, 1, 1))),
    "convolution of video": lambda: (functional.conv3d, (rand(1, 96, 4, 64, 64), rand(96, 96, 3, 3, 3))),
    "convolution of little video": lambda: (functional.conv3d, (rand(1, 32, 6, 32, 32), rand(48, 32, 3, 3, 3))),
    "attention": lambda: (functional.scaled_dot_product_attention, (rand(2, 8, 1024, 64),) * 3),
    "attention, short": lambda: (functional.scaled_dot_product_attention, (rand(2, 8, 77, 40),) * 3),
    "linear": lambda: (functional.linear, (rand(2, 256, 320), rand(640, 320), rand(640))),
    "norm": lambda: (lambda x: functional.group_norm(x, 32), (rand(2, 64, 64, 64),)),
    "softmax": lambda: (lambda x: x.softmax(-1), (rand(8, 512, 512),)),
}  # fmt: skip


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=SINGLE)


@pytest.mark.parametrize("name", list(OPERATORS))
def test_what_kernels_hold_on_this_cpu(name: str) -> None:
    operator, inputs = OPERATORS[name]()
    operator(*inputs)
    tracker = LiveBytes("cpu", hidden=Workspaces().hidden(CPU))
    tracker.leave_out(inputs)
    with tracker:
        operator(*inputs)
    assert tracker.peak == pytest.approx(peak_bytes(lambda: operator(*inputs)), rel=0.03)


class TestFusedAttention:
    def refusal(self, card: str, kernel: str, dtype: torch.dtype, width: int = 64, mask: Tensor | None = None) -> bool:
        q = torch.empty(1, 2, 8, width, dtype=dtype)
        return kernel_refusal_on(named_card(card, 8.0), kernel, q, q, q, mask) is not None

    def test_cards(self) -> None:
        half = torch.float16
        assert self.refusal("sm75", "flash", half)
        assert not self.refusal("sm86", "flash", half)
        assert self.refusal("sm86", "cudnn", half, 256)
        assert not self.refusal("sm90", "cudnn", half, 256)
        assert self.refusal("sm75", "efficient", torch.bfloat16)
        assert not self.refusal("sm75", "efficient", half)
        assert self.refusal("sm86", "flash", torch.float32)
        assert self.refusal("sm86", "flash", half, mask=torch.zeros(8, 8))
        assert not self.refusal("sm75", "math", torch.float64, 7)

    def test_a_fused_kernel_is_taken_without_the_card(self) -> None:
        class Attention(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return functional.scaled_dot_product_attention(x, x, x)

        x = torch.zeros(1, 8, 4096, 64, dtype=torch.float16)
        for card, kernel in (("sm75", "efficient"), ("sm86", "cudnn")):
            prediction = predicted(Attention(), x, named_card(card, 8.0))
            assert set(prediction.kernels) == {kernel}
            # The output, and a number per row for the gradient.
            assert x.nbytes < prediction.activations < 1.05 * x.nbytes
        scores = predicted(Attention(), x[..., :63], named_card("sm75", 8.0))
        assert set(scores.kernels) == {"math"}
        assert scores.activations > 4096 * 4096 * 8 * 4


class TestForecast:
    def stage(self, work: str, weights: int, activations: int, least: int, budget: int | None = None) -> Stage:
        found = Prediction(weights, activations, activations, timeline=(activations,))
        return Stage(work, found, weights * MiB, least * MiB, budget)

    def forecast(self, total: int, *stages: Stage, ram: int = 0) -> Forecast:
        return Forecast(Card("card", torch.device("cuda"), total * MiB, (8, 6)), stages, 1.0, ram * MiB)

    def test_the_most_of_all_stages(self) -> None:
        forecast = self.forecast(
            500, self.stage("sampling", 400, 50 * MiB, 40), self.stage("decode", 100, 300 * MiB, 100)
        )
        assert forecast.peak == 450 * MiB
        assert forecast.least == 400 * MiB
        assert forecast.activations == 300 * MiB
        assert forecast.verdict is Verdict.RESIDENT
        assert forecast.streamed_per_step == 0

    def test_what_fills_the_card_exactly_fits(self) -> None:
        decode = self.stage("decode", 100, 300 * MiB, 100)
        assert self.forecast(400, decode).verdict is Verdict.RESIDENT
        assert self.forecast(400, decode, ram=100).verdict is Verdict.RESIDENT
        assert not self.forecast(400, decode).too_big()
        assert self.forecast(399, decode).verdict is Verdict.DOES_NOT_FIT
        assert self.forecast(399, decode).too_big() == [decode]

    def test_ram_holds_every_model_once(self) -> None:
        """Two diffusion models, as Wan 2.2's, one of them sampled twice, and a VAE that encodes and decodes."""
        high, low = (replace(self.stage("sampling", 400, MiB, 40), model=number) for number in (1, 2))
        coded = [replace(self.stage(work, 100, MiB, 100), model=3) for work in ("encode", "decode")]
        assert self.forecast(500, coded[0], high, low, high, coded[1]).ram_needed == 900 * MiB
        controlled = replace(high, weights=high.weights + 70 * MiB, beside=70 * MiB)
        for samplings in ((high, controlled), (controlled, high)):
            assert self.forecast(500, *samplings).ram_needed == 470 * MiB

    def test_decoded_frames_need_ram_and_disk(self) -> None:
        """Beside a card; on a CPU they are in what its work takes already."""
        decode = replace(self.stage("decode", 100, 300 * MiB, 100), frames=1000 * MiB, disk=20 * MiB)
        assert self.forecast(500, decode, ram=1100).verdict is Verdict.RESIDENT
        short = self.forecast(500, decode, decode, ram=2099)
        assert (short.ram_needed, short.ram_frames, short.disk) == (100 * MiB, 2000 * MiB, 40 * MiB)
        assert short.verdict is Verdict.DOES_NOT_FIT
        told = render_forecast(replace(short, disk_free=39 * MiB))
        assert "RAM for weights 100 MB, for decoded frames 1.95 GB of 2.05 GB\n" in told
        assert "\ndisk: up to 40 MB, 39 MB are free\n" in told
        assert "RAM: the decoded frames take 1.95 GB" in told
        assert "disk: up to 40 MB are needed, 39 MB are free" in told
        enough = render_forecast(replace(self.forecast(500, decode, decode, ram=2100), disk_free=40 * MiB))
        assert "are needed" not in enough
        assert "more than the weights leave" not in enough
        assert Forecast(CPU, (decode,), ram=400 * MiB).verdict is Verdict.RESIDENT

    def test_a_prediction_is_the_same_however_long_it_took(self) -> None:
        assert Prediction(1, 2, seconds=0.5) == Prediction(1, 2, seconds=3.0) != Prediction(1, 3)

    def test_what_streams(self) -> None:
        forecast = self.forecast(250, self.stage("sampling", 400, 50 * MiB, 40))
        assert forecast.verdict is Verdict.STREAMS
        assert forecast.streamed_per_step == 200 * MiB
        assert "streams 200 MB" in render_forecast(forecast)

    def test_what_does_not_fit_is_told_with_what_to_do(self) -> None:
        forecast = self.forecast(250, self.stage("decode", 100, 300 * MiB, 100))
        assert forecast.verdict is Verdict.DOES_NOT_FIT
        assert "put Low-Memory VAE before it" in render_forecast(forecast)
        in_strips = replace(forecast.stages[0], method="exact, in strips")
        told = render_forecast(self.forecast(250, in_strips))
        assert "put Low-Memory VAE" not in told
        assert "give its node a smaller vram_budget_gb or, where it has that, the method feathered" in told
        assert "video smaller" in render_forecast(self.forecast(250, self.stage("sampling", 100, 300 * MiB, 100)))

    def test_what_the_host_does_in_tiles_instead_is_told(self) -> None:
        """Not where RAM ends, and only where nothing else is too big."""
        decode = replace(self.stage("decode", 100, 300 * MiB, 100), or_tiles=True)
        sampling = self.stage("sampling", 100, 300 * MiB, 100)
        forecast = self.forecast(250, decode)
        assert forecast_numbers(forecast)["or_tiles"] is True
        told = render_forecast(forecast).splitlines()
        assert told[1].startswith("does not fit, by this prediction; ComfyUI would run out of memory, and go on in")
        assert any("ComfyUI does it again in tiles there; put Low-Memory VAE before it" in line for line in told)
        for other in (
            self.forecast(400, decode),
            self.forecast(250, replace(decode, or_tiles=False)),
            self.forecast(250, sampling, decode),
            self.forecast(250, decode, ram=50),
        ):
            assert not other.or_tiles
            assert "go on in tiles" not in render_forecast(other)

    def test_what_keeps_to_what_there_is_says_what_it_takes_else(self) -> None:
        decode = replace(self.stage("decode", 100, 100 * MiB, 100), up_to=300 * MiB)
        assert "with the whole card free it takes 300 MB" in render_forecast(self.forecast(250, decode))
        assert forecast_numbers(self.forecast(250, decode))["stages"][0]["up_to_gb"] == 300 / 1024

    def test_memory_of_the_machine_counts(self) -> None:
        stages = [self.stage("text", 300, 1, 10), self.stage("sampling", 400, 1, 10)]
        assert self.forecast(500, *stages, ram=800).verdict is Verdict.RESIDENT
        assert self.forecast(500, *stages, ram=600).verdict is Verdict.DOES_NOT_FIT

    def test_a_picture(self) -> None:
        for stages in ((), (self.stage("sampling", 400, 50 * MiB, 40), self.stage("decode", 100, 300 * MiB, 100))):
            image = draw_forecast(self.forecast(300, *stages))
            assert image.size[0] == 960
            assert len(image.getcolors(1 << 20) or ()) > 3


def test_work_with_gradients_is_given_up() -> None:
    """Where autograd asks for a leaf's device torch takes no error, and ends the process for one."""
    went_on = list[str]()

    def work(_: object) -> None:
        with torch.enable_grad():
            went_on.append("began")
            _ = leaf * 2
            went_on.append("went on")

    with torch.inference_mode(False):
        mode = fake_mode()
        with mode:
            leaf = nn.Parameter(torch.empty(4))
        with pytest.raises(GivenUp), while_wanted(lambda: not went_on):
            predict(mode, named_card("sm86", 8.0), (), work)
    assert went_on == ["began"]
