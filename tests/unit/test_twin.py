"""The stock twin of a workflow."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from headroom.tools.demo.twin import stock_twin

WORKFLOWS = sorted((Path(__file__).parents[2] / "workflows" / "api").glob("*.json"))


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def links(workflow: dict[str, dict[str, Any]]) -> list[list[Any]]:
    return [value for item in workflow.values() for value in item["inputs"].values() if isinstance(value, list)]


class TestBypass:
    def test_links_go_to_what_fed_the_node(self) -> None:
        workflow = {
            "1": node("CheckpointLoaderSimple", ckpt_name="a"),
            "2": node("HeadroomAttention", model=["1", 0], backend="online"),
            "3": node("HeadroomVAE", vae=["1", 2], method="auto"),
            "4": node("KSampler", model=["2", 0], seed=1),
            "5": node("VAEDecode", samples=["4", 0], vae=["3", 0]),
        }
        assert stock_twin(workflow) == {
            "1": workflow["1"],
            "4": node("KSampler", model=["1", 0], seed=1),
            "5": node("VAEDecode", samples=["4", 0], vae=["1", 2]),
        }

    def test_a_chain_of_ours(self) -> None:
        workflow = {
            "1": node("UNETLoader"),
            "2": node("HeadroomAttention", model=["1", 0]),
            "3": node("HeadroomAttention", model=["2", 0]),
            "4": node("KSampler", model=["3", 0]),
        }
        assert stock_twin(workflow)["4"]["inputs"] == {"model": ["1", 0]}


@pytest.mark.parametrize(
    ("ours", "stock", "what"), [("Decode", "VAEDecode", "samples"), ("Encode", "VAEEncode", "pixels")]
)
def test_shortcuts_become_the_stock_nodes(ours: str, stock: str, what: str) -> None:
    workflow = {
        "1": node("VAELoader"),
        "2": node("Source"),
        "3": node(f"HeadroomVAE{ours}", **{what: ["2", 0]}, vae=["1", 0], method="feathered", tile_size=64),
    }
    replaced = stock_twin(workflow)["3"]
    assert replaced["class_type"] == stock
    assert replaced["inputs"] == {what: ["2", 0], "vae": ["1", 0]}


class TestVideoFiles:
    WORKFLOW = {
        "1": node("VAELoader"),
        "2": node("KSampler"),
        "3": node(
            "HeadroomVAEDecodeVideo", samples=["2", 0], vae=["1", 0], fps=16.0, format="mkv ffv1", filename_prefix="a"
        ),
        "4": node("HeadroomReport", anything=["3", 0]),
        "5": node(
            "HeadroomVAEEncodeVideo", video=["4", 0], vae=["1", 0], width=64, height=0, upscale_method="area",
            crop="center",
        ),
        "6": node("SaveLatent", samples=["5", 0]),
        "7": node("PreviewAny", source=["3", 1]),
        "8": node("PreviewAny", source=["5", 1]),
    }  # fmt: skip

    def test_a_decode_to_a_file_becomes_three_nodes(self) -> None:
        twin = stock_twin(self.WORKFLOW)
        assert twin["3_images"]["inputs"] == {"samples": ["2", 0], "vae": ["1", 0]}
        assert twin["3_video"]["inputs"] == {"images": ["3_images", 0], "fps": 16.0}
        assert twin["3_saved"]["class_type"] == "SaveVideo"
        assert twin["3_saved"]["inputs"]["video"] == ["3_video", 0]

    def test_an_encode_from_a_file_becomes_three_nodes(self) -> None:
        twin = stock_twin(self.WORKFLOW)
        assert twin["5_frames"]["inputs"] == {"video": ["3_video", 0]}
        size = {"upscale_method": "area", "width": 64, "height": 0, "crop": "center"}
        assert twin["5_scaled"]["inputs"] == {"image": ["5_frames", 0], **size}
        assert twin["6"]["inputs"] == {"samples": ["5_latent", 0]}

    def test_what_needs_their_reports_goes(self) -> None:
        assert not {"3", "4", "5", "7", "8"} & set(stock_twin(self.WORKFLOW))


class TestReport:
    WORKFLOW = {
        "1": node("LoadImage"),
        "2": node("HeadroomReport", anything=["1", 1], model=["9", 0]),
        "3": node("MaskPreview", mask=["2", 0]),
        "4": node("ImageScale", image=["2", 2]),
        "5": node("SaveImage", images=["4", 0]),
        "6": node("PreviewAny", source=["2", 1]),
        "9": node("UNETLoader"),
    }

    def test_what_it_passes_stays(self) -> None:
        assert stock_twin(self.WORKFLOW)["3"]["inputs"] == {"mask": ["1", 1]}

    def test_what_needs_its_text_or_chart_goes(self) -> None:
        assert set(stock_twin(self.WORKFLOW)) == {"1", "3", "9"}


def test_a_node_without_a_counterpart_is_refused() -> None:
    with pytest.raises(ValueError, match="HeadroomSomething has no stock counterpart"):
        stock_twin({"1": node("HeadroomSomething")})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_of_the_shipped_workflows(path: Path) -> None:
    workflow = json.loads(path.read_text())
    before = copy.deepcopy(workflow)
    twin = stock_twin(workflow)
    assert workflow == before
    assert not [item for item in twin.values() if item["class_type"].startswith("Headroom")]
    assert all(source in twin for source, _ in links(twin))
    saves = [key for key, item in workflow.items() if item["class_type"].startswith("Save")]
    assert set(saves) <= set(twin)
