"""Convolutions as text, the file of measurements, and what predictions make of them. No GPU is needed or stood in for:
where something is measured here it is this CPU, by torch's own profiler."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.benchmarks._harness import peak_bytes
from headroom.memory.prediction import (
    DOCUMENTED,
    Calibration,
    Card,
    Collecting,
    ConvolutionCall,
    LiveBytes,
    Workspaces,
    fake_copy,
    fake_mode,
    fake_tensor,
    named_card,
    predict,
)
from headroom.memory.prediction.calibration import Key, by_rule, calibrate, load, save

MiB = 2**20
CPU = torch.device("cpu")
CARD = named_card("sm86", 8.0)
KEY = Key("Some Card", "2.11.0", "13.0", "91002")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def half(*shape: int, last: bool = False) -> Tensor:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)] if last else torch.contiguous_format
    return torch.empty(shape, dtype=torch.float16, device="meta", memory_format=layout)


CALLS = {
    "plain": lambda: functional.conv2d(half(2, 64, 33, 40), half(96, 64, 3, 3), half(96), padding=1),
    "stride and dilation": lambda: functional.conv2d(half(1, 8, 32, 48), half(4, 8, 3, 5), stride=(2, 1), dilation=2),
    "groups": lambda: functional.conv2d(half(1, 64, 16, 16), half(64, 1, 3, 3), padding="same", groups=64),
    "channels last": lambda: functional.conv2d(half(1, 64, 16, 16, last=True), half(32, 64, 1, 1)),
    "weights' channels last": lambda: functional.conv2d(half(1, 64, 16, 16), half(32, 64, 3, 3, last=True)),
    "transposed": lambda: functional.conv_transpose2d(
        half(1, 8, 16, 16), half(8, 16, 3, 3), stride=2, padding=1, output_padding=1
    ),
    "in time": lambda: functional.conv3d(half(1, 8, 4, 16, 16), half(8, 8, 3, 1, 1), padding=(1, 0, 0)),
    "video, channels last": lambda: functional.conv3d(half(1, 8, 4, 16, 16, last=True), half(8, 8, 3, 3, 3)),
    "sound": lambda: functional.conv1d(half(1, 8, 1600), half(16, 8, 7), stride=4),
}


class Seen(LiveBytes):
    """The convolutions that run, with their results."""

    def __init__(self) -> None:
        super().__init__("meta")
        self.calls: list[tuple[tuple[Any, ...], Tensor]] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().run(func, args, kwargs)
        if func is torch.ops.aten.convolution.default:
            self.calls.append((args, result))
        return result


@pytest.mark.parametrize("name", list(CALLS))
def test_a_convolution_comes_back_from_its_text(name: str) -> None:
    with Seen() as seen:
        CALLS[name]()
    (args, result), *others = seen.calls
    assert not others
    convolution = ConvolutionCall.of(args)
    again = ConvolutionCall.parse(str(convolution))
    assert again == convolution
    rebuilt = again.arguments(torch.device("meta"))
    for tensor, before in zip(rebuilt[:2], args[:2]):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (before.shape, before.stride(), before.dtype)
    assert torch.convolution(*rebuilt).shape == result.shape
    assert ConvolutionCall.of(rebuilt) == convolution


def test_different_convolutions_have_different_texts() -> None:
    with Seen() as seen:
        for call in CALLS.values():
            call()
    assert len({str(ConvolutionCall.of(args)) for args, _ in seen.calls}) == len(CALLS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "float16 contiguous 1x64x32x32 64x64x3x3 1x1",
        "system 1x4x8x8 contiguous 4x4x3x3 contiguous stride 1x1 padding 1x1 dilation 1x1 groups 1",
        "float16 1x4x8x8 contiguous 4x4x3x3 contiguous stride 1x1 padding 1x1 dilation 1x1 groups 1 transposed",
    ],
)
def test_other_texts_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no signature"):
        ConvolutionCall.parse(line)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 64, 3, padding=1), nn.Conv2d(64, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def predicted(workspaces: Workspaces, card: Card = CARD) -> Any:
    mode = fake_mode()
    module = fake_copy(Two().half(), mode, card.device)
    with mode:
        x = fake_tensor(torch.zeros(1, 16, 128, 128, dtype=torch.float16), card.device)
    return predict(mode, card, module.parameters(), lambda tracker: module(x), workspaces, given=x)


def signatures() -> set[str]:
    collecting = Collecting()
    predicted(collecting)
    return collecting.seen


class TestPredictions:
    def test_they_note_what_they_meet(self) -> None:
        found = sorted(map(ConvolutionCall.parse, signatures()), key=lambda one: one.x[1])
        assert [(one.x, one.weight, one.padding) for one in found] == [
            ((1, 16, 128, 128), (64, 16, 3, 3), (1, 1)),
            ((1, 64, 128, 128), (8, 64, 1, 1), (0, 0)),
        ]

    def test_noting_changes_nothing(self) -> None:
        plain, noted = predicted(DOCUMENTED), predicted(Collecting())
        assert replace(plain, seconds=0) == replace(noted, seconds=0)

    def test_what_was_measured_comes_before_the_rule(self) -> None:
        largest = max(signatures(), key=lambda line: ConvolutionCall.parse(line).weight[0])
        result = 64 * 128 * 128 * 2
        for inside in (0, 5 * MiB, 100 * MiB):
            found = predicted(Calibration({largest: inside}).workspaces(Workspaces(0.0, 0.0)))
            assert found.activations == result + max(inside, found.live - result)

    def test_the_rest_goes_by_the_rule(self) -> None:
        other = "float16 1x4x8x8 contiguous 4x4x3x3 contiguous stride 1x1 padding 1x1 dilation 1x1 groups 1"
        assert predicted(Calibration({other: 2**30}).workspaces()).activations == predicted(DOCUMENTED).activations

    def test_cublas_as_measured(self) -> None:
        assert predicted(Calibration(product=3 * MiB).workspaces()).constant == 3 * MiB
        assert predicted(Calibration().workspaces()).constant == DOCUMENTED.constant(CARD)

    def test_the_rule_of_one_alone_is_that_of_the_prediction(self) -> None:
        for line in signatures():
            rule = by_rule(ConvolutionCall.parse(line), CARD)
            with_it = predicted(Calibration({line: rule}).workspaces())
            assert with_it.activations == predicted(DOCUMENTED).activations


def on_this_cpu(convolution: ConvolutionCall, device: torch.device) -> int:
    """What torch's profiler sees beside the result."""
    arguments = convolution.arguments(device)
    result = torch.convolution(*arguments)
    return peak_bytes(lambda: torch.convolution(*arguments)) - result.nbytes


