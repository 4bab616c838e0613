"""The types of models of transformers that apply() knows, and what a model of each does not say about itself.

What a model is made of is not listed but measured (equal.py): which modules are norms, MLPs, experts, layers and
rotations that tigon's operators equal, in text models and in the vision towers beside them.
"""
from __future__ import annotations

import dataclasses
import importlib

from .versions import installed


@dataclasses.dataclass(frozen=True)
class Family:
    """A type of models. A type with images has the text model of another type inside, which has a row of its own."""

    module: str  # transformers.models.<module>.modeling_<module>
    masks: str | None = None  # one mask (None), one with the "config"'s window, one for each type of "layers", or "own"
    capped: bool = False  # its logits are capped by final_logit_softcapping of the config of the text model
    multiplied: str | None = None  # the field of that config by which they are multiplied before
    attention: str | None = None  # why tigon's attention is not for it

    def load(self):
        """Its module. Raises ImportError for a transformers that is older than what the patches were tried with, or
        that does not have the type yet."""
        version = installed()
        try:
            return importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}")
        except ModuleNotFoundError as error:
            message = f"tigon_torch: transformers {version} has no models of {self.module}; upgrade it"
            raise ImportError(message) from error


# By config.model_type.
FAMILIES: dict[str, Family] = {
    "llama": Family("llama"),
    "mistral": Family("mistral", masks="config"),
    "ministral": Family("ministral", masks="layers"),
    "mixtral": Family("mixtral", masks="config"),
    "smollm3": Family("smollm3", masks="layers"),
    "granite": Family("granite"),
    "phi3": Family("phi3", masks="config"),
    "olmo2": Family("olmo2"),
    "olmo3": Family("olmo3", masks="layers"),
    "exaone4": Family("exaone4", masks="layers"),
    "nemotron": Family("nemotron"),
    "glm4": Family("glm4"),
    "falcon_h1": Family("falcon_h1", masks="own"),
    "gpt_oss": Family("gpt_oss", masks="layers"),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense"),
    "hunyuan_v1_moe": Family("hunyuan_v1_moe"),
    "deepseek_v2": Family("deepseek_v2"),
    "deepseek_v3": Family("deepseek_v3"),
    "deepseek_v4": Family("deepseek_v4", attention="columns are appended to its masks"),
    "gemma": Family("gemma"),
    "gemma2": Family("gemma2", masks="layers", capped=True),
    "gemma3_text": Family("gemma3", masks="layers", capped=True),
    "gemma4_text": Family("gemma4", masks="layers", capped=True),
    "qwen2": Family("qwen2", masks="layers"),
    "qwen2_moe": Family("qwen2_moe", masks="layers"),
    "qwen3": Family("qwen3", masks="layers"),
    "qwen3_moe": Family("qwen3_moe", masks="config"),
    "qwen3_next": Family("qwen3_next", masks="own"),
    "qwen3_5_text": Family("qwen3_5", masks="own"),
    "qwen3_5_moe_text": Family("qwen3_5_moe", masks="own"),
    "llama4_text": Family("llama4", masks="own"),
    "mllama_text_model": Family("mllama"),
    "qwen2_vl_text": Family("qwen2_vl", masks="layers"),
    "qwen2_5_vl_text": Family("qwen2_5_vl", masks="layers"),
    "qwen3_vl_text": Family("qwen3_vl"),
    "qwen3_vl_moe_text": Family("qwen3_vl_moe"),
    "glm4v_text": Family("glm4v"),
    "glm4v_moe_text": Family("glm4v_moe"),
    "muse_glimmer_text": Family("muse_glimmer", masks="layers"),
    # With images. Of `masks` the row of the text model counts.
    "gemma3": Family("gemma3"),
    "gemma4": Family("gemma4", capped=True),
    "paligemma": Family("paligemma", capped=True),
    "llama4": Family("llama4"),
    "mllama": Family("mllama"),
    "llava": Family("llava"),
    "internvl": Family("internvl"),
    "smolvlm": Family("smolvlm"),
    "qwen2_vl": Family("qwen2_vl"),
    "qwen2_5_vl": Family("qwen2_5_vl"),
    "qwen3_vl": Family("qwen3_vl"),
    "qwen3_vl_moe": Family("qwen3_vl_moe"),
    "qwen3_5": Family("qwen3_5"),
    "qwen3_5_moe": Family("qwen3_5_moe"),
    "glm4v": Family("glm4v"),
    "glm4v_moe": Family("glm4v_moe"),
    "muse_glimmer": Family("muse_glimmer", capped=True, multiplied="output_multiplier"),
    "pixtral": Family("pixtral"),
}


def types_of(model_type: str) -> tuple[str, ...]:
    """The type and, for one with images, that of its text model, which a module of transformers has beside it."""
    module = FAMILIES[model_type].module
    return tuple(t for t, family in FAMILIES.items() if family.module == module and t.startswith(model_type))
