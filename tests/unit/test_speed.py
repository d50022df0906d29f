"""How long work takes by a roofline: kernels counted, cards by their names, and what is kept of measurements."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from headroom.memory.prediction import Card, LiveBytes, fake_mode, named_card, predict, repeated
from headroom.memory.speed import History, KernelCost, KernelCosts, Speed, TimedRun, documented, measuring
from headroom.memory.speed.kept import KINDS, device_key, load_speed, save_figures, save_run
from headroom.memory.speed.kernels import ATTENTION, CONVOLUTION, COPY, FUNCTION, PRODUCT, flops_of, scaled
from headroom.memory.units import format_seconds

CPU = torch.device("cpu")
CARD = Card("cpu", CPU, 2**34, threads=1)
GB = 2**30
NOT_KNOWN = ", since those of this card are not known"
ROOFLINE = Speed({(PRODUCT, torch.float32): 1e12}, bandwidth=1e11, dispatch=1e-5, ahead=True, kernel=2e-6)


def work_of(call: object) -> KernelCosts:
    return predict(fake_mode(), CARD, [], lambda tracker: call()).work  # type: ignore[operator]


def only(call: object) -> KernelCost:
    """The one kernel of a call that is not made to fill its arguments."""
    (found,) = (kernel for kernel in work_of(call) if kernel.read)
    return found


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape)


# ----------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize(
    ("call", "kind", "flops", "read", "written"),
    [
        (lambda: empty(8, 16) @ empty(16, 4), PRODUCT, 2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4), 4 * 32),
        (lambda: torch.conv2d(empty(1, 4, 8, 8), empty(6, 4, 3, 3), padding=1), CONVOLUTION, 2 * 9 * 4 * 6 * 64,
         4 * (256 + 216), 4 * 384),
        (lambda: functional.gelu(empty(100)), FUNCTION, 0, 400, 400),
        (lambda: empty(100) + empty(100), COPY, 0, 800, 400),
        (lambda: empty(10, 10).t().contiguous(), COPY, 0, 400, 400),
        (lambda: empty(1).expand(100) + empty(100), COPY, 0, 404, 400),
        (lambda: functional.embedding(torch.empty(5, dtype=torch.long), empty(1000, 8)), COPY, 0, 160, 160),
        (lambda: empty(100).add_(1), COPY, 0, 400, 400),
    ],
)  # fmt: skip
def test_a_kernel(call: object, kind: str, flops: int, read: int, written: int) -> None:
    found = only(call)
    assert (found.kind, found.flops, found.read, found.written) == (kind, flops, read, written)


def test_what_writes_into_memory_that_is_there_takes_none_anew() -> None:
    assert only(lambda: empty(100).add_(1)).largest == 0
    assert only(lambda: empty(100) + 1).largest == 400


@pytest.mark.parametrize("call", [lambda: empty(4, 4).t(), lambda: empty(4, 4)[1:], lambda: empty(4, 4).view(16)])
def test_views_are_no_work(call: object) -> None:
    assert not work_of(call)


def test_attention_of_a_card_is_one_kernel() -> None:
    def call() -> torch.Tensor:
        q = torch.empty(1, 8, 1024, 64, dtype=torch.float16, device="cuda")
        return functional.scaled_dot_product_attention(q, q, q)

    work = predict(fake_mode(), named_card("sm86", 8.0), [], lambda tracker: call()).work
    (found,) = (kernel for kernel in work if kernel.kind == ATTENTION)
    assert found.flops == 4 * 8 * 1024**2 * 64
    assert found.dtype == torch.float16


def test_operations_are_those_that_torch_counts() -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(288, 7))
    with FlopCounterMode(display=False) as counter:
        layers(torch.zeros(2, 3, 8, 8))
    with fake_mode() as mode:
        fake = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(288, 7)
        )
        x = torch.empty(2, 3, 8, 8)
    assert flops_of(predict(mode, CARD, [], lambda tracker: fake(x)).work) == counter.get_total_flops()


def test_equal_parts_are_counted_as_often_as_they_are_said_to_be() -> None:
    def four_times() -> None:
        with repeated(4) as again:
            empty(10) + 1
        again()

    assert work_of(four_times) == scaled(work_of(lambda: empty(10) + 1), 5)


def test_a_part_that_fails_counts_once_each_time() -> None:
    def failing() -> None:
        try:
            with repeated(3):
                empty(10) + 1
                raise KeyError
        except KeyError:
            pass

    assert work_of(failing).total() == 3


def test_with_data_nothing_is_counted() -> None:
    with LiveBytes("cpu") as tracker, repeated(3):
        torch.zeros(10) + 1
    assert not tracker.work


# ---------------------------------------------------------------------------------------------------------- rooflines


def kernel(flops: int = 0, moved: int = 0, kind: str = PRODUCT, dtype: torch.dtype = torch.float32) -> KernelCost:
    return KernelCost(kind, dtype, flops, moved, 0, moved // 4, moved)


def test_a_card_takes_the_longer_of_operations_and_bytes() -> None:
    assert ROOFLINE.seconds(KernelCosts([kernel(10**12, 10**9)])) == pytest.approx(1.0)
    assert ROOFLINE.seconds(KernelCosts([kernel(10**9, 10**11)])) == pytest.approx(1.0)
    assert ROOFLINE.seconds(KernelCosts([kernel(10**12, 10**11), kernel(0, 10**11, COPY)])) == pytest.approx(2.0)


def test_many_small_kernels_take_as_long_as_the_host_to_start_them() -> None:
    assert ROOFLINE.seconds(KernelCosts({kernel(1, 1): 1000})) == pytest.approx(1000 * 1e-5)
    slower = Speed(ROOFLINE.rates, 1e11, dispatch=1e-6, ahead=True, kernel=2e-6)
    assert slower.seconds(KernelCosts({kernel(1, 1): 1000})) == pytest.approx(1000 * 2e-6)


def test_a_cpu_does_one_after_the_other() -> None:
    cpu = Speed({(PRODUCT, torch.float32): 1e10}, bandwidth=1e10, dispatch=1e-5, functions=1e8, page=1e-9)
    assert cpu.seconds(KernelCosts([kernel(10**10, 10**6)])) == pytest.approx(1 + 1e-4 + 1e-5)
    assert cpu.seconds(KernelCosts([kernel(0, 4 * 10**6, FUNCTION)])) == pytest.approx(1e-2 + 4e-4 + 1e-5)
    assert cpu.seconds(KernelCosts([kernel(0, 4 * 10**7, COPY)])) == pytest.approx(4e-3 + 4e-2 + 1e-5)  # above the heap
    assert cpu.seconds(KernelCosts([kernel(0, 10**7, COPY)])) == pytest.approx(1e-3 + 5e-3 + 1e-5)  # half of the time
    assert cpu.seconds(KernelCosts([kernel(0, 10**6, COPY)])) == pytest.approx(1e-4 + 1e-5)


def test_rates_that_are_not_known_are_those_of_products_then_of_float32() -> None:
    speed = Speed(
        {(PRODUCT, torch.float32): 1.0, (PRODUCT, torch.float16): 2.0, (CONVOLUTION, torch.float32): 3.0}, 1.0
    )
    assert speed.rate(ATTENTION, torch.float16) == 2.0
    assert speed.rate(ATTENTION, torch.bfloat16) == 1.0
    assert speed.rate(CONVOLUTION, torch.bfloat16) == 3.0
    assert math.isinf(speed.rate(COPY, torch.float32))


def test_copies_take_the_link() -> None:
    assert Speed({}, 1.0, link=2e9).copied(10**9) == 0.5
    assert Speed({}, 1.0).copied(10**9) == 0.0


# -------------------------------------------------------------------------------------------------- documented figures


@pytest.mark.parametrize(
    ("name", "gb", "capability", "known"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 16, (8, 9), "RTX 4060 Ti"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 8, (8, 9), "RTX 4060"),
        ("RTX 3060, 8 GB", 8, (8, 6), "RTX 3060"),
        ("rtx 3090", 24, (8, 6), "RTX 3090"),
        ("NVIDIA RTX A6000", 48, (8, 6), "RTX A6000"),
        ("NVIDIA H100 80GB HBM3", 80, (9, 0), "H100"),
        ("NVIDIA A100-SXM4-80GB", 80, (8, 0), "A100"),
        ("Quadro RTX 6000", 24, (7, 5), "QUADRO RTX 6000"),
        ("sm89", 24, (8, 9), "L4"),
        ("sm86", 12, (8, 6), "RTX 3060"),
        ("sm120", 32, (12, 0), "RTX 5090"),
        ("something new", 24, (10, 0), f"H100{NOT_KNOWN}"),
        ("something old", 8, (6, 1), f"RTX 2060 SUPER{NOT_KNOWN}"),
        ("AMD Radeon RX 7900 XTX", 24, (11, 0), f"RTX 5060 Ti{NOT_KNOWN}"),
    ],
)
def test_a_card_goes_by_its_name_or_else_by_its_memory(
    name: str, gb: int, capability: tuple[int, int], known: str
) -> None:
    assert documented(name, gb * GB, capability).source == f"the documented figures of the {known}"


def test_figures_are_what_work_reaches_of_the_makers() -> None:
    speed = documented("RTX 3060", 12 * GB, (8, 6))
    assert speed.rate(PRODUCT, torch.float32) == pytest.approx(0.75 * 12.7e12)
    assert speed.rate(PRODUCT, torch.bfloat16) == pytest.approx(0.75 * 25.4e12)
    assert speed.rate(ATTENTION, torch.float16) == pytest.approx(0.6 * 25.4e12)
    assert speed.bandwidth == pytest.approx(0.85 * 360e9)
    assert speed.link == pytest.approx(25.2e9, rel=0.01)


def test_a_card_without_units_for_bfloat16_computes_it_in_float32() -> None:
    speed = documented("RTX 2080", 8 * GB, (7, 5))
    assert speed.rate(PRODUCT, torch.bfloat16) == speed.rate(PRODUCT, torch.float32)
    assert speed.rate(PRODUCT, torch.float16) == pytest.approx(4 * speed.rate(PRODUCT, torch.float32))


def test_of_another_makers_card_it_is_said_that_its_figures_are_not_known() -> None:
    assert documented("Radeon RX 7900 XTX", 24 * GB, None).source.endswith(NOT_KNOWN)


def test_generations_of_rocms_cards_are_not_nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    """An RX 6800 XT is of generation 10.3 there, and an H100 of 9.0."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    card = Card("AMD Radeon RX 6800 XT", torch.device("cuda"), 16 * GB, (10, 3))
    assert card.speed == documented(card.name, card.total, None)
    assert card.speed.rate(PRODUCT, torch.float16) < named_card("sm90", 80.0).speed.rate(PRODUCT, torch.float16) / 5
    assert named_card("sm90", 80.0).speed.source == "the documented figures of the H100"


