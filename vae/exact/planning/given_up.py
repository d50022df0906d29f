"""Maps that a schedule gives up: recomputed by every pass that reads them, or parked in host memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from ..operations.graph import Node
from .choice import Choice
from .planner import Planner
from .schedule import Schedule

RECOMPUTED, PARKED = "recomputed", "parked"
Sacrifice = tuple[str, Node]  # which of the two, and the map
SHARE = 0.5  # of what is to be saved that several maps are given up for at once: what is behind is looked at anew
DEARER = 1.5  # than the sum of what each takes by itself they may be together: maps of which one is made of another


def given_up(planner: Planner, schedule: Schedule, full: float = 1.0) -> Iterator[Sacrifice]:
    """Maps that are there in the fullest pass, or in all that are nearly as full, with what may become of each.

    Args:
        full: share of the fullest pass's bytes from which on a pass counts as full too.
    """
    choice, most = schedule.choice, full * schedule.peak
    alive = {
        node: None for index, peak in enumerate(schedule.peaks) if peak >= most for node in _stored_at(schedule, index)
    }
    for node in alive:
        if node in planner.analysis.storable:
            yield RECOMPUTED, node
        if planner.figures.link and not choice.outside and node not in choice.parked:
            yield PARKED, node


def without(choice: Choice, way: str, nodes: Sequence[Node]) -> Choice:
    """A choice that gives up these maps as well."""
    if way == PARKED:
        return replace(choice, parked=choice.parked.union(nodes))
    return replace(choice, recomputed=choice.recomputed.union(nodes), parked=choice.parked.difference(nodes))


def exchanged(
    planner: Planner,
    schedule: Schedule,
    budget: float,
    plan: Callable[[Choice], Schedule],
    alike: bool,
    several: bool = False,
) -> Schedule | None:
    """The schedule with the map given up that saves most bytes of the fullest pass for its time; None if none saves.

    Args:
        plan: makes a schedule of a choice.
        alike: maps that are alike, as those of a video's frames are, go together: all of them, or the first so many
            that the rest fits. To try each of them after each would take the square of their number.
        several: as long as much is to be saved, the next best go with it.
    """
    groups: dict[Hashable, list[Sacrifice]] = {}
    for way, node in given_up(planner, schedule):
        groups.setdefault(_kind(planner, way, node) if alike else (way, node), []).append((way, node))
    tries = [(plan(without(schedule.choice, *_first(group, 1))), group) for group in groups.values()]
    ranked = _ranked(schedule, tries)
    if not ranked:
        return None
    best, group = ranked[0]
    if best.peak <= budget:
        return best
    if len(group) > 1:
        return _of_group(schedule, best, group, budget, plan)
    return _with_the_next(schedule, ranked, budget, plan) if several else best


def _with_the_next(
    schedule: Schedule,
    ranked: Sequence[tuple[Schedule, Sequence[Sacrifice]]],
    budget: float,
    plan: Callable[[Choice], Schedule],
) -> Schedule:
    """The schedule with as many of the best given up at once as save :data:`SHARE` of what is to be saved.

    Args:
        ranked: with one of them given up, each with the map; the best first.
    """
    fullest, best = _fullest(schedule), ranked[0][0]
    goal = SHARE * (schedule.peak - budget)
    some: dict[Node, tuple[str, Schedule]] = {}
    for one, group in ranked:
        way, node = group[0]
        if goal > 0 and node not in some:
            some[node] = way, one
            goal -= schedule.peaks[fullest] - one.peaks[fullest]
    while len(some) > 1:
        choice = schedule.choice
        for node, (way, _) in some.items():
            choice = without(choice, way, [node])
        found, alone = plan(choice), sum(one.seconds - schedule.seconds for _, one in some.values())
        longer = found.seconds - schedule.seconds
        if found.peaks[fullest] < best.peaks[fullest] and longer <= DEARER * max(0.0, alone) + _price(schedule):
            return found
        some = dict(list(some.items())[: len(some) // 2])
    return best


def _of_group(
    schedule: Schedule, best: Schedule, group: Sequence[Sacrifice], budget: float, plan: Callable[[Choice], Schedule]
) -> Schedule:
    """The schedule with the fewest of a group's maps given up that fits, or with all of them.

    Args:
        best: with the first of them, which does not fit.
    """
    fullest, few, enough = _fullest(schedule), 1, len(group)
    found = plan(without(schedule.choice, *_first(group, enough)))
    if found.peaks[fullest] >= best.peaks[fullest]:
        return best
    while found.peak <= budget and enough - few > 1:
        middle = (few + enough) // 2
        fewer = plan(without(schedule.choice, *_first(group, middle)))
        if fewer.peak <= budget:
            found, enough = fewer, middle
        else:
            few = middle
    return found


def _kind(planner: Planner, way: str, node: Node) -> Hashable:
    """Equal for maps that are computed and read alike."""
    first = planner.analysis.first
    readers = tuple(sorted(first[user] for user in planner.analysis.consumers.get(node, ())))
    return way, type(node.op), node.shape, node.dtype, node.rows, first[node], readers


def _first(group: Sequence[Sacrifice], count: int) -> tuple[str, list[Node]]:
    return group[0][0], [node for _, node in group[:count]]


def _fullest(schedule: Schedule) -> int:
    return max(range(len(schedule.peaks)), key=lambda index: schedule.peaks[index])


def _ranked(
    schedule: Schedule, tries: Sequence[tuple[Schedule, list[Sacrifice]]]
) -> list[tuple[Schedule, list[Sacrifice]]]:
    """The tries that save bytes of the fullest pass, those at the least time a byte first."""
    fullest = _fullest(schedule)
    saved = schedule.peaks[fullest]

    def cost(found: tuple[Schedule, list[Sacrifice]]) -> float:
        one = found[0]
        return (max(0.0, one.seconds - schedule.seconds) + _price(schedule)) / (saved - one.peaks[fullest])

    return sorted((found for found in tries if found[0].peaks[fullest] < saved), key=cost)


def _price(schedule: Schedule) -> float:
    """Seconds that are added to each, so that of those that cost no time the one that saves most wins."""
    return 1e-6 * schedule.seconds


def _stored_at(schedule: Schedule, index: int) -> list[Node]:
    """Stored maps that are there while a pass runs."""
    born: list[Node] = []
    for at, one in enumerate(schedule.passes[: index + 1]):
        born += one.stored
        if at < index:
            born = [node for node in born if node not in one.last_reads]
    return born
