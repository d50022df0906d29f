"""What a dry run does with nodes, by their class names: tables alone.

Samplers, guiders and what decodes and encodes are in graph/kinds.py. What stands in none of them is not followed.
"""

from __future__ import annotations

from ...graph.kinds import COMPARE, ESTIMATE, GUIDERS, REPORT, TRAINING_ESTIMATE
from .steps import OF_STEPS

LOADERS = (
    "CheckpointLoaderSimple", "UNETLoader", "VAELoader", "CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader",
    "QuadrupleCLIPLoader", "CLIPVisionLoader", "ControlNetLoader", "DiffControlNetLoader", "ModelPatchLoader",
    "LTXAVTextEncoderLoader", "LTXVAudioVAELoader", "LatentUpscaleModelLoader",
)  # fmt: skip
# Nodes whose first outputs are inputs of the same name: what they do changes no shape.
SAME = {
    "LoraLoader": ("model", "clip"), "LoraLoaderModelOnly": ("model",), REPORT: ("anything",),
    ESTIMATE: ("samples",), TRAINING_ESTIMATE: ("model",), COMPARE: (), "SaveLoRA": (), "LossGraphNode": (),
    "LoraModelLoader": ("model",), "HeadroomLocalAttention": ("model",),
    # Newer hosts hand on what is saved and shown.
    "SaveImage": ("images",), "PreviewImage": ("images",), "SaveLatent": (),
    "SaveAnimatedWEBP": ("images",), "SaveAnimatedPNG": ("images",), "SaveWEBM": ("images",), "SaveVideo": ("video",),
    "SaveImageAdvanced": ("images",), "ImageCompare": (), "SaveText": ("text",), "SaveGLB": (), "Preview3D": (),
    "SaveAudio": ("audio",),
    "SaveAudioMP3": ("audio",), "SaveAudioOpus": ("audio",), "SaveAudioAdvanced": ("audio",),
    "PreviewAudio": ("audio",), "MaskPreview": ("mask",), "Note": (),
    "Canny": ("image",), "ImageQuantize": ("image",), "ImageBlur": ("image",), "ImageSharpen": ("image",),
    "NormalizeImages": ("images",), "AdjustBrightness": ("images",), "AdjustContrast": ("images",),
    "GrowMask": ("mask",), "DrawBBoxes": ("image",), "LatentApplyOperation": ("samples",),
    "LatentApplyOperationCFG": ("model",),
    "MarkdownNote": (),
}  # fmt: skip
# Settings of a sampler, which no memory depends on.
SETTINGS = (
    *OF_STEPS, "LatentOperationTonemapReinhard", "RandomNoise", "DisableNoise", "CurveEditor", "ImageHistogram",
)  # fmt: skip
TEXT = (
    "CLIPTextEncode", "CLIPTextEncodeFlux", "CLIPTextEncodeSDXL", "CLIPTextEncodeSDXLRefiner", "CLIPTextEncodeSD3",
    "CLIPTextEncodeHiDream", "CLIPTextEncodeHunyuanDiT", "CLIPTextEncodeLumina2", "TextEncodeQwenImageEdit",
    "TextEncodeQwenImageEditPlus", "TextEncodeMageFlowEdit", "TextEncodeBooguEdit", "TextEncodeJoyImageEdit",
    "MiniMaxH3ImageToVideo", "MiniMaxH3ReferenceToVideo", "TextEncodeAceStepAudio",
)  # fmt: skip
SONG = ("TextEncodeAceStepAudio1.5",)  # text encoders that may sketch the sound as well
WRITES = ("TextGenerate", "TextGenerateLTX2Prompt")  # text encoders that write
VISION, DUAL_GUIDER, TWO_MODELS = "CLIPVisionEncode", "DualCFGGuider", "DualModelGuider"
BY_BLOCKS, TRACKS = "SamplerARVideo", "GenerateTracks"
APART = PICTURE, SIZE, PAINTER, ZEROS = "LoadImage", "GetImageSize", "Painter", "ConditioningZeroOut"
# Nodes that are run as they are: they make, cut and describe tensors, and patch models.
PLAIN = (
    "EmptyLatentImage", "EmptySD3LatentImage", "EmptyFlux2LatentImage", "EmptyHunyuanLatentVideo",
    "EmptyHunyuanVideo15Latent", "EmptyHunyuanImageLatent", "EmptyLTXVLatentVideo", "EmptyMochiLatentVideo",
    "EmptyCosmosLatentVideo", "EmptyQwenImageLayeredLatentImage", "EmptyChromaRadianceLatentImage", "EmptyImage",
    "LatentUpscale", "LatentUpscaleBy", "LatentFromBatch", "RepeatLatentBatch", "LatentBatch", "LatentFlip",
    "LatentRotate", "LatentCrop", "ImageScale", "ImageScaleBy", "ImageBatch", "CLIPSetLastLayer",
    "ConditioningCombine", "ConditioningConcat", "ConditioningAverage", "FluxGuidance",
    "ConditioningSetTimestepRange", "LTXVConditioning", "ModelSamplingFlux", "ModelSamplingSD3",
    "ModelSamplingAuraFlow", "ModelSamplingDiscrete", "ModelSamplingContinuousEDM", "ModelSamplingLTXV",
    "PreviewAny", "PrimitiveInt", "PrimitiveFloat", "PrimitiveString", "PrimitiveBoolean", "HeadroomAttention",
    "HeadroomOffload", "HeadroomTraining", "HeadroomCast", "HeadroomCastCLIP", "PrimitiveStringMultiline",
    "StringConcatenate", "StringSubstring", "StringLength", "CaseConverter", "StringTrim", "StringReplace",
    "RegexExtract", "RegexReplace", "JsonExtractString", "ComfyMathExpression", "ComfyNumberConvert", "CustomCombo",
    "ResolutionSelector", "ComfySwitchNode", "ComfySoftSwitchNode", "ImageScaleToTotalPixels",
    "ImageScaleToMaxDimension", "ResizeImageMaskNode", "ResizeImagesByLongerEdge", "FluxKontextImageScale",
    "ImageFromBatch", "RepeatImageBatch", "ImageStitch", "ImagePadForOutpaint", "ImageCrop", "JoinImageWithAlpha",
    "BatchImagesNode", "LTXVPreprocess", "CFGNorm", "CFGZeroStar", "DifferentialDiffusion", "ReferenceLatent",
    "FluxKontextMultiReferenceLatentMethod", "ImageInvert", "ImageBlend", "ImageCompositeMasked", "ImageFlip",
    "ImageRotate", "ImageToMask", "MaskToImage", "InvertMask", "SolidMask", "CropMask", "MaskComposite", "FeatherMask",
    "ThresholdMask", "SplitImageWithAlpha", "LatentComposite", "LatentCompositeMasked", "LatentAdd", "LatentSubtract",
    "LatentMultiply", "LatentInterpolate", "LatentBlend", "LatentConcat", "ConditioningSetArea",
    "ConditioningSetAreaPercentage", "ConditioningSetAreaStrength", "ConditioningSetMask", "StringCompare",
    "ResizeAndPadImage", "ColorToRGBInt", "ChromaRadianceOptions", "SkipLayerGuidanceDiT", "SkipLayerGuidanceDiTSimple",
    "UNetTemporalAttentionMultiply", "ScaleROPE", "ModelNoiseScale", "EmptyHiDreamO1LatentImage",
    "NormalizeVideoLatentStart", "ReplaceVideoLatentFrames", "LotusConditioning", "unCLIPConditioning",
    "VideoLinearCFGGuidance", "VideoTriangleCFGGuidance", "WanCameraEmbedding", "LTXVCropGuides", "CFGOverride",
    "PiDConditioning", "FluxKVCache", "WanMoveConcatTrack", "HiDreamO1ReferenceImages", "HiDreamO1PatchSeamSmoothing",
    "EmptyARVideoLatent", "EmptyMiniMaxH3LatentAV", "MiniMaxH3SigmaShift",
    "SetLatentNoiseMask", "TrimVideoLatent", "LatentCut", "LatentCutToBatch", "T5TokenizerOptions",
    "ControlNetApply", "SetUnionControlNetType", "AnimaLLLiteApply", "USOStyleReference", "EmptyAudio",
    "EmptyLatentHunyuan3Dv2", "Hunyuan3Dv2Conditioning", "Hunyuan3Dv2ConditioningMultiView",
    "EmptyLatentAudio", "EmptyAceStepLatentAudio", "EmptyAceStep1.5LatentAudio", "ConditioningStableAudio",
    "ReferenceTimbreAudio", "TrimAudioDuration", "SplitAudioChannels", "JoinAudioChannels",
    "LTXVEmptyLatentAudio", "LTXVConcatAVLatent", "LTXVSeparateAVLatent",
    "SeedVR2Preprocess", "SeedVR2Conditioning", "ModelAttentionBackend",
)  # fmt: skip

