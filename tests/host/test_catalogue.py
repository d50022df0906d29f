"""Public files that are not on this machine: their tensors, their sizes, and what is predicted with them."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import comfy.model_detection
import folder_paths
import pytest
import torch

from headroom.host.catalogue.entries import PublicFile, bytes_said, public_file, public_files
from headroom.host.catalogue.networks import NoSuchNetwork, build
from headroom.host.prediction.header_loading import public_state_dict
from headroom.host.workflow.estimate import WorkflowAnswer, estimate_workflow
from headroom.memory.prediction import fake_mode, named_card
from headroom.tools.catalogue import TEMPLATES, confirmed, totals

from ..nightly import some_of
from . import full_size
from . import public_files as written
from .conftest import ENVIRONMENT
from .test_compat import VERSION
from .workflows import node

pytestmark = pytest.mark.usefixtures("extra_nodes")

FILES = public_files()
MODELS = [name for name, file in FILES.items() if file.folder == "diffusion_models"]
MADE_WITH = (0, 30, 0)  # the host whose networks the catalogue names
since_it_was_made = pytest.mark.skipif(
    VERSION < MADE_WITH, reason="the catalogue names networks that this ComfyUI does not have yet"
)
FLUX = ("flux1-dev.safetensors", "clip_l.safetensors", "t5xxl_fp16.safetensors", "ae.safetensors")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for models with nothing in it."""
    for folder in ("checkpoints", "diffusion_models", "text_encoders", "vae"):
        (tmp_path / folder).mkdir()
        kinds = folder_paths.folder_names_and_paths[folder][1]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, ([str(tmp_path / folder)], kinds))
    folder_paths.filename_list_cache.clear()
    return tmp_path


def flux(**inputs: Any) -> dict[str, Any]:
    model, clip_l, t5, vae = FLUX
    return {
        "1": node("UNETLoader", unet_name=inputs.get("model", model), weight_dtype="default"),
        "2": node("DualCLIPLoader", clip_name1=clip_l, clip_name2=t5, type="flux", device="default"),
        "3": node("VAELoader", vae_name=vae),
        "4": node("CLIPTextEncode", clip=["2", 0], text="a lighthouse at dusk"),
        "5": node("EmptySD3LatentImage", width=512, height=512, batch_size=1),
        "6": node(
            "KSampler", model=["1", 0], positive=["4", 0], negative=["4", 0], latent_image=["5", 0], seed=1, steps=20,
            cfg=1.0, sampler_name="euler", scheduler="simple", denoise=1.0,
        ),
        "7": node("VAEDecode", samples=["6", 0], vae=["3", 0]),
        "8": node("SaveImage", images=["7", 0], filename_prefix="x"),
    }  # fmt: skip


def answer(workflow: dict[str, Any]) -> WorkflowAnswer:
    with torch.inference_mode():
        return estimate_workflow(workflow, named_card("sm86", 12.0), 0.85)


@since_it_was_made
def test_the_host_has_every_network() -> None:
    lacking = {}
    for name, file in FILES.items():
        try:
            assert file.nbytes > 0
        except NoSuchNetwork as error:
            lacking[name] = str(error)
    assert not lacking


@since_it_was_made
@pytest.mark.parametrize("name", some_of(MODELS, 3))
def test_the_host_knows_each_model_by_its_tensors(name: str) -> None:
    with fake_mode():
        tensors, metadata = public_state_dict(FILES[name])
        assert comfy.model_detection.model_config_from_unet(tensors, "", metadata=metadata) is not None


@pytest.mark.skipif(VERSION != MADE_WITH, reason="the totals are those of the templates that came with 0.30.0")
def test_an_entry_is_confirmed_if_a_published_size_or_total_is_met_and_not_otherwise() -> None:
    spec = importlib.util.find_spec(TEMPLATES)
    assert spec is not None
    assert spec.origin is not None
    found = list(totals(Path(spec.origin).parent / "templates"))
    sizes = {name: file.nbytes for name, file in FILES.items()}
    said = {name: bytes_said(file.said) for name, file in FILES.items() if file.said}
    fitted = {name for name, file in FILES.items() if file.fitted}
    assert confirmed(found, sizes, said) - fitted == {name for name, file in FILES.items() if file.confirmed}


