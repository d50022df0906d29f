"""How many steps a sampler takes, and how often it calls the model in each. No memory depends on it, but time does."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.formats import as_number
from .calling import Outputs
from .findings import NOTHING, Findings, Follow
from .inputs import Inputs

# Calls of the model in a step, of samplers that make more than one; the last step makes one (k_diffusion/sampling.py).
CALLS = {
    "heun": 2, "heunpp2": 3, "exp_heun_2_x0": 2, "exp_heun_2_x0_sde": 2, "dpm_2": 2, "dpm_2_ancestral": 2,
    "dpmpp_2s_ancestral": 2, "dpmpp_2s_ancestral_cfg_pp": 2, "dpmpp_sde": 2, "dpmpp_sde_gpu": 2, "seeds_2": 2,
    "seeds_3": 3, "sa_solver_pece": 2,
}  # fmt: skip
UNKNOWN = "dpm_adaptive"  # it takes as many as it finds that it needs
# Nodes that make a sampler of their own, by the sampler's name.
SAMPLER_NODES = {
    "SamplerEulerAncestral": "euler_ancestral", "SamplerEulerAncestralCFGPP": "euler_ancestral_cfg_pp",
    "SamplerLCM": "lcm", "SamplerLMS": "lms", "SamplerDPMPP_3M_SDE": "dpmpp_3m_sde",
    "SamplerDPMPP_2M_SDE": "dpmpp_2m_sde", "SamplerDPMPP_SDE": "dpmpp_sde", "SamplerER_SDE": "er_sde",
    "SamplerDPMPP_2S_Ancestral": "dpmpp_2s_ancestral", "SamplerSASolver": "sa_solver", "SamplerSEEDS2": "seeds_2",
    "SamplerDPMAdaptative": UNKNOWN,
}  # fmt: skip
SCHEDULERS = (
    "BasicScheduler", "KarrasScheduler", "ExponentialScheduler", "PolyexponentialScheduler", "LaplaceScheduler",
    "SDTurboScheduler", "BetaSamplingScheduler", "VPScheduler", "LTXVScheduler", "Flux2Scheduler", "Ideogram4Scheduler",
    "AlignYourStepsScheduler", "GITSScheduler", "OptimalStepsScheduler",
)  # fmt: skip
# Of those, which make fewer noise levels where denoise is below 1; the others leave out the first of more.
BY_SHARE, TURBO = ("AlignYourStepsScheduler", "GITSScheduler", "OptimalStepsScheduler"), "SDTurboScheduler"
MOST_TURBO = 10  # steps of SD Turbo


@dataclass(frozen=True)
class Sigmas:
    """Noise levels, of which only the number is known.

    Attributes:
        steps: from each to the next.
    """

    steps: int


@dataclass(frozen=True)
class NamedSampler:
    """A SAMPLER by the host's name for it."""

    name: str


def select(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A sampler that a node names, or is."""
    name = SAMPLER_NODES.get(kind) or str(inputs.get("sampler_name", ""))
    return NamedSampler(name), *NOTHING


def schedule(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """As many noise levels as a scheduler's steps, or a share of them."""
    steps, share = as_number(inputs.get("steps")), as_number(inputs.get("denoise", 1.0))
    if steps is not None and kind in (*BY_SHARE, TURBO):
        share = 0.0 if share is None else share  # nobody can say
        steps = min(steps, round(steps * share) if kind in BY_SHARE else int(MOST_TURBO * share))
    return _sigmas(steps), *NOTHING


def write_sigmas(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Noise levels that somebody has written down."""
    words = str(inputs.get("sigmas", "")).replace(",", " ").split()
    return _sigmas(sum(map(_is_number, words)) - 1), *NOTHING


def split(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Noise levels in two: those up to a step, and those from it on."""
    given = inputs.get("sigmas")
    at = as_number(inputs.get("step"))
    if kind == "SplitSigmasDenoise" and isinstance(given, Sigmas):
        share = as_number(inputs.get("denoise"))
        at = None if share is None else given.steps - round(given.steps * share)
    if not isinstance(given, Sigmas) or at is None:
        return NOTHING
    high = min(given.steps, max(0, int(at)))
    return Sigmas(high), Sigmas(given.steps - high), *NOTHING


def pass_on(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """As many noise levels as a node gets."""
    return inputs.get("sigmas"), *NOTHING


def calls_of(inputs: Inputs) -> float:
    """How often the sampler of a node with these inputs calls its model; 0 where nobody can say."""
    sigmas, sampler = inputs.get("sigmas"), inputs.get("sampler")
    name = sampler.name if isinstance(sampler, NamedSampler) else str(inputs.get("sampler_name", ""))
    steps = sigmas.steps if isinstance(sigmas, Sigmas) else _own_steps(inputs)
    if not steps or name == UNKNOWN:
        return 0.0
    each = CALLS.get(name, 1)
    return float(steps * each - (each - 1))


def _own_steps(inputs: Inputs) -> int:
    """Of a node that has the number itself, of which it may take a part."""
    steps = as_number(inputs.get("steps"))
    if steps is None:
        return 0
    first, last = as_number(inputs.get("start_at_step")) or 0, as_number(inputs.get("end_at_step"))
    return max(0, int(min(steps, steps if last is None else last) - first))


def _sigmas(steps: float | None) -> Sigmas | None:
    return Sigmas(int(steps)) if steps is not None and steps > 0 else None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


OF_STEPS: dict[str, Follow] = {
    "KSamplerSelect": select,
    **dict.fromkeys(SAMPLER_NODES, select),
    **dict.fromkeys(SCHEDULERS, schedule),
    "ManualSigmas": write_sigmas,
    "SplitSigmas": split,
    "SplitSigmasDenoise": split,
    **dict.fromkeys(("FlipSigmas", "SetFirstSigma"), pass_on),
}
