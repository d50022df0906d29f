"""Peak of live bytes in torch's CPU allocator, from the profiler's memory events."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes alive at once that ``work`` allocated, its result included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = work()
    del result
    events = recorded.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = highest = 0
    for _, change in changes:
        live += change
        highest = max(highest, live)
    return highest