# Nodes that are run as they are, but for the VAE with which they encode pictures: what that takes is a stage.
ENCODING = (
    "InpaintModelConditioning", "InstructPixToPixConditioning", "WanImageToVideo", "WanFirstLastFrameToVideo",
    "WanFunControlToVideo", "WanFunInpaintToVideo", "Wan22FunControlToVideo", "WanVaceToVideo", "WanCameraImageToVideo",
    "Wan22ImageToVideoLatent", "HunyuanVideo15ImageToVideo", "HunyuanImageToVideo", "Kandinsky5ImageToVideo",
    "WanTrackToVideo", "WanMoveTrackToVideo", "LTXVImgToVideo", "LTXVAddGuide",
    "CosmosImageToVideoLatent", "CosmosPredict2ImageToVideoLatent", "QwenImageDiffsynthControlnet",
    "ZImageFunControlnet", "ControlNetApplyAdvanced", "ControlNetApplySD3", "ControlNetInpaintingAliMamaApply",
    "WanSoundImageToVideo", "WanSoundImageToVideoExtend", "WanHuMoImageToVideo", "BerniniConditioning", "ARVideoI2V",
    "WanSCAILToVideo", "WanDancerVideo", "LTXVImgToVideoInplace", "MiniMaxH3AddGuide",
)  # fmt: skip

# Nodes that are not followed, and take no memory of a card to speak of: pictures, masks, sound, words, choices.
NEUTRAL = (
    "RebatchImages", "LoadImageMask", "LoadImageOutput", "RebatchLatents", "LoadLatent", "LoadAudio", "Video Slice",
    "CreateVideo", "LoadVideo", "GetVideoComponents", "AudioConcat", "AudioMerge",
    "AudioAdjustVolume", "AudioEqualizer3Band",
)  # fmt: skip


def is_neutral(kind: str) -> bool:
    """Whether a node by itself takes no memory of a card. Ours decide what others take."""
    plain = (*SAME, *SETTINGS, *GUIDERS, DUAL_GUIDER, TWO_MODELS, TRACKS, *PLAIN, *APART, *NEUTRAL)
    return kind in plain and not kind.startswith("Headroom")
