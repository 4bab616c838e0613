"""Functions over torch.ops.tigon, with autograd, fake implementations for torch.compile, and autocast.

Tensors are on the CPU, f32, bf16, f16 or f64. Divergences, policy and preference losses and experts in f16 are computed
in f32 and rounded once; so is every operator on a CPU without AVX2 and F16C. Inputs may have strides: what
lies in rows of one distance, or heads whose elements lie one by one, is not copied. Weights of norms, tables of rope and
biases may have any of the element types (f64 only beside f64). A parameter that does not require a gradient gets None,
and its gradient is not computed. Tables, references, advantages and log-probabilities of the past are constants: they
get no gradients. Gradients of gradients are right through rope, mrope and linear, and refused through the others, as
forward-mode derivatives are. Errors are ValueError or RuntimeError with tigon's sentence.
"""
from .divergences import jsd, kl_div
from .entropies import cross_entropy, fused_linear_cross_entropy
from .experts import moe
from .gates import swiglu, geglu
from .norms import rms_norm, fused_add_rms_norm, layer_norm
from .policy import grpo_loss, fused_linear_grpo
from .preferences import fused_linear_dpo, fused_linear_orpo, fused_linear_simpo, fused_linear_cpo, fused_linear_kto
from .products import attention, linear
from .rotary import rope, mrope

__all__ = ["jsd", "kl_div", "cross_entropy", "fused_linear_cross_entropy", "moe", "swiglu", "geglu", "rms_norm",
           "fused_add_rms_norm", "layer_norm", "grpo_loss", "fused_linear_grpo", "fused_linear_dpo",
           "fused_linear_orpo", "fused_linear_simpo", "fused_linear_cpo", "fused_linear_kto", "attention", "linear",
           "rope", "mrope"]