@since_it_was_made
def test_a_file_of_several_types_is_as_large_as_is_said() -> None:
    fitted = [file for file in FILES.values() if file.fitted]
    assert fitted
    assert not [file.name for file in fitted if abs(file.nbytes / bytes_said(file.said) - 1) > 0.01 or file.confirmed]


def shapes_of(file: PublicFile) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in file.tensors().items()}


@pytest.mark.parametrize("name", ["flux1-dev.safetensors", "v1-5-pruned-emaonly-fp16.safetensors", "ae.safetensors"])
def test_it_holds_what_a_header_on_disk_holds(name: str) -> None:
    """Against the files with true headers that other tests write, which name each network themselves."""
    file = written.FILES[name]
    found = shapes_of(FILES[name])
    assert {key: shape for key, (shape, _) in found.items()} == file.entries()
    assert {dtype for _, dtype in found.values()} == {file.dtype}


def weights_of(found: WorkflowAnswer) -> int:
    return next(stage.weights for stage in found.forecast.stages if stage.work == "sampling")


def peak_of(found: WorkflowAnswer, work: str) -> int:
    return next(stage.prediction.activations for stage in found.forecast.stages if stage.work == work)


def lacking(name: str) -> None:
    raise NoSuchNetwork(f"this ComfyUI has no {name}")


