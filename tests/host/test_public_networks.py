"""Networks of public files that store some matrices in ways of their own, and text encoders by their headers."""

import importlib
import json

import pytest
import torch

from headroom.host.catalogue.entries import public_files
from headroom.host.catalogue.stored import stored
from headroom.host.catalogue.tokenizers import stand_in
from headroom.host.prediction.header_loading import public_state_dict
from headroom.memory.prediction import fake_mode

from ..nightly import some_of
from .test_catalogue import since_it_was_made

FILES = public_files()
ENCODERS = [name for name, file in FILES.items() if file.folder == "text_encoders"]


@since_it_was_made
@pytest.mark.parametrize("name", [*some_of(ENCODERS, 3), "gpt_oss_20b_nvfp4.safetensors"])
def test_the_host_knows_each_text_encoder_by_its_tensors(name: str) -> None:
    with fake_mode():
        tensors, _ = public_state_dict(FILES[name])
        tensors |= {f"model.{key}": value for key, value in tensors.items() if key.startswith("lm_head.")}
        assert importlib.import_module("comfy.sd").detect_te_model(tensors) is not None


def test_matrices_of_experts_are_stored_together() -> None:
    shapes = {"layers.0.mlp.experts.up.weight": (4, 96, 80), "layers.0.mlp.experts.up.bias": (4, 96)}
    found = stored(shapes, "nvfp4")
    assert found["layers.0.mlp.experts.up.weight"].shape == (4, 96, 40)
    assert found["layers.0.mlp.experts.up.weight_scale"].shape == (4, 128, 8)
    assert found["layers.0.mlp.experts.up.weight_scale_2"].shape == (4,)
    assert found["layers.0.mlp.experts.up.bias"].dtype == torch.bfloat16
    described = found["layers.0.mlp.experts.up.comfy_quant"].data
    assert described is not None
    assert json.loads(described) == {"format": "nvfp4", "num_experts": 4}
    assert stored({"conv.weight": (4, 96, 3)}, "nvfp4")["conv.weight"].shape == (4, 96, 3)  # of one dimension more


def test_tables_are_quantised_where_the_file_says_so() -> None:
    shapes = {"embed_tokens.weight": (32, 16), "layer.weight": (32, 16)}
    plain, tables = (stored(shapes, "nvfp4", tables=way) for way in ("", "int8"))
    assert plain["embed_tokens.weight"].dtype == torch.bfloat16
    assert tables["embed_tokens.weight"].dtype == torch.int8
    assert tables["embed_tokens.weight_scale"].shape == (32, 1)
    assert plain["layer.weight"].dtype == tables["layer.weight"].dtype == torch.uint8


def test_inputs_that_no_norm_scales_have_their_scales_beside_them() -> None:
    shapes = {f"layers.0.{name}.weight": (256, 128) for name in ("self_attn.q_proj", "self_attn.o_proj")}
    found = stored(shapes, "nvfp4_awq")
    assert found["layers.0.self_attn.o_proj.pre_quant_scale"].shape == (128,)
    assert "layers.0.self_attn.q_proj.pre_quant_scale" not in found


def test_a_text_has_as_many_tokens_as_words_by_a_tokenizer_of_unknown_words() -> None:
    made = importlib.import_module("tokenizers").Tokenizer.from_str(stand_in("tokenizer_json").decode())
    assert len(made.encode("a lighthouse, at dusk").ids) == 5


@since_it_was_made
def test_networks_are_named_as_in_their_files() -> None:
    """The host makes its own layers of PixelDiT's, and loads the experts of GPT-OSS from one tensor."""
    dit = FILES["pixeldit_1300m_1024px_bf16.safetensors"].tensors()
    assert dit["core.pixel_blocks.0.adaLN_modulation.0.weight"].shape == (2 * 12288, 1536)
    assert "lq_proj.latent_proj.0.weight" in FILES["pid_flux1_1024_to_4096_4step_bf16.safetensors"].tensors()
    encoder = FILES["gpt_oss_20b_nvfp4.safetensors"].tensors()
    assert encoder["layers.0.mlp.experts.gate_up_proj.weight"].shape == (32, 5760, 1440)
    assert encoder["layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
