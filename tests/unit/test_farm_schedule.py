"""Which prompt a worker gets, and the same policy at a size that no desk has."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headroom.farm.policy import Schedule
from headroom.farm.simulate import bound, simulate


def schedule(*workers: str) -> Schedule:
    made = Schedule()
    for worker in workers:
        made.add_worker(worker)
    return made


def test_what_fits_few_workers_goes_first() -> None:
    """The large card does not begin with what a small one could do as well."""
    farm = schedule("small", "large")
    farm.offer("anywhere", (), {"small": 5.0, "large": 5.0})
    farm.offer("large only", (), {"large": 1.0})
    for number in range(3):
        farm.add("anywhere", f"a{number}")
        farm.add("large only", f"l{number}")
    assert dict(farm.assign(0.0)) == {"small": "a0", "large": "l0"}


def test_models_that_are_loaded_stay() -> None:
    farm = schedule("one")
    farm.offer("flux", {"flux.safetensors"}, {"one": 1.0})
    farm.offer("sdxl", {"sdxl.safetensors"}, {"one": 1.0})
    for number in range(4):
        farm.add("flux", f"f{number}")
        farm.add("sdxl", f"s{number}")
    order = []
    for now in range(8):
        ((_, job),) = farm.assign(float(now))
        order.append(job)
        farm.ended("one")
    assert sum(a[0] != b[0] for a, b in pairwise(order)) == 1


def test_a_job_longer_than_everybodys_share_begins_at_once() -> None:
    farm = schedule("one", "two")
    farm.offer("long", {"a"}, {"one": 50.0, "two": 50.0})
    farm.offer("short", {"b"}, {"one": 1.0, "two": 1.0})
    for number in range(10):
        farm.add("short", f"s{number}")
    farm.add("long", "l")
    assert "l" in dict(farm.assign(0.0)).values()


def test_the_fast_one_comes_first() -> None:
    """A prompt is offered to the cheapest by predicted time."""
    farm = schedule("slow", "fast")
    farm.offer("kind", (), {"slow": 30.0, "fast": 3.0})
    farm.add("kind", "only")
    assert farm.assign(0.0) == [("fast", "only")]


def test_the_last_jobs_wait_for_the_one_that_has_them_done_sooner() -> None:
    """Ten on the fast one take as long as one on the slow one: of twelve it gets one, of two none."""
    for count, slow in ((12, 1), (2, 0)):
        farm = schedule("slow", "fast")
        farm.offer("kind", (), {"slow": 30.0, "fast": 3.0})
        for number in range(count):
            farm.add("kind", f"j{number}")
        done = {"slow": 0, "fast": 0}
        for tenth in range(1000):
            now = tenth / 10
            for worker, seat in farm.seats.items():
                if seat.job is not None and seat.free_at <= now:
                    farm.ended(worker)
                    done[worker] += 1
            farm.assign(now)
        assert done == {"slow": slow, "fast": count - slow}


def test_it_does_not_wait_for_ever() -> None:
    """The fast one is later than was expected: the slow one takes what it left to it."""
    farm = schedule("slow", "fast")
    farm.offer("kind", (), {"slow": 30.0, "fast": 3.0})
    farm.add("kind", "first")
    farm.assign(0.0)
    farm.add("kind", "second")
    assert farm.assign(0.5) == []
    assert farm.assign(40.0) == []  # as far as is known it would still be sooner
    farm.lose("fast")
    assert dict(farm.assign(41.0)) == {"slow": "first"}


def test_what_was_measured_counts_before_what_was_predicted() -> None:
    farm = schedule("one", "two")
    farm.offer("kind", (), {"one": 1.0, "two": 2.0})
    farm.offer("other", (), {"one": 10.0, "two": None})
    farm.add("kind", "job")
    farm.assign(0.0)
    farm.ended("one", 4.0)
    assert farm.seconds("kind", "one") == 4.0
    assert farm.seconds("other", "one") == 40.0  # it is four times slower than predicted
    assert farm.seconds("kind", "two") == 2.0
    assert farm.seconds("other", "two") == 1.0  # nothing is known


def test_the_job_of_a_lost_worker_is_the_next() -> None:
    farm = schedule("one", "two")
    farm.offer("kind", (), {"one": 1.0, "two": 1.0})
    for number in range(4):
        farm.add("kind", f"j{number}")
    given_out = dict(farm.assign(0.0))
    assert farm.lose("two") == given_out["two"]
    assert farm.assign(0.5) == []
    farm.ended("one")
    assert farm.assign(1.0) == [("one", given_out["two"])]


def test_what_fits_nobody_is_named() -> None:
    farm = schedule("one")
    farm.offer("kind", (), {"one": 1.0})
    farm.add("kind", "job")
    assert farm.stranded() == []
    farm.retract("kind", "one")
    assert farm.stranded() == [("kind", "job")]
    farm.drop("kind", "job")
    assert farm.stranded() == []
    assert farm.waiting == 0


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_each_job_once_and_only_where_it_fits(data: st.DataObject) -> None:
    """Whatever ends, breaks and comes back, in any order."""
    names = [f"w{number}" for number in range(data.draw(st.integers(1, 4)))]
    farm = schedule(*names)
    fits = {}
    for number in range(data.draw(st.integers(1, 5))):
        where = data.draw(st.sets(st.sampled_from(names), min_size=1))
        fits[f"k{number}"] = {name: data.draw(st.one_of(st.none(), st.floats(0.1, 50))) for name in sorted(where)}
        farm.offer(f"k{number}", {f"m{number % 2}"}, fits[f"k{number}"])
    kind_of = {f"j{number}": data.draw(st.sampled_from(list(fits))) for number in range(data.draw(st.integers(1, 20)))}
    for job, kind in kind_of.items():
        farm.add(kind, job)
    done: list[str] = []
    running: dict[str, str] = {}
    gone: set[str] = set()
    for now in range(400):
        for worker, job in farm.assign(float(now)):
            assert worker in fits[kind_of[job]]
            assert worker not in running
            assert worker not in gone
            running[worker] = job
        if len(done) == len(kind_of):
            break
        what = data.draw(st.sampled_from(["end", "lose", "return"])) if now < 40 else "end"
        if now >= 40:
            for worker in gone:
                farm.add_worker(worker)
            gone = set()
        if what == "return" and gone:
            farm.add_worker(name := sorted(gone)[0])
            gone.discard(name)
        elif running:
            worker = sorted(running)[now % len(running)]
            job = running.pop(worker)
            if what == "lose":
                assert farm.lose(worker) == job
                gone.add(worker)
            else:
                farm.ended(worker, 1.0)
                done.append(job)
    assert sorted(done) == sorted(kind_of)
    assert farm.waiting == 0


@pytest.mark.parametrize("hours", [math.inf, 5.0])
def test_a_hundred_workers(hours: float) -> None:
    """Near the shortest that can be, and nothing is lost where workers are."""
    found = simulate(100, 10_000, hours_between_failures=hours, seed=3)
    assert found.done == 10_000
    assert (found.lost > 0) == math.isfinite(hours)
    assert 0.95 < found.efficiency <= 1.0
    assert found.queue[-1] == 0
    assert list(found.queue) == sorted(found.queue, reverse=True)
    assert found.loads < 2_500  # of 10,000 if models were loaded for each


def test_no_schedule_is_shorter_than_the_bound() -> None:
    """Two cards: what needs the large one cannot be shared."""
    assert bound([(10.0, 8)] * 4, [(24, 1.0), (6, 1.0)]) == 40.0
    assert bound([(10.0, 6)] * 4, [(24, 1.0), (6, 1.0)]) == 20.0
    assert bound([(10.0, 6)] * 4, [(24, 1.0), (6, 3.0)]) == 30.0
    assert bound([(10.0, 6)], [(24, 1.0), (6, 1.0)]) == 10.0
