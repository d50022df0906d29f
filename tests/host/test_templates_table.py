"""The table of ComfyUI's official templates: a row of one of them, a journal that was cut off, and the page."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headroom.tools.templates_table import SIZES, TEMPLATES, names, page, row, rows_of

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
    assert [one["cards"][str(size)][0] for size in SIZES] == ["resident"] * len(SIZES)
    assert 1.9 < one["download"] < 2.1  # DreamShaper 8, in 16 bits


def test_one_that_computes_elsewhere_is_told_from_one_that_is_not_followed(folder: Path) -> None:
    assert looked_at(folder, "api_bfl_flux_1_kontext_pro_image") == {"local": False}
    drawn = looked_at(folder, "basic_image_color_adjustment")
    assert drawn["local"]
    assert not drawn["whole"]
    assert "GLSLShader" in " ".join(drawn["why"])


def test_one_that_takes_no_memory_of_a_card_is_whole(folder: Path) -> None:
    one = looked_at(folder, "utility_image_stitch")
    assert one["whole"], one["why"]
    assert (one["peak"], one["download"]) == (0.0, 0.0)
    assert [one["cards"][str(size)] for size in SIZES] == [["resident", 0.0]] * len(SIZES)


def test_a_line_that_was_cut_off_is_looked_at_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"name": "one", "local": false}\n{"name": "two", "loc', encoding="utf-8")
    assert rows_of(journal) == {"one": {"local": False}}
    assert not rows_of(tmp_path / "nothing.jsonl")


def test_the_page() -> None:
    cards = {str(size): ["streams", 1.5] if size < 12 else ["resident", 0.0] for size in SIZES}
    rows = {
        "far": {"local": False},
        "near": {"local": True, "whole": True, "why": [], "peak": 9.5, "ram": 12.0, "download": 11.0, "cards": cards},
        "not": {"local": True, "whole": False, "why": ["node 1: Sound is not known", "node 2: needs node 1"]},
    }
    text = page(rows, "1.2.3", "4.5.6")
    assert f"{TEMPLATES} 1.2.3 in ComfyUI 4.5.6" in text
    assert "1 of 2 templates whose nodes this ComfyUI has, and that compute locally, are predicted whole" in text
    assert "| near | 9.5 | 12.0 | 11.0 | 1.5 | 1.5 | whole | whole | whole | whole |" in text
    assert "- not: Sound is not known\n" in text
    assert "far" not in text
