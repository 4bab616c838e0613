"""A small random model of every type that tigon_torch.apply knows, and a batch, with images where it takes them."""
from __future__ import annotations

import torch
import transformers
from conftest import CONFIGS, EXPERTS, OLD, SIZE, VOCAB, batch, randomised, with_soft_cap

# transformers 5.24 reads this field of an output that does not have it, so that no model of Llama 4 with images runs.
if not hasattr(transformers.modeling_outputs.MoeCausalLMOutputWithPast, "image_outputs"):
    transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None

IMAGE = VOCAB - 1  # the token that stands for a part of an image
TEXT = {**SIZE, "head_dim": 16}
WINDOWS = dict(sliding_window=12, layer_types=["sliding_attention", "full_attention"])
HALF = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)
# Sections of the angles of time, height and width.
SECTIONS = dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3])
HALF_SECTIONS = {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
MIXED = {"sliding_attention": dict(rope_type="default", rope_theta=1e4),
         "full_attention": dict(rope_type="default", rope_theta=1e5)}
LINEAR = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4)
MAMBA = dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=8)
ROUTED = dict(n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, num_experts_per_tok=2,
              moe_intermediate_size=48)
LATENT = dict({**SIZE, "num_key_value_heads": 4}, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
              qk_rope_head_dim=8, v_head_dim=16)
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16,
              patch_size=4)
QWEN_VISION = dict(depth=2, hidden_size=32, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)


def _without(names, **config):
    return {name: value for name, value in config.items() if name not in names}


# By type, the class of its config and the fields that make its peculiarities show in so small a model.
TEXTS = {
    "ministral": ("MinistralConfig", dict(**TEXT, **WINDOWS)),
    "smollm3": ("SmolLM3Config", dict(**SIZE, no_rope_layers=[1, 0])),
    "granite": ("GraniteConfig", dict(**SIZE, logits_scaling=4.0, residual_multiplier=0.5, embedding_multiplier=3.0,
                                      attention_multiplier=0.3)),
    "olmo2": ("Olmo2Config", SIZE),
    "olmo3": ("Olmo3Config", dict(**SIZE, **WINDOWS)),
    "exaone4": ("Exaone4Config", dict(**TEXT, **WINDOWS)),
    "nemotron": ("NemotronConfig", dict(**TEXT, rope_parameters=HALF)),
    "glm4": ("Glm4Config", dict(**TEXT, rope_parameters=HALF)),
    "falcon_h1": ("FalconH1Config", dict(**SIZE, **MAMBA, mlp_multipliers=[0.7, 1.4], lm_head_multiplier=0.5,
                                         key_multiplier=0.8)),
    "gpt_oss": ("GptOssConfig", dict(**TEXT, **WINDOWS, num_local_experts=4, num_experts_per_tok=2)),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", TEXT),
    "hunyuan_v1_moe": ("HunYuanMoEV1Config", dict(**TEXT, num_experts=4, moe_topk=2)),
    "deepseek_v2": ("DeepseekV2Config", dict(**LATENT, **ROUTED, first_k_dense_replace=1, topk_method="greedy")),
    "deepseek_v3": ("DeepseekV3Config", dict(**LATENT, **ROUTED, first_k_dense_replace=1, rope_interleave=False)),
    "deepseek_v4": ("DeepseekV4Config", dict(
        **_without(["num_key_value_heads"], **TEXT), q_lora_rank=32, o_lora_rank=16, o_groups=2, **ROUTED, hc_mult=2,
        layer_types=["sliding_attention", "heavily_compressed_attention"], sliding_window=12, num_hash_layers=0)),
    "gemma4_text": ("Gemma4TextConfig", dict(**TEXT, **WINDOWS, final_logit_softcapping=3.0,
                                             hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB)),
    "qwen3_next": ("Qwen3NextConfig", dict(**TEXT, **LINEAR, **_without(["head_dim"], **EXPERTS),
                                           shared_expert_intermediate_size=48, rope_parameters=HALF)),
    "qwen3_5_text": ("Qwen3_5TextConfig", dict(**TEXT, **LINEAR, rope_parameters=HALF_SECTIONS)),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", dict(
        **_without(["intermediate_size"], **TEXT), **LINEAR, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=48, shared_expert_intermediate_size=48, rope_parameters=HALF_SECTIONS)),
    "llama4_text": ("Llama4TextConfig", dict(**TEXT, intermediate_size_mlp=96, num_local_experts=4, moe_layers=[1],
                                             no_rope_layers=[1, 0], attention_chunk_size=16)),
    "mllama_text_model": ("MllamaTextConfig", dict(**_without(["num_hidden_layers"], **SIZE), num_hidden_layers=3,
                                                   cross_attention_layers=[1])),
    "qwen2_vl_text": ("Qwen2VLTextConfig", dict(**SIZE, rope_parameters=SECTIONS)),
    "qwen2_5_vl_text": ("Qwen2_5_VLTextConfig", dict(**SIZE, rope_parameters=SECTIONS)),
    "qwen3_vl_text": ("Qwen3VLTextConfig", dict(**TEXT, rope_parameters=SECTIONS)),
    "qwen3_vl_moe_text": ("Qwen3VLMoeTextConfig", dict(**TEXT, rope_parameters=SECTIONS, num_experts=4,
                                                       num_experts_per_tok=2, moe_intermediate_size=48)),
    "glm4v_text": ("Glm4vTextConfig", dict(**SIZE, rope_parameters=HALF_SECTIONS)),
    "glm4v_moe_text": ("Glm4vMoeTextConfig", dict(**SIZE, **ROUTED, first_k_dense_replace=1,
                                                  rope_parameters=HALF_SECTIONS)),
    "muse_glimmer_text": ("MuseGlimmerTextConfig", dict(**TEXT, **WINDOWS, final_logit_softcapping=3.0,
                                                        layer_rope_theta=[1e4, 0.0])),
    "pixtral": ("PixtralVisionConfig", dict(VISION, head_dim=16)),
}
SIGLIP = "siglip_vision_model", VISION
CLIP = "clip_vision_model", dict(VISION, projection_dim=32)

