"""The families of models of transformers that apply() knows: the names of their classes and where they differ."""
from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import re

# Of transformers. Before 5.21 models of Gemma 2 differed; the newest that was tried is in docs/torch.md.
OLDEST = (5, 21)


@dataclasses.dataclass(frozen=True)
class Family:
    """One modeling file of transformers. Names of classes are `prefix` plus what transformers calls the part."""

    module: str  # transformers.models.<module>.modeling_<module>
    prefix: str
    activation: str = "hidden_act"  # the field of the config
    window: str | None = None  # where its attention reads the window that it hands on: the module or the config
    masks: str | None = None  # one mask with the "config"'s window, or one for each type of "layers"
    softcap: bool = False  # its attention has one
    capped: bool = False  # its logits are capped by config.final_logit_softcapping
    sandwich: bool = False  # norms before and after attention and MLP
    packed: bool = False  # query, key and value from one product, gate and up from another
    experts: bool = False

    def load(self):
        """Its module. Raises ImportError for a transformers that is older than what the patches were tried with."""
        version = importlib.metadata.version("transformers")
        if tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", version).groups()) < OLDEST:
            raise ImportError(f"tigon_torch: transformers {version} is older than {OLDEST[0]}.{OLDEST[1]}, before which "
                              "some models gave other results with tigon's operators than without; upgrade it")
        return importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}")

    def names(self, part: str) -> str:
        return self.prefix + part

    def window_of(self):
        if self.window == "module":
            return lambda attention: attention.sliding_window
        if self.window == "config":
            return lambda attention: getattr(attention.config, "sliding_window", None)
        return None

    def softcap_of(self):
        return (lambda attention: attention.attn_logit_softcapping) if self.softcap else None


# By config.model_type.
FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "Llama"),
    "mistral": Family("mistral", "Mistral", window="config", masks="config"),
    "qwen2": Family("qwen2", "Qwen2", window="module", masks="layers"),
    "qwen3": Family("qwen3", "Qwen3", window="module", masks="layers"),
    "gemma": Family("gemma", "Gemma"),
    "gemma2": Family("gemma2", "Gemma2", activation="hidden_activation", window="module", masks="layers", softcap=True,
                     capped=True, sandwich=True),
    "gemma3_text": Family("gemma3", "Gemma3", activation="hidden_activation", window="module", masks="layers",
                          capped=True, sandwich=True),
    "phi3": Family("phi3", "Phi3", window="config", masks="config", packed=True),
    "mixtral": Family("mixtral", "Mixtral", window="config", masks="config", experts=True),
    "qwen2_moe": Family("qwen2_moe", "Qwen2Moe", masks="layers", experts=True),
    "qwen3_moe": Family("qwen3_moe", "Qwen3Moe", window="module", masks="config", experts=True),
}
