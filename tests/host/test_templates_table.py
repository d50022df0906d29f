"""The table of ComfyUI's official templates: a row of one of them, a journal that was cut off, and the page."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headroom.tools.templates_page import AS_IT_IS, CARDS, MADE_TO_FIT, OR_TILES, Made, cell, data, page
from headroom.tools.templates_table import FREE, TEMPLATES, lacks_fit, made_to_fit, names, row, rows_of

from .test_catalogue import MADE_WITH
from .test_compat import VERSION

pytestmark = pytest.mark.skipif(VERSION != MADE_WITH, reason="the templates are those that came with 0.30.0")


@pytest.fixture(scope="module")
def folder(extra_nodes: None) -> Path:
    spec = importlib.util.find_spec(TEMPLATES)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "templates"


def looked_at(folder: Path, name: str) -> dict[str, Any]:
    assert name in set(names(folder))
    with torch.inference_mode():
        return row(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def test_a_template_of_a_small_model_fits_everywhere(folder: Path) -> None:
    one = looked_at(folder, "gsl_starter_1_1")
    assert one["whole"], one["why"]
    assert [int(size) for size in one["cards"]] == list(CARDS)
    for card in one["cards"].values():
        assert card[AS_IT_IS] == card[MADE_TO_FIT]  # there is nothing to make fit
        assert card[AS_IT_IS]["verdict"] == "resident"
        assert card[AS_IT_IS]["seconds"] > 0
    assert not lacks_fit(one)
    assert 1.9 < one["download"] < 2.1  # DreamShaper 8, in 16 bits


def test_a_large_one_streams_and_make_it_fit_copies_while_it_computes(folder: Path) -> None:
    one = looked_at(folder, "image_z_image_turbo")
    assert one["whole"], one["why"]
    assert lacks_fit(one)
    with torch.inference_mode():
        one = made_to_fit(json.loads((folder / "image_z_image_turbo.json").read_text(encoding="utf-8")), one)
    assert not lacks_fit(one)
    verdicts = {size: card[AS_IT_IS]["verdict"] for size, card in one["cards"].items()}
    assert verdicts["8"] == "streams"
    assert verdicts["24"] == "resident"
    plain, fitted = one["cards"]["8"][AS_IT_IS], one["cards"]["8"][MADE_TO_FIT]
    assert plain["streamed"] > 4
    assert 0 < fitted["peak"] < plain["peak"]  # what samples has a budget now; the text does not
    assert fitted["seconds"] < plain["seconds"]


def test_one_that_computes_elsewhere_is_told_from_one_that_is_not_followed(folder: Path) -> None:
    assert looked_at(folder, "api_bfl_flux_1_kontext_pro_image") == {"local": False}
    drawn = looked_at(folder, "basic_image_color_adjustment")
    assert drawn["local"]
    assert not drawn["whole"]
    assert "GLSLShader" in " ".join(drawn["why"])


def test_one_that_takes_no_memory_of_a_card_is_whole(folder: Path) -> None:
    one = looked_at(folder, "utility_image_stitch")
    assert one["whole"], one["why"]
    assert one["download"] == 0
    assert one["cards"] == {str(size): {AS_IT_IS: FREE, MADE_TO_FIT: FREE} for size in CARDS}


def test_a_row_of_what_is_followed_no_longer_is_made_anew(folder: Path) -> None:
    workflow = json.loads((folder / "gsl_starter_1_1.json").read_text(encoding="utf-8"))
    before = {"whole": True, "cards": {str(size): {AS_IT_IS: numbers("streams", 1.0)} for size in CARDS}}
    workflow["nodes"] = [node for node in workflow["nodes"] if node["type"] != "VAEDecode"]
    with torch.inference_mode():
        one = made_to_fit(workflow, before)
    assert not one["whole"]
    assert "cards" not in one


def test_a_line_that_was_cut_off_is_looked_at_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    lines = ['{"name": "one", "local": true}', '{"name": "one", "local": false}', '{"name": "two", "loc']
    journal.write_text("\n".join(lines), encoding="utf-8")
    assert rows_of(journal) == {"one": {"local": False}}
    assert not rows_of(tmp_path / "nothing.jsonl")


def numbers(verdict: str, streamed: float = 0.0, seconds: float | None = 20.0) -> dict[str, Any]:
    return {"verdict": verdict, "peak": 9.5, "streamed": streamed, "ram": 12.0, "seconds": seconds}


@pytest.mark.parametrize(
    ("plain", "fitted", "text"),
    [
        (numbers("resident"), numbers("resident"), "whole, 20 s"),
        (numbers("streams", 6.85), numbers("streams", 6.85, 20.5), "6.8 GB, 20 s"),
        (numbers("streams", 6.85), numbers("streams", 6.85, 10), "6.8 GB, 20 s<br>fit: 6.8 GB, 10 s"),
        (numbers("streams", 0.01), numbers("resident", 0.0), "partly, 20 s<br>fit: whole, 20 s"),
        (numbers("does_not_fit"), numbers("streams", 2.0, 125), "no<br>fit: 2.0 GB, 2 min 5 s"),
        (numbers("does_not_fit"), numbers("does_not_fit", 1.0, 9), "no"),
        (numbers("does_not_fit") | {OR_TILES: True}, numbers("does_not_fit"), "tiles<br>fit: no"),
        (numbers("does_not_fit") | {OR_TILES: True}, numbers("resident"), "tiles<br>fit: whole, 20 s"),
        (numbers("resident", seconds=None), numbers("resident", seconds=None), "whole"),
        (numbers("streams", 1.0), {"verdict": "unknown", "why": ["node 1"]}, "1.0 GB, 20 s<br>fit: not known"),
    ],
)
def test_a_cell(plain: dict[str, Any], fitted: dict[str, Any], text: str) -> None:
    assert cell({AS_IT_IS: plain, MADE_TO_FIT: fitted}) == text


def test_a_cell_of_which_nobody_asked() -> None:
    assert cell({AS_IT_IS: numbers("streams", 6.85)}) == "6.8 GB, 20 s"


def test_the_page_and_its_data() -> None:
    streams, whole = numbers("streams", 1.5), numbers("resident")
    cards = {str(size): dict.fromkeys((AS_IT_IS, MADE_TO_FIT), streams if size < 12 else whole) for size in CARDS}
    rows = {
        "far": {"local": False},
        "near": {"local": True, "whole": True, "why": [], "download": 11.0, "cards": cards},
        "not": {"local": True, "whole": False, "why": ["node 1: Sound is not known", "node 2: needs node 1"]},
    }
    made = Made("the_templates 1.2.3", "4.5.6", "2026-11-28")
    text = page(rows, made)
    assert "the_templates 1.2.3 in ComfyUI 4.5.6, 2026-11-28" in text
    assert "1 of 2 templates whose nodes this ComfyUI has, and that compute locally, are predicted whole" in text
    cells = " | ".join(["1.5 GB, 20 s"] * 2 + ["whole, 20 s"] * 4)
    assert f"| near | 9.5 | 12.0 | 11.0 | {cells} |" in text
    assert "- not: Sound is not known\n" in text
    assert "far" not in text
    assert "asked of 1 of them |" in text
    read = json.loads(data(rows, made))
    assert read["comfyui"] == "4.5.6"
    assert set(read["templates"]) == {"near", "not"}
    assert read["templates"]["near"]["cards"]["6"][MADE_TO_FIT]["streamed"] == 1.5
