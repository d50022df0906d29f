"""Run log, measured peaks, and the report as text and chart."""

import mmap
import threading

import numpy as np
import torch

from headroom.memory import AttentionCounts, Peak, PeakMeter, Row, RunLog
from headroom.memory.peak import allocator_history
from headroom.memory.prediction import Prediction
from headroom.memory.render import NodeReport, draw_report, render_report
from headroom.memory.runlog import MOST_NODES, MOST_ROWS_PER_NODE


def sampled_row() -> Row:
    counts = AttentionCounts()
    for index in (1, 2, 4):
        counts.add(("input", index), "sdpa", "auto: fused kernel, O(N) memory")
    counts.add(("middle", 0), "host", "block not selected")
    return Row("sampling", 2.5, Peak(2**30, 3 * 2**30, "sampled"), counts, outcome="done")


class TestRunLog:
    def test_rows_are_kept_by_prompt_and_node(self) -> None:
        log = RunLog()
        first, second = log.start("p", "3", "sampling"), log.start("p", "3", "sampling")
        log.start("q", "3", "decode")
        assert log.rows("p", "3") == [first, second]
        assert [row.work for row in log.rows("q", "3")] == ["decode"]
        assert log.rows("p", "4") == []

    def test_it_is_bounded(self) -> None:
        log = RunLog()
        for i in range(MOST_NODES + 5):
            log.start("p", str(i), "decode")
        assert log.rows("p", "4") == []
        assert log.rows("p", "5")
        for _ in range(MOST_ROWS_PER_NODE + 3):
            log.start("p", "again", "decode")
        assert len(log.rows("p", "again")) == MOST_ROWS_PER_NODE

    def test_an_earlier_row_is_found_only_for_the_same_graph(self) -> None:
        log = RunLog()
        row = log.start("p", "3", "sampling")
        assert log.earlier("3", "abc") == []
        row.signature = "abc"
        assert log.earlier("3", "abc") == [row]
        assert log.earlier("3", "other") == []
        assert log.earlier("4", "abc") == []

    def test_counts_from_several_threads_are_complete(self) -> None:
        counts = AttentionCounts()
        threads = [
            threading.Thread(target=lambda: [counts.add(("double", 0), "sdpa", "") for _ in range(2000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts.total == 8000


class TestPeak:
    def test_a_held_tensor_shows_in_the_resident_set(self) -> None:
        # A map of its own: the heap of a long test process may hold free pages that are resident already.
        with PeakMeter(torch.device("cpu")) as meter:
            held = torch.frombuffer(mmap.mmap(-1, 256 << 20), dtype=torch.float32)
            held.fill_(1.0)
        assert meter.peak is not None
        assert meter.peak.growth >= 250 << 20
        assert "whole process" in meter.peak.source


class TestText:
    def test_a_full_report(self) -> None:
        text = render_report(
            [NodeReport("1", "Load Checkpoint", []), NodeReport("5", "KSampler", [sampled_row()])], "cpu, 24 GB RAM"
        )
        assert "#5 KSampler" in text
        assert "sampling · 2.50 s · peak 3.00 GB (+2.00 GB over its start; sampled)" in text
        assert "attention: 4 calls" in text
        assert "sdpa: 3 calls in input:1-2,4 (auto: fused kernel, O(N) memory)" in text
        assert "host: 1 calls in middle:0 (block not selected)" in text
        assert "Not measured: #1 Load Checkpoint" in text

    def test_zero_calls_warn(self) -> None:
        row = Row("sampling", 1.0, None, AttentionCounts(), outcome="done")
        assert "0 calls reached HeadroomAttention" in render_report([NodeReport("5", "KSampler", [row])], "cpu")

    def test_cached_interrupted_and_empty(self) -> None:
        row = Row(
            "decode", 1.0, None, notices=["out of memory with 4 tiles: tried smaller ones"], outcome="interrupted"
        )
        text = render_report([NodeReport("5", "KSampler", [row], cached=True)], "cpu")
        assert "cached, earlier run" in text
        assert "decode (interrupted)" in text
        assert "! out of memory" in text
        assert "Nothing before this node was measured" in render_report([], "cpu")


class TestChart:
    def test_longer_bars_for_more_memory(self) -> None:
        small, large = (
            draw_report([NodeReport("1", "a", [Row("decode", 1.0, Peak(0, size, ""))]), big], "cpu")
            for size, big in (
                (2**28, NodeReport("2", "b", [sampled_row()])),
                (2**31, NodeReport("2", "b", [sampled_row()])),
            )
        )
        growth = np.array((0x4E, 0xA1, 0xFF))
        blue = [int((np.asarray(image) == growth).all(-1).sum()) for image in (small, large)]
        assert blue[1] > blue[0] > 0

    def test_without_measurements(self) -> None:
        assert draw_report([], "cpu").size[0] > 0


class TestWork:
    """What the work took beyond the weights, beside what was predicted."""

    def line(self, row: Row) -> str:
        text = render_report([NodeReport("3", "KSampler", [row])], "a machine")
        return next(line.strip() for line in text.splitlines() if "beyond the weights" in line)

    def row(self, source: str = "the whole process, sampled", **changes: object) -> Row:
        return Row("decode", 1.0, Peak(0, 2**30, source), outcome="done", live=100 * 2**20, **changes)  # type: ignore[arg-type]

    def test_measured_alone(self) -> None:
        assert self.line(self.row()) == "beyond the weights 100 MB"

    def test_tensors_on_a_cpu_and_all_that_is_allocated_on_cuda(self) -> None:
        predicted = Prediction(0, activations=150 * 2**20, live=101 * 2**20)
        assert self.line(self.row(predicted=predicted)).endswith("predicted 101 MB, 1.0% more")
        on_cuda = self.row("allocated on a card", predicted=predicted)
        assert self.line(on_cuda).endswith("predicted 150 MB, 50.0% more")

    def test_no_negative_number_and_no_nothing(self) -> None:
        for live, said in ((100, "the same"), (95, "5.0% less")):
            predicted = Prediction(0, activations=0, live=live * 2**20 - 1)
            assert self.line(self.row(predicted=predicted)).endswith(f"predicted {live} MB, {said}")

    def test_a_plan_is_a_bound(self) -> None:
        planned = Prediction(0, activations=130 * 2**20, live=130 * 2**20, bound=True)
        assert self.line(self.row(predicted=planned)).endswith("planned 130 MB at most")
        assert self.line(self.row("allocated on a card", predicted=planned)).endswith("planned 130 MB, 30.0% more")


def test_weights_that_dynamic_vram_keeps_are_told_beside_the_peak() -> None:
    peak = Peak(0, 3 * 2**20, "allocated on a card")
    row = Row("sampling", 1.0, peak, outcome="done", live=2**20, paged=4 * 2**30)
    text = render_report([NodeReport("5", "KSampler", [row])], "")
    assert "beside that peak dynamic VRAM kept 4.00 GB of its weights on the device" in text
    assert "copies" not in text


def test_the_history_of_the_allocator() -> None:
    before = {"num_alloc_retries": 1, "num_ooms": 0}
    after = before | {"reserved_bytes.all.peak": 900 * 2**20, "allocated_bytes.all.peak": 700 * 2**20}
    assert allocator_history(before, after) == "reserved 900 MB at most, 200 MB more than was asked for"
    worse = after | {"num_alloc_retries": 3, "num_ooms": 1}
    assert allocator_history(before, worse).endswith("freed its cache 2 times to go on, out of memory 1 times")
    assert allocator_history({}, {}) == "reserved 0 MB at most, 0 MB more than was asked for"