class TestEstimate:
    def test_a_workflow_is_predicted_before_anything_is_downloaded(self, empty: Path) -> None:
        found = answer(flux())
        assert found.complete, found.unknown
        assert [file.name for file in found.absent] == list(FLUX)
        assert sum("from the catalogue, not from your file" in note for note in found.notes) == len(FLUX)
        assert [one["name"] for one in found.numbers["absent"]] == list(FLUX)
        assert not list(empty.rglob("*.safetensors"))

    def test_it_says_the_same_once_the_files_are_there(self, empty: Path) -> None:
        before = answer(flux()).numbers
        written.write_all(empty, FLUX)
        after = answer(flux()).numbers
        assert before.pop("absent")
        assert after.pop("absent") == []
        assert after == before

    def test_the_header_on_disk_goes_before_the_catalogue(self, empty: Path) -> None:
        """A file of the name of another model: Flux Schnell has no guidance, and is smaller."""
        whole = full_size.flux()
        guidance = {key: whole.pop(key) for key in list(whole) if key.startswith("guidance_in")}
        before = answer(flux())
        full_size.write(empty / "diffusion_models" / FLUX[0], whole, torch.bfloat16)
        after = answer(flux())
        assert FLUX[0] not in [file.name for file in after.absent]
        lacking = sum(torch.Size(shape).numel() for shape in guidance.values()) * torch.bfloat16.itemsize
        tables = 2**16  # of noise levels, which are longer for the other model
        assert lacking <= weights_of(before) - weights_of(after) < lacking + tables

    def test_a_damaged_one_is_not_replaced(self, empty: Path) -> None:
        (empty / "diffusion_models" / FLUX[0]).write_bytes(b"no header")
        found = answer(flux())
        assert not found.complete
        assert any(FLUX[0] in line for line in found.unknown)

    def test_a_model_that_comfyui_does_not_know_is_said(self, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in an older ComfyUI: the catalogue has the file, and the host no class for it."""
        path = "headroom.host.catalogue.entries.build"
        monkeypatch.setattr(path, lambda name, networks: lacking(name) if name == "flux" else build(name, networks))
        found = answer(flux())
        assert not found.complete
        assert FLUX[0] not in [file.name for file in found.absent]
        assert any(f"{FLUX[0]}: this ComfyUI has no flux" in line for line in found.unknown)

    def test_a_file_of_another_kind_stays_missing(self, empty: Path) -> None:
        found = answer(flux(model="sd_xl_base_1.0.safetensors"))
        assert not found.complete
        assert "sd_xl_base_1.0.safetensors" not in [file.name for file in found.absent]

    def test_a_file_that_nobody_knows_stays_missing(self, empty: Path) -> None:
        found = answer(flux(model="my_own_model.safetensors"))
        assert not found.complete
        assert any("my_own_model.safetensors" in line for line in found.unknown)

    def test_a_missing_picture_is_told_with_the_size_it_is_taken_to_have(self, empty: Path) -> None:
        workflow = flux()
        workflow["5"] = node("VAEEncode", pixels=["9", 0], vae=["3", 0])
        workflow["9"] = node("LoadImage", image="holiday.png")
        found = answer(workflow)
        assert found.complete, found.unknown
        assert "'holiday.png' is not there: taken to have 1024 x 1024 px" in found.notes

    def test_what_nodes_compute_and_choose_is_followed(self, empty: Path) -> None:
        """A size by a formula, a text put together, and a switch between two pictures as a reference."""
        workflow = flux()
        workflow |= {
            "9": node("PrimitiveInt", value=256),
            "10": node("ComfyMathExpression", expression="a * 2", **{"values.a": ["9", 0]}),
            "11": node("StringConcatenate", string_a="a lighthouse", string_b="at dusk", delimiter=" "),
            "12": node("LoadImage", image="holiday.png"),
            "13": node("ImageScaleToTotalPixels", image=["12", 0], upscale_method="lanczos", megapixels=0.25),
            "14": node("PrimitiveBoolean", value=True),
            "15": node("UNETLoader", unet_name="not_chosen.safetensors", weight_dtype="default"),
            "16": node("ComfySwitchNode", switch=["14", 0], on_true=["1", 0], on_false=["15", 0]),
            "17": node("VAEEncode", pixels=["13", 0], vae=["3", 0]),
            "18": node("ReferenceLatent", conditioning=["4", 0], latent=["17", 0]),
            "19": node("GetImageSize", image=["13", 0]),
        }
        workflow["5"]["inputs"] |= {"width": ["10", 1], "height": ["19", 1]}
        workflow["4"]["inputs"]["text"] = ["11", 0]
        workflow["6"]["inputs"]["model"] = ["16", 0]
        if VERSION >= (0, 27, 0):
            workflow["13"]["inputs"]["resolution_steps"] = 1
        without, plain = answer(workflow), answer(flux())
        assert without.complete, without.unknown
        assert peak_of(without, "sampling") == peak_of(plain, "sampling")
        workflow["6"]["inputs"]["positive"] = ["18", 0]
        assert 1.5 < peak_of(answer(workflow), "sampling") / peak_of(without, "sampling") < 2.2  # twice the tokens

    def test_pictures_that_a_text_or_a_latent_takes_are_encoded(self, empty: Path) -> None:
        """Qwen-Image-Edit's text encoder looks at the picture, too; and its VAE encodes it, as a stage of its own."""
        workflow = {
            "1": node("CLIPLoader", clip_name="qwen_2.5_vl_7b_fp8_scaled.safetensors", type="qwen_image"),
            "2": node("VAELoader", vae_name="qwen_image_vae.safetensors"),
            "3": node("EmptyImage", width=512, height=512, batch_size=1, color=0),
            "4": node("TextEncodeQwenImageEditPlus", clip=["1", 0], prompt="at night", vae=["2", 0]),
        }
        alone = answer(workflow)
        workflow["4"]["inputs"]["image1"] = ["3", 0]
        found = answer(workflow)
        assert found.complete, found.unknown
        assert [stage.work for stage in alone.forecast.stages] == ["text"]
        assert [stage.work for stage in found.forecast.stages] == ["encode", "text"]


def test_names_are_found_below_folders_and_others_are_not() -> None:
    assert public_file("flux/flux1-dev.safetensors") == public_file("flux\\flux1-dev.safetensors") == FILES[FLUX[0]]
    assert public_file("flux1-dev.gguf") is None


def test_the_entries_are_in_one_file_that_can_be_reviewed() -> None:
    entries = json.loads((Path(ENVIRONMENT.pack) / "host" / "catalogue" / "catalogue.json").read_text())
    used = {network.partition(":")[0] for file in entries["files"].values() for network in file["parts"].values()}
    needed = used | {one["like"] for one in entries["networks"].values() if "like" in one}
    described = [parts for file in entries["files"].values() for parts in file.get("metadata", {}).values()]
    each = [one for parts in described for one in (parts.values() if isinstance(parts, dict) else (parts,))]
    named = {one for one in each if isinstance(one, str)}
    assert needed | named == set(entries["networks"])
