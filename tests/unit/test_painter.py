"""The scenes that the small Stable Diffusion paints, the judge of its pictures, and its file."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from headroom.tools.demo.__main__ import PAINTED, PAINTER, painted
from headroom.tools.models.painter import dit
from headroom.tools.models.painter.judge import obeys, see
from headroom.tools.models.painter.networks import TRAINED
from headroom.tools.models.painter.scenes import COLOURS, PAIRS, RELATIONS, SHAPES, SINGLES, Scene, Thing, draw

MOST_BYTES = 25_000_000  # of all weights that are trained
LEAST_OF_FLUX = 0.9
SIDE = 128
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Scene, NDArray[np.float32]]]:
    """Every single object, and pairs of all colours, shapes and relations."""
    scenes = [*SINGLES, *PAIRS[::7]]
    pictures = draw(scenes, SIDE, torch.Generator().manual_seed(1))
    return [(scene, picture.movedim(0, -1).numpy()) for scene, picture in zip(scenes, pictures)]


class TestScenes:
    def test_every_sentence_tells_one_scene(self) -> None:
        sentences = {str(scene) for scene in (*SINGLES, *PAIRS)}
        assert len(sentences) == len(SINGLES) + len(PAIRS)
        assert "a red circle left of an orange star" in sentences

    def test_a_tenth_of_the_pairs_is_held_out_and_no_word_is(self) -> None:
        out, shown = ([scene for scene in PAIRS if scene.held_out is held] for held in (True, False))
        assert 0.08 < len(out) / len(PAIRS) < 0.12
        for scenes in (out, shown):
            assert {scene.relation for scene in scenes} == set(RELATIONS)
            assert {scene.first.colour for scene in scenes} == set(COLOURS)
            assert {scene.first.shape for scene in scenes} == set(SHAPES)

    def test_a_small_drawing_is_the_mean_of_a_large_one(self) -> None:
        large, small = (draw(PAIRS[:40], side, torch.Generator().manual_seed(2)) for side in (256, 64))
        error = torch.nn.functional.avg_pool2d(large, 4) - small
        assert error.abs().mean() < 0.002
        assert error.abs().max() < 0.3  # at corners


class TestJudge:
    def test_is_right_of_true_drawings(self, drawn: list[tuple[Scene, NDArray[np.float32]]]) -> None:
        assert np.mean([obeys(picture, scene) for scene, picture in drawn]) >= 0.99

    def test_is_near_chance_of_other_sentences(self, drawn: list[tuple[Scene, NDArray[np.float32]]]) -> None:
        others = [*drawn[1:], drawn[0]]
        assert np.mean([obeys(picture, scene) for (scene, _), (_, picture) in zip(drawn, others)]) <= 0.01

    def test_a_relation_turned_round_is_noticed(self, drawn: list[tuple[Scene, NDArray[np.float32]]]) -> None:
        turned = {"over": "under", "under": "over", "left of": "right of", "right of": "left of"}
        pairs = [(scene, picture) for scene, picture in drawn if scene.relation]
        wrong = [(Scene(one.first, turned[one.relation], one.second), picture) for one, picture in pairs]
        assert not any(obeys(picture, scene) for scene, picture in wrong)

    def test_noise_and_an_empty_ground_show_nothing(self) -> None:
        noise = np.random.default_rng(1).random((SIDE, SIDE, 3), np.float32)
        for picture in (noise, np.full((SIDE, SIDE, 3), 0.9, np.float32)):
            assert not any(obeys(picture, scene) for scene in SINGLES)

    def test_says_where_things_are(self) -> None:
        scene = Scene(Thing("red", "circle"), "left of", Thing("blue", "star"))
        (picture,) = draw([scene], SIDE, torch.Generator().manual_seed(3))
        seen = {one.thing: one for one in see(picture.movedim(0, -1).numpy())}
        assert seen[scene.first].x == pytest.approx(0.26 * SIDE, abs=0.04 * SIDE)
        assert seen[scene.first].y == pytest.approx(0.5 * SIDE, abs=0.12 * SIDE)


class TestFile:
    def test_all_are_small(self) -> None:
        assert sum(file.stat().st_size for file in TRAINED.parent.glob("*.safetensors")) <= MOST_BYTES

    def test_says_where_it_comes_from(self) -> None:
        with safe_open(TRAINED, "pt") as file:
            about = file.metadata()
            types = Counter(file.get_tensor(key).dtype for key in file.keys())  # noqa: SIM118
        assert about["script"].endswith("/train_painter.py")
        assert float(about["obeyed"]) >= 0.9
        assert set(types) == {torch.float16, torch.int64}
        assert types[torch.int64] == 1  # the words


class TestFlux:
    def test_says_where_it_comes_from(self) -> None:
        with safe_open(dit.TRAINED, "pt") as file:
            about = file.metadata()
        assert about["script"].endswith("/train_flux_painter.py")
        assert float(about["obeyed"]) >= LEAST_OF_FLUX

    def test_eight_bits_are_those_of_each_row(self) -> None:
        model = dit.DiT()
        packed = dit.packed(model)
        weights = {key for key in packed if key + dit.SCALE in packed}
        assert {packed[key].dtype for key in weights} == {torch.int8}
        for key, value in dit.unpacked(packed).items():
            step = packed[key + dit.SCALE] if key in weights else 1e-3
            assert ((value - model.state_dict()[key]).abs() <= 0.501 * step + 1e-6).all()


class TestDemo:
    def test_words_alone_are_given_to_the_painter(self) -> None:
        for name, sentence in PAINTED.items():
            workflow = json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text(encoding="utf-8"))
            changed = painted(workflow, sentence)
            assert changed.keys() == workflow.keys()
            nodes = {node["class_type"]: node["inputs"] for node in changed.values()}
            texts = {node["inputs"]["text"] for node in changed.values() if node["class_type"] == "CLIPTextEncode"}
            assert texts == ({sentence, ""} if "KSampler" in nodes else {sentence})
            assert sentence in {str(scene) for scene in PAIRS}
            replaced = nodes.keys() & PAINTER.keys()
            assert replaced >= ({"CheckpointLoaderSimple"} if name.startswith("sd15") else {"UNETLoader", "VAELoader"})
            for kind in replaced:
                assert nodes[kind].items() >= PAINTER[kind].items()
