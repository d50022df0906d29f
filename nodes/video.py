"""Videos of any length: decoded straight to a file, encoded straight from one."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..host.core.compat import saved_metadata, shown_when_reused
from ..host.video.resizing import Resizing
from ..host.video_files.from_file import encode_from_file
from ..host.video_files.host_video import Frames, shown, video_of
from ..host.video_files.to_file import FileRequest, decode_to_file
from ..video import FORMATS
from .given import checked


class HeadroomVAEDecodeVideo(io.ComfyNode):
    """Decodes a video straight to a file: each window of frames is encoded as it is decoded, so that memory holds a
    window, however long the video is. What is done is kept: a decode that was cancelled, ran out of disk or was killed
    goes on where it ended when the same is queued again."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomVAEDecodeVideo",
            display_name="VAE Decode to Video (exact, any length)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["save video", "video combine", "vae decode video", "out of memory", "long video", "ffv1"],
            inputs=[
                io.Latent.Input("samples", tooltip="A video, or a batch of pictures, each of which becomes a frame."),
                io.Vae.Input(
                    "vae",
                    tooltip="For video or pictures. Videos come a few frames at a time, in ComfyUI's own chunks where"
                    " it has some; pictures come one by one. What HunyuanVideo, CogVideoX and Cosmos compute of all"
                    " frames is kept in a file on disk meanwhile.",
                ),
                io.Float.Input(
                    "fps",
                    default=24.0,
                    min=0.01,
                    max=1000.0,
                    step=0.01,
                    tooltip="Frames per second. Wan makes 16, LTX-Video 24 or 25, HunyuanVideo 24.",
                ),
                io.Combo.Input(
                    "format",
                    options=list(FORMATS),
                    default=next(iter(FORMATS)),
                    tooltip=" ".join(f"{name}: {one.tooltip}." for name, one in FORMATS.items()),
                ),
                io.String.Input(
                    "filename_prefix",
                    default="video/ComfyUI",
                    tooltip="Of the file in the output folder, as in Save Video: subfolders, %date:yyyy-MM-dd%.",
                ),
                io.Audio.Input(
                    "audio",
                    optional=True,
                    tooltip="Sound for the file, cut to the length of the video. Not for sequences of pictures.",
                ),
                io.Float.Input(
                    "crf",
                    default=-1.0,
                    min=-1.0,
                    max=63.0,
                    step=1.0,
                    optional=True,
                    advanced=True,
                    tooltip="Quality of a lossy format: lower is better and larger. -1: the usual one (h264 23, vp9 and"
                    " av1 32). h264 takes 0 to 51.",
                ),
                io.Float.Input(
                    "vram_budget_gb",
                    default=0.0,
                    min=0.0,
                    max=1024.0,
                    step=0.1,
                    optional=True,
                    advanced=True,
                    tooltip="What the VAE may need, weights included, in GB of 2^30 bytes; it does not depend on the"
                    " number of frames for Wan, Qwen-Image, LTX-Video, Mochi and pictures. 0: the card's total minus"
                    " the host's reserve. With another budget a decode still goes on where it ended.",
                ),
            ],
            outputs=[
                io.Video.Output(
                    tooltip="The file, for Save Video, Trim Video, Get Video Components; it is not encoded again."
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="What ran, the file and its size, where it went on."
                ),
            ],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    @checked
    def execute(
        cls,
        samples: Any,
        vae: Any,
        fps: float,
        format: str,
        filename_prefix: str,
        audio: Any = None,
        crf: float = -1.0,
        vram_budget_gb: float = 0.0,
    ) -> io.NodeOutput:
        metadata = saved_metadata(cls.hidden.prompt, cls.hidden.extra_pnginfo)
        request = FileRequest(format, fps, crf, filename_prefix, audio, metadata)
        written = decode_to_file(vae, samples, request, vram_budget_gb)
        face = {**shown(written), **ui.PreviewText(written.report).as_dict()}
        return io.NodeOutput(video_of(written.path), written.report, ui=face)


class HeadroomVAEEncodeVideo(io.ComfyNode):
    """Encodes a video straight from its file: frames are read and brought to size window by window. Most VAEs encode
    them so too; Mochi and a few others take all of them at once."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomVAEEncodeVideo",
            display_name="VAE Encode from Video (any length)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["load video latent", "vae encode video", "video to latent", "long video"],
            inputs=[
                io.Video.Input("video", tooltip="From Load Video, Trim Video, or a decode to video."),
                io.Vae.Input(
                    "vae",
                    tooltip="For video: a few frames at a time; of Mochi and a few others all frames are gathered in a"
                    " file on disk first. For pictures: each frame becomes a latent of a batch.",
                ),
                io.Int.Input(
                    "width",
                    default=0,
                    min=0,
                    max=16384,
                    tooltip="In pixels. 0: follows height; both 0: the video's own. What fills no cell is cut off.",
                ),
                io.Int.Input(
                    "height",
                    default=0,
                    min=0,
                    max=16384,
                    tooltip="In pixels. 0: follows width; both 0: the video's own.",
                ),
                io.Combo.Input(
                    "upscale_method",
                    options=["nearest-exact", "bilinear", "area", "bicubic", "lanczos"],
                    default="lanczos",
                    tooltip="How frames are brought to that size, as in Upscale Image.",
                ),
                io.Combo.Input(
                    "crop",
                    options=["disabled", "center"],
                    default="center",
                    tooltip="center: cut to the new shape first. disabled: stretched to it.",
                ),
                io.Float.Input(
                    "vram_budget_gb",
                    default=0.0,
                    min=0.0,
                    max=1024.0,
                    step=0.1,
                    optional=True,
                    advanced=True,
                    tooltip="What the VAE may need, weights included, in GB of 2^30 bytes. 0: the card's total minus"
                    " the host's reserve.",
                ),
            ],
            outputs=[
                io.Latent.Output(tooltip="As from Get Video Components and the stock encode."),
                io.String.Output("report", display_name="report", tooltip="What was read, and what ran."),
            ],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(
        cls,
        video: Any,
        vae: Any,
        width: int,
        height: int,
        upscale_method: str,
        crop: str,
        vram_budget_gb: float = 0.0,
    ) -> io.NodeOutput:
        resizing = Resizing(width, height, upscale_method, crop)
        samples, report = encode_from_file(vae, Frames(video), resizing, vram_budget_gb)
        return io.NodeOutput({"samples": samples}, report, ui=ui.PreviewText(report))