class TestCalibrate:
    def test_another_device_is_refused(self) -> None:
        with pytest.raises(ValueError, match="this is cpu"):
            calibrate(signatures(), CPU)

    def test_real_convolutions_measured_alone(self) -> None:
        """The meter of this CPU, against the rule that was read off it in the same way."""
        lines = {line.replace("float16", "float32") for line in signatures()}
        found = calibrate(lines, CPU, meter=on_this_cpu)
        assert set(found.convolutions) == lines
        assert (found.left, found.failed, found.product) == ((), {}, None)
        card = Card("cpu", CPU, 2**36, threads=torch.get_num_threads())
        for line, size in found.convolutions.items():
            assert size == pytest.approx(by_rule(ConvolutionCall.parse(line), card), rel=0.03)

    def test_the_largest_come_first_and_time_ends_it(self) -> None:
        def slow(convolution: ConvolutionCall, device: torch.device) -> int:
            time.sleep(0.2)
            return convolution.x[1]

        found = calibrate(signatures(), CPU, 0.1, slow)
        assert list(found.convolutions.values()) == [64]
        assert [ConvolutionCall.parse(line).x[1] for line in found.left] == [16]

    def test_no_time_at_all(self) -> None:
        found = calibrate(signatures(), CPU, 0, on_this_cpu)
        assert found.convolutions == {}
        assert set(found.left) == signatures()

    def test_what_cannot_run_does_not_stop_the_others(self) -> None:
        def small(convolution: ConvolutionCall, device: torch.device) -> int:
            if convolution.x[1] == 64:
                raise torch.OutOfMemoryError("no room for it\nand a long story")
            return 7

        found = calibrate(signatures(), CPU, meter=small)
        assert list(found.convolutions.values()) == [7]
        assert list(found.failed.values()) == ["no room for it"]

    def test_a_text_of_another_form_is_named(self) -> None:
        with pytest.raises(ValueError, match="'nonsense'"):
            calibrate(["nonsense"], CPU, meter=on_this_cpu)


class TestFile:
    def test_there_and_back(self, tmp_path: Path) -> None:
        path = tmp_path / "headroom" / "calibration.json"
        save(path, KEY, Calibration({"a": 1, "b": 2}, 3 * MiB, ("left",), {"c": "no"}))
        assert load(path, KEY) == Calibration({"a": 1, "b": 2}, 3 * MiB)
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("name", ["card", "torch_version", "cuda_version", "cudnn_version"])
    def test_it_holds_for_one_card_and_its_libraries(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "calibration.json"
        save(path, KEY, Calibration({"a": 1}))
        assert load(path, replace(KEY, **{name: "another"})) is None

    def test_measurements_add_up(self, tmp_path: Path) -> None:
        path, other = tmp_path / "calibration.json", replace(KEY, card="another")
        save(path, KEY, Calibration({"a": 1, "b": 2}, 5))
        save(path, other, Calibration({"a": 9}))
        save(path, KEY, Calibration({"b": 3, "c": 4}))
        assert load(path, KEY) == Calibration({"a": 1, "b": 3, "c": 4}, 5)
        assert load(path, other) == Calibration({"a": 9})

    def test_none_there(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert load(tmp_path / "nowhere.json", KEY) is None
        assert not caplog.records

    @pytest.mark.parametrize(
        "content",
        [
            b"{", b"\xff\xfe\x00", b"[1, 2]", b"null",
            *(
                f'{{"{KEY}": {entry}}}'.encode()
                for entry in (
                    "3", "{}", '{"convolutions": [1]}', '{"convolutions": {"a": -1}}', '{"convolutions": {"a": "1"}}',
                    '{"convolutions": {"a": true}}', '{"convolutions": {"a": 1.5}}',
                    '{"convolutions": {}, "product": "much"}',
                )
            ),
        ],
    )  # fmt: skip
    def test_a_damaged_one_is_ignored_with_a_line(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
    ) -> None:
        path = tmp_path / "calibration.json"
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert load(path, KEY) is None
        assert len(caplog.records) == 1
        assert str(path) in caplog.text
        save(path, KEY, Calibration({"a": 1}))
        assert load(path, KEY) == Calibration({"a": 1})

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        assert load(tmp_path, KEY) is None
