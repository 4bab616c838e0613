"""The classes of liger_kernel.megatron."""
from torch import nn

from .. import modules, ops
from ..arguments import refuse
from .losses import LigerVocabParallelCrossEntropy


class LigerMegatronRMSNorm(modules.RMSNorm):
    """With the constructor of Megatron-Core's norms; of the config normalization, sequence_parallel and
    layernorm_zero_centered_gamma are read. zero_centered_gamma: the weight is stored minus 1."""

    def __init__(self, config, hidden_size, eps=1e-5, persist_layer_norm=False, zero_centered_gamma=False,
                 normalization="RMSNorm"):
        kind = getattr(config, "normalization", "RMSNorm")
        if kind != "RMSNorm":
            refuse("LigerMegatronRMSNorm", "config.normalization", repr(kind), "'RMSNorm'")
        centered = bool(zero_centered_gamma or getattr(config, "layernorm_zero_centered_gamma", False))
        super().__init__(hidden_size, eps, 1.0 if centered else 0.0, init="zeros" if centered else "ones")
        self.config, self.zero_centered_gamma = config, centered
        self.weight.sequence_parallel = bool(getattr(config, "sequence_parallel", False))


class LigerMegatronSwiGLU(nn.Module):
    """Called as Megatron's bias_swiglu_impl, with gate and up side by side. What it does not have goes to
    fallback_impl, or is refused where there is none."""

    def __init__(self, fallback_impl=None, in_place=False):
        super().__init__()
        self.fallback_impl = fallback_impl

    def forward(self, input, bias=None, fp8_input_store=False, cpu_offload_input=False):
        if fp8_input_store or cpu_offload_input:
            if self.fallback_impl is None:
                refuse("LigerMegatronSwiGLU", "an input stored in 8 bits or on another device", "wanted",
                       "a fallback_impl, which has it")
            return self.fallback_impl(input, bias, fp8_input_store, cpu_offload_input)
        return ops.swiglu(*(input if bias is None else input + bias).chunk(2, -1))


class LigerMegatronCrossEntropy(LigerVocabParallelCrossEntropy):
    def __init__(self, ignore_index=-100, label_smoothing=0.0, reduction="none", label_smoothing_formula="megatron",
                 label_smoothing_mode="partition"):
        super().__init__(ignore_index, label_smoothing, reduction, label_smoothing_formula, label_smoothing_mode)
