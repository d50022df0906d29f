"""The templates of the browser: what each changes in its API twin, and what its note says.

A twin, `workflows/api/NAME.json`, runs on the small generated models in seconds. Its template is the same graph with
the files that people have, the loaders and the text encoders these need, and sizes worth looking at.
"""

from __future__ import annotations

from .parts import (
    CLIP_L,
    FLUX,
    FLUX_VAE,
    NEGATIVE,
    PROMPT,
    SD15,
    SDXL,
    T5,
    Template,
    checkpoint,
    movie,
    negative,
    node,
    one_clip,
    picture,
    prompt,
    strips,
    two_clips,
)

HIGH_RESOLUTION = """
A **base pass** at the model's own size makes the composition. Its latent is enlarged, and a **refine pass** at half
strength draws the detail.

At that size attention is what takes the time: **Local Attention** averages the keys 2 x 2 in the refine pass. It is
*approximate*: the Memory Report shows its error in each block, and blocks above `max_error` run dense. For an exact
picture bypass it, or put **Attention by Block and Step** in its place.

**VAE Decode (exact, low memory)** decodes the large picture in one piece where that fits, else in strips, without
seams.
"""

TEMPLATES: dict[str, Template] = {
    "sd15_high_resolution": Template(
        title="SD 1.5 at 1536 px on 8GB",
        about=HIGH_RESOLUTION,
        stages={
            "Model": "1",
            "Prompt and size": "2 3 4",
            "Base pass": "5",
            "Refine pass": "6 7 8",
            "Picture": "9 10 11",
        },
        values={
            "1.ckpt_name": SD15,
            "2.text": PROMPT,
            "3.text": NEGATIVE,
            **picture("4", 512),
            "6.scale_by": 3.0,
            "5.steps": 20,
            "5.cfg": 7.0,
            "8.steps": 20,
            "8.cfg": 7.0,
            "7.min_tokens": 4096,
            **strips("9"),
        },
    ),
    "sdxl_high_resolution": Template(
        title="SDXL at 2048 px on 8GB",
        about=HIGH_RESOLUTION,
        stages={
            "Model": "1",
            "Prompt and size": "2 3 5",
            "Base pass": "6",
            "Refine pass": "7 8 9",
            "Picture": "10 11 12",
        },
        nodes={"1": checkpoint(SDXL), "2": prompt(["1", 1]), "3": negative(["1", 1])},
        links={"2:1": "2:0", "4:0": "1:2"},
        without="4",
        values={
            **picture("5", 1024),
            "6.steps": 25,
            "6.cfg": 7.0,
            "9.steps": 20,
            "9.cfg": 7.0,
            "8.min_tokens": 4096,
            **strips("10"),
        },
    ),
    "flux_8gb": Template(
        title="Flux on 8GB (low VRAM)",
        about="""
The 16-bit files go in, no other download is needed:

- **Layerwise Casting** stores model and T5 in 8 bits with scales, and computes in full: half the memory.
- **Block Offload** lets the model's weights take `vram_budget_gb` of the card; the rest comes from RAM at every
  step, bit for bit the same picture. A larger budget is faster, a smaller one leaves more for the picture.
- **VAE Decode (exact, low memory)** stays within the card's memory, less what ComfyUI reserves.

Not sure which budget? **Make It Fit** (template *Out of memory - make SDXL fit 6GB*) finds it.
""",
        stages={
            "Models": "1 2 3",
            "8 bits and a budget": "4 5 6",
            "Prompt, size, sampling": "7 8 9 10 11",
            "Picture": "12 13 14",
        },
        nodes={"2": two_clips("flux")},
        values={
            "1.unet_name": FLUX,
            "3.vae_name": FLUX_VAE,
            "7.text": PROMPT,
            "5.vram_budget_gb": 5.0,
            **picture("10", 1024),
            "11.steps": 20,
            **strips("12"),
        },
    ),
    "flux_16bit": Template(
        title="Flux in 16 bits on 24GB",
        about="""
The 16-bit file takes 22 GB, and a card of 24 GB has a desktop on it and a picture to compute. **Make It Fit** keeps
20 GB of the weights on the card and streams the rest while it computes: nothing is cast, the picture is that of a
larger card. On a smaller one it keeps less; the plan on its face says how much, and what a step takes.

RAM has to hold model and text encoder, 32 GB together.
""",
        stages={
            "Models": "1 2 3",
            "Prompt and size": "4 5 6 7",
            "Plan": "8",
            "Sampling": "10",
            "Picture": "11 12 13",
        },
        nodes={"2": two_clips("flux")},
        without="9",
        values={"1.unet_name": FLUX, "3.vae_name": FLUX_VAE, "4.text": PROMPT, **picture("7", 1024), "10.steps": 20},
    ),
    "sd35_text_to_image": Template(
        title="SD 3.5 Large on 16GB",
        about="""
**Layerwise Casting** stores the 8-billion-parameter model in 8 bits with scales; norms, embedders, first and last
layers stay as they are. **Attention by Block and Step** at `auto` takes torch's fused kernel where that
needs little memory, else `online`, whose memory does not grow with the square of the tokens: exact both.

The checkpoint asks you to accept its licence where it is offered.
""",
        stages={
            "Models": "1 2",
            "8 bits, attention": "4 5",
            "Prompt and size": "6 7 8",
            "Sampling": "9",
            "Picture": "10 11 12",
        },
        nodes={
            "1": checkpoint("sd3.5_large.safetensors"),
            "2": node(
                "TripleCLIPLoader", "Load CLIP", clip_name1=CLIP_L, clip_name2="clip_g.safetensors", clip_name3=T5
            ),
        },
        links={"3:0": "1:2"},
        without="3",
        values={
            "6.text": PROMPT,
            "7.text": NEGATIVE,
            "5.backend": "auto",
            "5.slice_rows": 0,
            **picture("8", 1024),
            "9.steps": 20,
            "9.cfg": 4.0,
            **strips("10"),
        },
    ),
    "qwen_image_text_to_image": Template(
        title="Qwen-Image on 12GB",
        about="""
20 GB of weights in 8 bits. **Block Offload** gives them `vram_budget_gb` of the card and streams the rest from RAM
at every step: the picture is bit for bit the same, the step takes longer. **Low-Memory VAE** wraps the VAE once, so
that the stock VAE Decode behind it stays within the memory there is, exactly.
""",
        stages={
            "Models": "1 2 3",
            "Budget": "4 5 10",
            "Prompt and size": "6 7 8",
            "Sampling": "9",
            "Picture": "11 12 13",
        },
        nodes={"2": one_clip("qwen_2.5_vl_7b_fp8_scaled.safetensors", "qwen_image")},
        values={
            "1.unet_name": "qwen_image_fp8_e4m3fn.safetensors",
            "3.vae_name": "qwen_image_vae.safetensors",
            "5.vram_budget_gb": 8.0,
            "6.text": PROMPT,
            "7.text": NEGATIVE,
            **picture("8", 1328),
            "9.steps": 20,
            "9.cfg": 2.5,
            **strips("10"),
        },
    ),
    "z_image_text_to_image": Template(
        title="Z-Image Turbo on 12GB",
        about="""
**Make It Fit** goes through model, VAE and prompt without data and chooses what fits this card: how attention is
computed, how much of the weights stays on the card, the VAE's strips. With `quality` at `exact` nothing changes the
picture. Its plan stands on its face, with a bar for each stage; sampler and VAE Decode behind it are stock nodes.
""",
        stages={
            "Models": "1 2 3 4",
            "Prompt and size": "5 6 7",
            "Plan": "8",
            "Sampling": "9",
            "Picture": "10 11 12",
        },
        without="13",
        nodes={"2": one_clip("qwen_3_4b.safetensors", "lumina2")},
        values={
            "1.unet_name": "z_image_turbo_bf16.safetensors",
            "3.vae_name": FLUX_VAE,
            "5.text": PROMPT,
            **picture("7", 1024),
            "9.steps": 8,
        },
    ),
    "train_lora": Template(
        title="Train a LoRA on 6GB",
        about="""
**Training Memory** lays a gradient checkpoint around every block of the model: a training step keeps what goes into
each block and computes the block again in its backward. Memory holds one block's activations instead of all; a step
computes about a third more, and the gradients are the same bits.

- *Train LoRA*'s own `gradient_checkpointing` does not act within these blocks: leave it on or off.
- **Will Training Fit?** says before it begins what each plan takes; `if_too_big` = `stop` ends a prompt that does not
  fit.
- The **Memory Report** shows what a step took, beside what was predicted.
- `plan` = `budget`: as little is computed again as fits `vram_budget_gb`.
- For a set of pictures put *Load Image-Text (from Folder)* in place of picture and prompt.
""",
        stages={
            "Model and picture": "1 2",
            "Latent, text, plan": "3 4 5 6",
            "Does it fit?": "10",
            "Training": "7",
            "What it took": "8 9",
        },
        values={
            "1.ckpt_name": SD15,
            "2.image": "example.png",
            "5.text": "a portrait of an astronaut",
            "3.width": 512,
            "3.height": 512,
            "7.steps": 100,
            "7.rank": 8,
            "7.training_dtype": "bf16",
            "7.lora_dtype": "bf16",
            "10.rank": 8,
            "10.training_dtype": "bf16",
            "10.lora_dtype": "bf16",
        },
    ),
    "wan_text_to_video": Template(
        title="Wan video on 8GB",
        about="""
81 frames of 832 x 480. **VAE Decode (exact, low memory)** decodes them in ComfyUI's own chunks of
frames, in strips of rows where a chunk does not fit: no seams and no flicker, which tiles can show. **Attention by
Block and Step** at `auto` takes the best exact kernel that this machine has, and the Memory Report says which ran.

For the 14B model change the file and add **Block Offload** or **Make It Fit** behind the loader.
""",
        stages={
            "Models": "1 2 3",
            "Shift and attention": "4 5",
            "Prompt and size": "6 7 8",
            "Sampling": "9",
            "Video": "10 11 12 13",
        },
        nodes={"2": one_clip("umt5_xxl_fp8_e4m3fn_scaled.safetensors", "wan")},
        values={
            "1.unet_name": "wan2.1_t2v_1.3B_fp16.safetensors",
            "3.vae_name": "wan_2.1_vae.safetensors",
            "6.text": "waves rolling onto a beach at sunset, slow camera, photograph",
            "7.text": "static, blurry, overexposed, text, watermark",
            **movie("8", 832, 480, 81),
            "9.steps": 30,
            "9.cfg": 6.0,
        },
    ),
    "wan_video_to_file": Template(
        title="Long Wan video to a file on 8GB",
        about="""
161 frames of 832 x 480. **VAE Decode to Video (exact, any length)** writes each window of frames into the file as it
is decoded, so that memory holds a window and not the video. Wan runs in ComfyUI's own chunks: the frames are those
of the stock VAE Decode.

- What is done is kept. If the decode is cancelled, or the disk fills up, queue the same again: it goes on where it
  ended, with another `vram_budget_gb` too.
- `format` has lossless kinds as well. `audio` takes sound.
- The sampler still works on all frames at once, and what it takes grows with them: on 8 GB these fit and 641 do not,
  by prediction. **Make It Fit** behind the loader keeps less of the weights on the card.
""",
        stages={
            "Models": "1 2 3",
            "Shift and attention": "4 5",
            "Prompt and size": "6 7 8",
            "Sampling": "9",
            "Video": "10 11",
        },
        nodes={"2": one_clip("umt5_xxl_fp8_e4m3fn_scaled.safetensors", "wan")},
        values={
            "1.unet_name": "wan2.1_t2v_1.3B_fp16.safetensors",
            "3.vae_name": "wan_2.1_vae.safetensors",
            "6.text": "waves rolling onto a beach at sunset, slow camera, photograph",
            "7.text": "static, blurry, overexposed, text, watermark",
            **movie("8", 832, 480, 161),
            "9.steps": 30,
            "9.cfg": 6.0,
            "10.format": "mp4 h264",
        },
    ),
    "video_to_video": Template(
        title="Video to video of any length on 8GB",
        about="""
A first pass makes a small video and writes it to a lossless file. **VAE Encode from Video (any length)** reads that
file window by window, enlarges the frames and encodes them; a second pass draws the detail at half strength, and
**VAE Decode to Video (exact, any length)** writes the result. Decoded frames are never in memory all at once.

- For a video of your own put **Load Video** in place of the first pass, into `video`.
- `width` and `height` of the encode set the size of the second pass; 0 follows the other.
- The sampler works on all frames at once: cut a long clip by **Trim Video**. On 8 GB 161 frames of 832 x 480 fit and
  641 do not, by prediction.
""",
        stages={
            "Models": "1 2 3 4",
            "Prompt and size": "5 6 7",
            "First pass": "8 9",
            "Second pass": "10 11",
            "Video": "12 13",
        },
        nodes={"2": one_clip("umt5_xxl_fp8_e4m3fn_scaled.safetensors", "wan")},
        values={
            "1.unet_name": "wan2.1_t2v_1.3B_fp16.safetensors",
            "3.vae_name": "wan_2.1_vae.safetensors",
            "5.text": "waves rolling onto a beach at sunset, slow camera, photograph",
            "6.text": "static, blurry, overexposed, text, watermark",
            **movie("7", 416, 240, 81),
            "8.steps": 20,
            "8.cfg": 6.0,
            "10.width": 832,
            "11.steps": 20,
            "11.cfg": 6.0,
            "12.format": "mp4 h264",
        },
    ),
    "ltx_text_to_video": Template(
        title="LTX-Video on 12GB",
        about="""
97 frames of 768 x 512. **Attention by Block and Step** chooses the attention of all blocks, **VAE Decode (exact,
low memory)** decodes in one piece where that fits and else in strips, and the **Memory Report** shows time,
measured peak and what had been predicted for sampling and decoding.

The model needs long prompts. LTX-Video 0.9.x adds noise of its own while decoding, in strips as untiled.
""",
        stages={"Models": "1 20", "Prompt and size": "2 3 5 7", "Sampling": "6 13 14 8", "Video": "10 11 12 15"},
        nodes={
            "1": checkpoint("ltx-video-2b-v0.9.5.safetensors"),
            "20": one_clip(T5, "ltxv"),
            "2": prompt(
                ["20", 0],
                "Long waves roll onto an empty beach at sunset. The water is dark blue, the foam catches warm light and"
                " slides back over wet sand. The camera stands still, low above the sand. Real-life footage.",
            ),
            "3": prompt(["20", 0], "low quality, worst quality, deformed, distorted, motion smear", "Negative Prompt"),
        },
        links={"2:1": "2:0", "4:0": "1:2"},
        without="4 9",
        values={**movie("7", 768, 512, 97), "14.steps": 30},
    ),
    "upscale_4k": Template(
        title="Upscale to 4K on 8GB",
        about="""
A picture of your own is scaled to 4K, encoded, sampled at low `denoise`, and decoded.

- **VAE Encode** and **VAE Decode (exact, low memory)** take a 4K picture in strips of rows, with the whole
  picture's statistics and attention: no seams, no shift of colours.
- **Attention by Block and Step** at `auto` takes an exact kernel whose memory does not grow with the square of the
  tokens: at this size SD 1.5's first blocks have 129 600 of them.

It takes long on a small card. Bypass the sampler to see encode and decode alone.
""",
        stages={
            "Picture and model": "1 2",
            "Scale and prompt": "5 3 4",
            "Encode": "6",
            "Redraw": "7 8",
            "Decode": "9 10 11",
        },
        values={
            "1.image": "example.png",
            "2.ckpt_name": SD15,
            "3.text": "sharp, detailed photograph",
            "4.text": NEGATIVE,
            **picture("5", 3840, 2160),
            **strips("6"),
            **strips("9"),
            "8.steps": 20,
            "8.cfg": 5.0,
        },
    ),
    "will_it_fit": Template(
        title="Will it fit - know before you queue",
        about="""
**Will It Fit?** stands between latent and sampler. In about a second it predicts what text encoder, sampling and
decode take at their highest, without running them, shows a bar for each, and with `if_too_big` at `stop` ends the
run before the sampler has loaded anything.

Try it: set `vram_gb` and `gpu` to a card that you do not have, or the latent to 4096. From a terminal the same
answer: `python3 cli/estimate.py workflow.json --gpu sm86 --vram 8`
""",
        stages={
            "Model": "1 5",
            "Prompt and size": "2 3 4",
            "Prediction": "6",
            "Sampling": "7",
            "Picture": "9 10 11",
        },
        without="8 12",
        values={
            "1.ckpt_name": SDXL,
            "2.text": PROMPT,
            "3.text": NEGATIVE,
            **picture("4", 1024),
            "6.cfg": 7.0,
            "7.steps": 25,
            "7.cfg": 7.0,
        },
    ),
    "make_it_fit": Template(
        title="Out of memory - make SDXL fit 6GB",
        about="""
**Make It Fit** takes model, VAE, prompt and size, and gives back a model and a VAE that fit this card: guidance in
turns, attention, a budget for the weights, the VAE's strips, in the order of what they cost. With `quality` at
`exact` the picture stays the same; `near_exact` and `any` also allow casting and tiles. Its plan says what was
chosen, why, and what else there was.

Sampler and VAE Decode are stock nodes: put it into any graph of your own, or let `python3 cli/fit.py workflow.json
-o fitted.json` do it.
""",
        stages={"Model": "1", "Prompt and size": "2 3 4", "Plan": "5", "Sampling": "6", "Picture": "8 9 10"},
        without="7 11",
        values={
            "1.ckpt_name": SDXL,
            "2.text": PROMPT,
            "3.text": NEGATIVE,
            **picture("4", 1536),
            "5.cfg": 7.0,
            "6.steps": 25,
            "6.cfg": 7.0,
        },
    ),
    "compare_strategies": Template(
        title="Compare ways to save VRAM",
        about="""
**Compare Strategies** runs one step of the model as it is, then with sliced and other attention and with cast
weights, and shows for each its highest memory, its time and how far the result is from the first, as a table and a
chart. It replaces guessing which attention is best here. The model behind it is unchanged: the sampler takes it as
it is.
""",
        stages={
            "Model": "1 5",
            "Prompt and size": "2 3 4",
            "Comparison": "6",
            "Sampling and picture": "7 9 10 11",
        },
        without="8 12",
        values={
            "1.ckpt_name": SD15,
            "2.text": PROMPT,
            "3.text": NEGATIVE,
            **picture("4", 768),
            "6.cfg": 7.0,
            "6.slice_sizes": "256, 1024",
            "7.steps": 20,
            "7.cfg": 7.0,
        },
    ),
    "flux_cast_lora": Template(
        title="Flux with a LoRA on 16GB",
        about="""
**Layerwise Casting** stores model and text encoder in 8 bits with scales. A LoRA before it or behind it gives the
same picture: the LoRA is applied in full precision and the sum is rounded once. Here one that makes do with 8
steps.

`storage` has other forms: `int8_convrot` is nearer to the original, `nvfp4` takes about half and is less near.
""",
        stages={
            "Models": "1 2 3",
            "8 bits and LoRA": "17 18 19",
            "Prompt and size": "4 5 7",
            "Sampling": "8 9 10 11 12",
            "Picture": "14 15 16",
        },
        nodes={"2": two_clips("flux")},
        without="13",
        values={
            "1.unet_name": FLUX,
            "3.vae_name": FLUX_VAE,
            "18.lora_name": "Hyper-FLUX.1-dev-8steps-lora.safetensors",
            "18.strength_model": 0.125,
            "4.text": PROMPT,
            **picture("7", 1024),
            "8.steps": 8,
            **strips("14"),
        },
    ),
    "side_by_side": Template(
        title="Tiled decode of core beside Headroom",
        about="""
One latent, decoded three times: untiled, by core's **VAE Decode (Tiled)**, and by **VAE Decode (exact, low
memory)** in strips of 64 rows. The two pictures under *Look* show each one's difference from the untiled, ten
times, about mid-grey: plain grey is no difference.

Replace the picture by one of your own; smooth sky and skin show most.
""",
        stages={
            "Picture and VAE": "1 2 3",
            "Encode and decode": "4 5 6 7",
            "Differences": "8 9 10 11 12 15 16",
            "Report": "13 14",
        },
        nodes={"2": checkpoint(SD15)},
        links={"2:0": "2:2"},
        values={"1.image": "example.png", **picture("3", 1024), "6.tile_size": 512, "6.overlap": 64},
        previews="7",
    ),
}