# By type, the class of its config, the text model inside it, the vision tower and what else the config says.
IMAGES = {
    "gemma3": ("Gemma3Config", "gemma3_text", SIGLIP, dict(mm_tokens_per_image=4, image_token_index=IMAGE,
                                                           boi_token_index=VOCAB - 2, eoi_token_index=VOCAB - 3)),
    "gemma4": ("Gemma4Config", "gemma4_text", ("gemma4_vision", dict(
        _without(["image_size"], **VISION), num_key_value_heads=2, head_dim=16, pooling_kernel_size=2,
        position_embedding_size=64)), dict(image_token_id=IMAGE, audio_config=None, video_token_id=VOCAB - 2)),
    "paligemma": ("PaliGemmaConfig", "gemma2", SIGLIP, dict(image_token_index=IMAGE, projection_dim=64)),
    "llama4": ("Llama4Config", "llama4_text", ("llama4_vision_model", dict(
        _without(["intermediate_size"], **VISION), intermediate_size=128, vision_output_dim=32, projector_input_dim=32,
        projector_output_dim=32, pixel_shuffle_ratio=0.5)),
        dict(image_token_index=IMAGE)),
    "mllama": ("MllamaConfig", "mllama_text_model", ("mllama_vision_model", dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_global_layers=1, attention_heads=2,
        image_size=16, patch_size=4, vision_output_dim=64, intermediate_layers_indices=[0], max_num_tiles=1,
        supported_aspect_ratios=[[1, 1]])), dict(image_token_index=IMAGE)),
    "llava": ("LlavaConfig", "llama", CLIP, dict(image_token_index=IMAGE, vision_feature_layer=-1,
                                                 vision_feature_select_strategy="default")),
    "internvl": ("InternVLConfig", "qwen2", ("internvl_vision", dict(
        VISION, image_size=[16, 16], patch_size=[4, 4], use_qk_norm=True, norm_type="rms_norm")),
        dict(image_token_id=IMAGE, image_seq_length=4)),
    "smolvlm": ("SmolVLMConfig", "llama", ("smolvlm_vision", VISION), dict(image_token_id=IMAGE, scale_factor=2)),
    "muse_glimmer": ("MuseGlimmerConfig", "muse_glimmer_text", ("muse_glimmer_vision", dict(
        _without(["image_size"], **VISION), pos_emb_height=4, pos_emb_width=4, max_position_embeddings=16,
        layer_types=["full_attention", "window_attention"])),
        dict(image_token_id=IMAGE, video_token_id=VOCAB - 2, out_hidden_size=128, projector_hidden_size=64)),
    "qwen2_vl": ("Qwen2VLConfig", "qwen2_vl_text", ("qwen2_vl_vision", dict(
        _without(["hidden_size"], **QWEN_VISION), embed_dim=32, hidden_size=64, mlp_ratio=2)),
        dict(image_token_id=IMAGE, video_token_id=VOCAB - 2)),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", "qwen2_5_vl_text", ("qwen2_5_vl_vision", dict(
        QWEN_VISION, intermediate_size=48, out_hidden_size=64, fullatt_block_indexes=[1], window_size=8)),
        dict(image_token_id=IMAGE, video_token_id=VOCAB - 2)),
    **{name: (kind, f"{name}_text", (f"{name}_vision", dict(
        QWEN_VISION, intermediate_size=48, out_hidden_size=64, num_position_embeddings=16, **more)),
        dict(image_token_id=IMAGE, video_token_id=VOCAB - 2, vision_start_token_id=VOCAB - 3))
       for name, kind, more in (("qwen3_vl", "Qwen3VLConfig", dict(deepstack_visual_indexes=[0])),
                                ("qwen3_vl_moe", "Qwen3VLMoeConfig", dict(deepstack_visual_indexes=[0])),
                                ("qwen3_5", "Qwen3_5Config", {}), ("qwen3_5_moe", "Qwen3_5MoeConfig", {}))},
    **{name: (kind, f"{name}_text", (f"{name}_vision", dict(QWEN_VISION, image_size=16, intermediate_size=48,
                                                            out_hidden_size=64)),
              dict(image_token_id=IMAGE, video_token_id=VOCAB - 2, image_start_token_id=VOCAB - 3,
                   image_end_token_id=VOCAB - 4, video_start_token_id=VOCAB - 5, video_end_token_id=VOCAB - 6))
       for name, kind in (("glm4v", "Glm4vConfig"), ("glm4v_moe", "Glm4vMoeConfig"))},
}