def test_a_cpu_has_as_many_cores_as_threads() -> None:
    one, four = (documented("CPU", 8 * GB, None, threads) for threads in (1, 4))
    assert four.rate(PRODUCT, torch.float32) == 4 * one.rate(PRODUCT, torch.float32)
    assert not four.ahead


def test_every_card_that_can_be_named_has_figures() -> None:
    from headroom.graph.cards import SIZES
    from headroom.memory.prediction import CAPABILITIES

    for kernels, cards in SIZES.items():
        for name, sizes in cards.items():
            source = documented(name, sizes[0] * GB, CAPABILITIES[kernels]).source
            assert source.lower() == f"the documented figures of the {name}"


# ------------------------------------------------------------------------------------------------- what models took


def test_a_model_takes_as_much_longer_as_it_did() -> None:
    history = History().with_run("a", TimedRun(1.0, 1.5)).with_run("b", TimedRun(1.0, 2.0))
    assert history.factor("a", 1.0) == pytest.approx(1.5, rel=0.01)
    assert 1.5 < history.factor("another", 1.0) < 3**0.5  # as the others here, in the middle, and a little less
    assert History().factor("a", 1.0) == 1.0
    assert history.factor("a", 0.0) == 1.0


def test_what_took_about_as_long_tells_most() -> None:
    history = History().with_run("a", TimedRun(0.1, 0.2)).with_run("a", TimedRun(10.0, 10.0))
    factors = [history.factor("a", seconds) for seconds in (0.1, 1.0, 10.0)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(2.0, rel=0.02)
    assert factors[2] == pytest.approx(1.0, abs=0.02)
    far = History().with_run("a", TimedRun(1.0, 2.0)).factor("a", 1000.0)
    assert 1.0 < far < 1.02
    both = History().with_run("a", TimedRun(1.0, 1.2)).with_run("b", TimedRun(900.0, 900.0 * 1.8))
    assert 1.3 < both.factor("a", 1000.0) < 1.8  # what the others took says more than a run that was nothing like it


@pytest.mark.parametrize("ratio", [8.0, 1 / 8])
def test_what_was_far_off_is_its_models_own_affair(ratio: float) -> None:
    history = History().with_run("odd", TimedRun(1.0, ratio))
    as_much = History().with_run("odd", TimedRun(1.0, 2.0 if ratio > 1 else 0.5))
    assert history.factor("odd", 1.0) == pytest.approx(ratio, rel=0.03)
    assert history.factor("another", 1.0) == as_much.factor("another", 1.0)


def test_the_error_is_of_what_was_told_before_a_run() -> None:
    history = History().with_run("a", TimedRun(1.0, 2.0))
    assert history.error("a") is None
    assert history.with_run("a", TimedRun(1.0, 2.0)).error("a") == pytest.approx(0.0, abs=0.01)
    assert history.with_run("a", TimedRun(1.0, 1.6)).error("a") == pytest.approx(0.25, abs=0.02)


def test_the_latest_runs_count() -> None:
    history = History()
    for ratio in range(1, 20):
        history = history.with_run("a", TimedRun(1.0, float(ratio)))
    assert history.count("a") == 8
    assert 12 < history.factor("a", 1.0) < 19


def test_figures_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "headroom" / "speed.json"
    speed = Speed(
        {(kind, torch.float16): 2e12 for kind in KINDS}, 3e11, 4e-6, 5e8, 6e-10, link=7e9, ahead=True, source="x"
    )
    assert load_speed(path, "card", ROOFLINE) is ROOFLINE
    save_figures(path, "card", speed)
    save_run(path, "card", "Flux", TimedRun(1.0, 1.5))
    save_run(path, "another", "Flux", TimedRun(1.0, 3.0))
    found = load_speed(path, "card", ROOFLINE)
    assert found == speed
    assert found.source == "x"
    assert found.history.factor("Flux", 1.0) == pytest.approx(1.5, rel=0.01)
    assert load_speed(path, "another", ROOFLINE).history.factor("Flux", 1.0) == pytest.approx(3.0, rel=0.02)
    save_figures(path, "card", speed)  # measured anew: runs beside other figures tell nothing
    assert not load_speed(path, "card", ROOFLINE).history.runs


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"figures": 7},
        {"figures": {"rates": [["product", "float32", 1e12]]}},
        {"runs": {"Flux": [[0, 1]]}},
        {"runs": {"Flux": [["a", 1]]}},
        {"runs": 7},
    ],
)
def test_what_is_damaged_is_ignored_and_said(entry: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"card": entry}))
    with caplog.at_level(logging.WARNING):
        assert load_speed(path, "card", ROOFLINE) is ROOFLINE
    assert "damaged" in caplog.text
    save_run(path, "card", "Flux", TimedRun(1.0, 2.0))
    if not isinstance(entry, dict) or "figures" not in entry:
        assert load_speed(path, "card", ROOFLINE).history.factor("Flux", 1.0) == pytest.approx(2.0, rel=0.01)


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "headroom").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        save_run(tmp_path / "headroom" / "speed.json", "card", "Flux", TimedRun(1.0, 2.0))
    assert "not kept" in caplog.text


def test_another_number_of_threads_is_another_device() -> None:
    before = torch.get_num_threads()
    try:
        keys = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            keys.add(device_key(CPU))
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 2


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.01)
    speed = measuring.measure(CPU)
    assert {(kind, torch.float32) for kind in KINDS} <= set(speed.rates)
    assert min(speed.rates.values()) > 0
    assert min(speed.bandwidth, speed.dispatch, speed.functions) > 0
    assert not speed.ahead
    assert f"{torch.get_num_threads()} threads" in speed.source


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0042, "4.2 ms"),
        (0.04, "40 ms"),
        (1.24, "1.2 s"),
        (34.4, "34 s"),
        (125.0, "2 min 5 s"),
        (4800.0, "1 h 20 min"),
    ],
)
def test_seconds_as_people_read_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
