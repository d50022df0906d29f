"""What is sampled behind a Make It Fit, read off a prompt."""

from typing import Any

from headroom.graph.fit.behind import SUM, latents_alone, sampled_behind, with_sums

Prompt = dict[str, dict[str, Any]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def sampler(model: list[Any], latent: list[Any], **more: Any) -> dict[str, Any]:
    return node("KSampler", model=model, latent_image=latent, seed=1, positive=["2", 0], **more)


def upscaled() -> Prompt:
    """A picture that is made larger, as a latent and then in pixels, and sampled again each time."""
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="a"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="x"),
        "3": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "4": node("HeadroomFit", model=["1", 0], vae=["1", 2], samples=["3", 0], cfg=1.0),
        "5": node("LoraLoaderModelOnly", model=["4", 0], lora_name="b"),
        "6": sampler(["5", 0], ["3", 0]),
        "7": node("LatentUpscaleBy", samples=["6", 0], scale_by=2.0),
        "8": sampler(["4", 0], ["7", 0]),
        "9": node("VAEDecode", samples=["8", 0], vae=["4", 1]),
        "10": node("ImageScaleBy", image=["9", 0], scale_by=1.5),
        "11": node("VAEEncode", pixels=["10", 0], vae=["4", 1]),
        "12": node("BasicGuider", model=["5", 0], conditioning=["2", 0]),
        "13": node("SamplerCustomAdvanced", guider=["12", 0], latent_image=["11", 0]),
    }


def test_latents_of_other_samplers() -> None:
    assert sampled_behind(upscaled(), "4") == {"13": ("11", 0), "8": ("7", 0)}


def test_a_second_model_that_goes_on_with_the_same_latent_is_no_other_size() -> None:
    prompt = upscaled()
    prompt["8"]["inputs"]["latent_image"] = ["6", 0]
    assert sampled_behind(prompt, "4") == {"13": ("11", 0)}


def test_what_another_one_plans_for_is_left_to_it() -> None:
    prompt = upscaled() | {"14": node("HeadroomFit", model=["4", 0], vae=["4", 1], samples=["7", 0], cfg=1.0)}
    prompt["8"]["inputs"]["model"] = ["14", 0]
    assert sampled_behind(prompt, "4") == {"13": ("11", 0)}
    assert sampled_behind(prompt, "14") == {}


def test_the_part_that_decides_sizes_has_no_sampler_and_no_plan_in_it() -> None:
    part = latents_alone(upscaled(), [("11", 0), ("7", 0)])
    assert set(part) == {"1", "3", "7", "9", "10", "11"}
    assert part["7"]["inputs"]["samples"] == ["3", 0]
    assert part["9"]["inputs"] == {"samples": ["7", 0], "vae": ["1", 2]}
    assert part["11"]["inputs"]["vae"] == ["1", 2]


def test_circles_and_long_chains() -> None:
    prompt = {"1": sampler(["9", 0], ["2", 0]), "2": sampler(["9", 0], ["1", 0])}
    prompt["9"] = node("HeadroomFit", model=["9", 0], vae=["9", 1], samples=["1", 0])
    assert with_sums(prompt)
    assert latents_alone(prompt, [("1", 0), ("9", 0)])
    chain = upscaled() | {str(number): sampler(["4", 0], [str(number - 1), 0]) for number in range(14, 20_000)}
    assert set(sampled_behind(chain, "4").values()) == {("11", 0), ("7", 0)}


def test_the_sum_changes_with_what_decides_a_size() -> None:
    def sum_of(prompt: Prompt) -> Any:
        return with_sums(prompt)["4"]["inputs"][SUM]

    first = sum_of(upscaled())
    seeded, scaled, written = upscaled(), upscaled(), upscaled()
    seeded["8"]["inputs"]["seed"], written["2"]["inputs"]["text"] = 2, "y"
    scaled["10"]["inputs"]["scale_by"] = 2.0
    assert sum_of(seeded) == first
    assert sum_of(written) == first
    assert sum_of(scaled) != first


def test_a_prompt_with_one_size_stays_as_it_is() -> None:
    prompt = {number: upscaled()[number] for number in ("1", "2", "3", "4", "5", "6")}
    assert with_sums(prompt) is prompt