def _as_before_5(fields: dict) -> dict:
    """Fields of a config under the names that transformers 4 has for them."""
    rope = dict(fields.pop("rope_parameters", {}))
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            fields[name] = rope.pop(name)
    if "mrope_section" in rope or "cross_attention_layers" in fields:  # Mllama looks at the type
        fields["rope_scaling"] = {"rope_type": "default", **rope}
    return fields


def config_of(kind: str):
    """The config of a model of this type, made from a table above or from the suite's own."""
    if kind in TEXTS:
        name, fields = TEXTS[kind]
        where = transformers.models.mllama.configuration_mllama if kind == "mllama_text_model" else transformers
        cls = getattr(where, name)
        return cls(**_as_before_5(dict(fields)) if OLD else fields)
    if kind in CONFIGS:
        return CONFIGS[kind]()
    name, text, (tower, fields), more = IMAGES[kind]
    vision = {**fields, "model_type": tower}
    return getattr(transformers, name)(text_config=config_of(text).to_dict(), vision_config=vision, **more)


class WithoutHead(torch.nn.Module):
    """A model that has no loss, with one: the text models of types with images, and vision towers."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, labels=None, **inputs):
        hidden = self.model(**inputs).last_hidden_state
        wave = torch.sin(torch.arange(hidden.shape[-1], device=hidden.device, dtype=hidden.dtype))
        return transformers.modeling_outputs.CausalLMOutput(loss=((hidden - wave) ** 2).mean(), logits=hidden)


def model_of(kind: str, experts: int | None):
    """A model of this type with a head, or without one where transformers has none."""
    config = config_of(kind)
    for name in ("num_experts_per_tok", "moe_topk", "top_k_experts"):
        if experts is not None and hasattr(config.get_text_config(), name):
            setattr(config.get_text_config(), name, experts)
    with_soft_cap(config)
    if kind in IMAGES:
        return transformers.AutoModelForImageTextToText.from_config(config)
    if kind == "mllama_text_model":
        return transformers.MllamaForCausalLM(config)
    if type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM.from_config(config)
    return transformers.AutoModel.from_config(config)


def of_type(kind: str, dtype=torch.float32, experts: int | None = None):
    """A small random model. `experts`: how many are chosen."""
    torch.manual_seed(0)
    return randomised(model_of(kind, experts), dtype)


def batch_of(kind: str, seed: int = 1, rows: int = 2, seq: int = 24):
    """Tokens and labels, and an image in every row where the type takes images."""
    g = torch.Generator().manual_seed(100 + seed)

    def pixels(*shape):
        return torch.randn(*shape, generator=g)

    if kind == "pixtral":
        return dict(pixel_values=pixels(rows, 3, 16, 16), image_sizes=torch.tensor([[16, 16], [12, 16]][:rows]))
    inputs = batch(seed, rows, seq)
    inputs["input_ids"].clamp_(max=VOCAB - 10)
    inputs["labels"].clamp_(max=VOCAB - 10)
    if kind not in IMAGES or kind == "mllama":
        more = {}
        if kind == "mllama":
            more = dict(pixel_values=pixels(rows, 1, 1, 3, 16, 16), aspect_ratio_ids=torch.ones(rows, 1).long(),
                        aspect_ratio_mask=torch.ones(rows, 1, 1).long(),
                        cross_attention_mask=torch.ones(rows, seq, 1, 1).long())
        return {**inputs, **more}
    count = {"llava": 16, "smolvlm": 4, "llama4": 4, "paligemma": 16}.get(kind, 4)
    where = slice(2, 2 + count)
    inputs["input_ids"][:, where], inputs["labels"][:, where] = IMAGE, -100
    types = (inputs["input_ids"] == IMAGE).long()
    if kind.startswith(("qwen", "glm4v", "muse")):
        inputs.update(pixel_values=pixels(rows * 16, 3 * 2 * 4 * 4), image_grid_thw=torch.tensor([[1, 4, 4]] * rows))
        return inputs if kind == "muse_glimmer" else dict(**inputs, mm_token_type_ids=types)
    if kind == "gemma4":
        at = torch.cartesian_prod(torch.arange(4), torch.arange(4))[None].repeat(rows, 1, 1)
        return dict(**inputs, pixel_values=pixels(rows, 16, 3 * 4 * 4), image_position_ids=at, mm_token_type_ids=types)
    if kind in ("gemma3", "paligemma"):
        inputs["token_type_ids"] = types if kind == "gemma3" else torch.zeros_like(types)
    if kind == "smolvlm":
        return dict(**inputs, pixel_values=pixels(rows, 1, 3, 16, 16))
    return dict(**inputs, pixel_values=pixels(rows, 3, 16, 16))
