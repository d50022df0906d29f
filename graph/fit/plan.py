"""Where Make It Fit goes in a workflow: before each sampler, with the VAEs behind it; needs no host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import kinds
from ..kinds import FIT, GUIDED_SAMPLER, SAMPLERS, VAE, VAE_LOADERS
from ..prompt import Output, in_order, reached
from ..settings import VERIFY, FitSettings
from .cfg_source import GRAPH, SOURCE
from .told import Told, added, left_alone

FIT_MODEL, FIT_VAE = 0, 1  # outputs of HeadroomFit
VAE_NAMES = ("vae", "optional_vae", "opt_vae", "vae_opt")
VAE_WIDGETS: dict[str, Any] = {
    "method": "auto", "vram_budget_gb": 0.0, "tile_size": 0, "overlap": 64, "feather": "cosine", "temporal_size": 0,
    "temporal_overlap": 16, "batch_slice": 0, "store": "same", "frames_on_disk": False, "workers": "",
}  # fmt: skip


@dataclass
class Seen:
    """A node that runs.

    Attributes:
        kind: its class.
        links: where its inputs are connected.
        origins: what is computed there: behind reroutes and bypassed nodes. An input that gets nothing has none.
        cfg: value of its widget of that name, None if it is not known.
        vaes: the inputs whose VAE is run in there, of a subgraph; None: as the names say.
        title: of a subgraph, whose class is no word.
    """

    kind: str
    links: dict[str, Output] = field(default_factory=dict)
    origins: dict[str, Output] = field(default_factory=dict)
    cfg: float | None = None
    vaes: tuple[str, ...] | None = None
    title: str = ""


@dataclass
class Added:
    """A node to add.

    Attributes:
        number: its id.
        kind: HeadroomFit, HeadroomVAE, HeadroomCastCLIP or HeadroomTraining.
        beside: the node it is for.
        links: its connected inputs.
        widgets: the values of its widgets, in the node's order.
        line: what was added for which node.
    """

    number: str
    kind: str
    beside: str
    links: dict[str, Output]
    widgets: dict[str, Any]
    line: Told


@dataclass
class FitPlan:
    """What to change in a graph.

    Attributes:
        added: nodes to add.
        moved: inputs (node, name) to connect to an output.
        notes: what is left alone, and why.
        wanted: outputs of what is around the graph that a VAE or a text encoder in it comes from, unchanged.
    """

    added: list[Added] = field(default_factory=list)
    moved: dict[tuple[str, str], Output] = field(default_factory=dict)
    notes: list[Told] = field(default_factory=list)
    wanted: set[int] = field(default_factory=set)


def plan_fit(
    seen: Mapping[str, Seen], settings: FitSettings, first_number: int, outside: str = "", where: str = ""
) -> FitPlan:
    """Plans one graph.

    Args:
        seen: its nodes by id.
        settings: widgets of the nodes to add.
        first_number: ids from here on are free.
        outside: the id that stands for what is around a subgraph; what comes from there is wrapped there.
        where: the name of the subgraph that it is; empty: it is none.

    Raises:
        ValueError: the graph has a circle.
    """
    return _Planner(seen, settings, first_number, outside, where).run()


class _Planner:
    def __init__(
        self, seen: Mapping[str, Seen], settings: FitSettings, first_number: int, outside: str, where: str
    ) -> None:
        self.seen, self.settings = seen, settings
        self.free = first_number
        self.outside = outside
        self.where = where
        self.plan = FitPlan()
        self.order = self._by_depth()
        samplers = [number for number in self.order if seen[number].kind in SAMPLERS]
        self.readers = self._readers()
        # By sampler: all that it depends on, and all that depends on it.
        self.before = {number: set(reached([number], self._parents)) - {number} for number in samplers}
        self.behind = {number: set(reached([number], lambda one: self.readers[one])) - {number} for number in samplers}
        self.fits: dict[str, tuple[str, Output]] = {}  # by sampler: its HeadroomFit, and the VAE that this is given
        self.wrappers: dict[Output, str] = {}
        self.users = list(self._users())

    def run(self) -> FitPlan:
        for number in self.before:
            self._fit(number)
        for number, name in self.users:
            self._move_vae(number, name)
        return self.plan

    def _parents(self, number: str) -> Iterable[str]:
        """The nodes that a node reads, but for those that do not run."""
        return dict.fromkeys(origin for origin, _ in self.seen[number].origins.values() if origin in self.seen)

    def _readers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {number: [] for number in self.seen}
        for number in self.seen:
            for parent in self._parents(number):
                found[parent].append(number)
        return found

    def _sampled_on(self, number: str) -> Iterable[str]:
        """The nodes that read a node, but for samplers that it guides: those sample another latent."""
        read = self.readers[number]
        return (one for one in read if one not in self.before or self._read_by(one, "latent_image") == number)

    def _by_depth(self) -> list[str]:
        """The nodes by how many they wait for one after another: what is near comes before what is far."""
        depths: dict[str, int] = {}
        for number in in_order(self.seen, self._parents, {one for one, node in self.seen.items() if node.title}):
            depths[number] = 1 + max((depths.get(parent, 0) for parent in self._parents(number)), default=0)
        return sorted(self.seen, key=depths.__getitem__)

    # ---------------------------------------------------------------------------------------------------- the samplers

    def _fit(self, sampler: str) -> None:
        """Adds a HeadroomFit before a sampler, or notes why not."""
        earlier = self._earlier_fit(sampler)
        if earlier is not None:
            vae = self.seen[earlier].origins.get("vae")
            if vae is not None:
                self.fits[sampler] = earlier, self._unwrapped(vae)
            return
        guided = self._guided(sampler)
        if guided is None:
            return self._leave(sampler, "guider", "its guider is neither BasicGuider nor CFGGuider")
        if guided in {number for number, _ in self.plan.moved}:
            why = f"its guider {guided} is fitted for an earlier sampler: give it one of its own"
            return self._leave(sampler, "guider_shared", why, guider=guided)
        for number, name in ((guided, "model"), (sampler, "latent_image")):
            if name not in self.seen[number].origins:
                return self._leave(sampler, "not_connected", f"nothing is connected to {name}", input=name)
        vae = self._vae_for(sampler)
        if vae is None:
            if self.where:
                return self._leave(sampler, "no_vae_in_it", "there is no VAE in it: connect one")
            return self._leave(sampler, "no_vae", "there is no VAE")
        links = self._links(sampler, guided) | {"vae": vae}
        cfg = self.seen[guided].cfg if kinds.GUIDERS.get(self.seen[guided].kind, kinds.Conditions()).guided else 1.0
        # The number is for a run in which nobody follows the graph.
        widgets = {"cfg": 1.0 if cfg is None else cfg, **vars(self.settings), SOURCE: GRAPH, "verify": VERIFY[0]}
        number = self._add(FIT, sampler, links, widgets)
        self.fits[sampler] = number, self._unwrapped(self._origin_of(vae))
        self.plan.moved[guided, "model"] = number, FIT_MODEL
        return None

    def _leave(self, sampler: str, code: str, why: str, **values: str) -> None:
        kind = self.seen[sampler].kind
        self.plan.notes.append(left_alone(code, why, node=sampler, kind=kind, subgraph=self.where, **values))

    def _guided(self, sampler: str) -> str | None:
        """The node with the sampler's model: itself or its guider."""
        node = self.seen[sampler]
        if node.kind != GUIDED_SAMPLER:
            return sampler
        guider = self._read_by(sampler, "guider")
        return guider if guider is not None and self.seen[guider].kind in kinds.GUIDERS else None

    def _earlier_fit(self, sampler: str) -> str | None:
        """The HeadroomFit that the sampler's model already comes through."""
        number = self._guided(sampler)
        while number is not None:
            if self.seen[number].kind == FIT:
                return number
            number = self._read_by(number, "model")
        return None

    def _read_by(self, number: str, name: str) -> str | None:
        """The node that an input of a node reads, if it reads one that runs."""
        origin = self.seen[number].origins.get(name)
        return origin[0] if origin is not None and origin[0] in self.seen else None

    def _links(self, sampler: str, guided: str) -> dict[str, Output]:
        """What the HeadroomFit of a sampler is connected to, but for the VAE."""
        node = self.seen[guided]
        asked = kinds.GUIDERS.get(node.kind, kinds.Conditions())
        names = {"model": "model", "positive": asked.positive, "negative": asked.negative, "cfg": "cfg"}
        links = {ours: node.links[name] for ours, name in names.items() if name in node.origins}
        return links | {"samples": self.seen[sampler].links["latent_image"]}

    # -------------------------------------------------------------------------------------------------------- the VAEs

    def _users(self) -> Iterator[tuple[str, str]]:
        """Inputs that take a VAE that makes pictures: by their names, or as others are connected to the same."""
        taken: dict[Output, set[bool]] = {}
        for node in self.seen.values():
            pictures = not any(word in node.kind for word in kinds.NO_PICTURES)
            for name in VAE_NAMES if node.vaes is None else node.vaes:
                if name in node.origins:
                    taken.setdefault(node.origins[name], set()).add(pictures)
        for number in self.order:
            node = self.seen[number]
            for name, origin in node.origins.items():
                if taken.get(origin) == {True} and (node.vaes is None or name in node.vaes):
                    yield number, name

    def _vae_for(self, sampler: str) -> Output | None:
        """The VAE of the first node that its latent comes to, else of one before the sampler, else any."""
        others = self.behind[sampler].difference(reached([sampler], self._sampled_on))
        users = [user for user in self.users if self.seen[user[0]].kind != FIT and user[0] not in others]
        behind = [user for user in users if user[0] in self.behind[sampler]]
        before = [user for user in users if user[0] in self.before[sampler]]
        for number, name in (*behind, *before, *users):
            origin = self.seen[number].origins[name]
            if origin[0] in self.behind[sampler] or origin[0] == sampler:
                continue
            maker = self.seen.get(origin[0])
            if maker is not None and maker.kind == FIT and "vae" in maker.origins:  # another sampler's
                return maker.links["vae"]
            return self.seen[number].links[name]
        loaders = [number for number in self.order if self.seen[number].kind in VAE_LOADERS]
        near = [number for number in loaders if number in self.before[sampler]]
        return next(((number, VAE_LOADERS[self.seen[number].kind]) for number in (*near, *loaders)), None)

    def _origin_of(self, link: Output) -> Output:
        """What is computed at a link that some input has."""
        for node in self.seen.values():
            for name, other in node.links.items():
                if other == link and name in node.origins:
                    return node.origins[name]
        return link

    def _unwrapped(self, vae: Output) -> Output:
        """The VAE as it was loaded."""
        maker = self.seen.get(vae[0])
        while maker is not None and maker.kind in (FIT, VAE) and "vae" in maker.origins:
            vae = maker.origins["vae"]
            maker = self.seen.get(vae[0])
        return vae

    def _move_vae(self, number: str, name: str) -> None:
        """Connects an input to the low-memory VAE that is due there."""
        node = self.seen[number]
        origin = node.origins[name]
        maker = self.seen.get(origin[0])
        if node.kind in kinds.NO_CODING or (maker is not None and maker.kind in (FIT, VAE)):
            return
        for sampler in reversed(self.order):
            fit = self.fits.get(sampler)
            if fit and number in self.behind[sampler] and number not in self.before[sampler] and fit[1] == origin:
                self.plan.moved[number, name] = fit[0], FIT_VAE
                return
        if origin[0] == self.outside:
            self.plan.wanted.add(origin[1])
        elif node.kind not in kinds.LOW_MEMORY:
            self.plan.moved[number, name] = self._wrapper(number, name), 0

    def _wrapper(self, number: str, name: str) -> str:
        """The HeadroomVAE on the VAE of an input: one that is there, or a new one."""
        origin = self.seen[number].origins[name]
        for other, node in self.seen.items():
            if node.kind == VAE and node.origins.get("vae") == origin:
                return other
        if origin not in self.wrappers:
            links = {"vae": self.seen[number].links[name]}
            self.wrappers[origin] = self._add(VAE, number, links, dict(VAE_WIDGETS))
        return self.wrappers[origin]

    def _add(self, kind: str, beside: str, links: dict[str, Output], widgets: dict[str, Any]) -> str:
        number, self.free = str(self.free), self.free + 1
        other = self.seen[beside].title or self.seen[beside].kind
        line = added(node=number, kind=kind, other=beside, other_kind=other, subgraph=self.where)
        self.plan.added.append(Added(number, kind, beside, links, widgets, line))
        return number
