"""Functions over torch.ops.tigon, with autograd, fake implementations for torch.compile, and autocast.

Tensors are on the CPU, or on CUDA where an operator has a kernel for it (tigon_torch.backends() says which); f32, bf16,
f16 or f64, and integers for matmul_int8_int2. f16 in operators that are not compiled for it (docs/torch.md has which)
is computed in f32 and rounded once; so is every operator on a CPU without AVX2 and F16C. Inputs may have strides: what
lies in rows of one distance, or heads whose elements lie one by one, is not copied. Weights of norms, tables of rope
and biases may have any of the element types (f64 only beside f64). A parameter that does not require a gradient gets
None, and its gradient is not computed. Tables, references, advantages and log-probabilities of the past are constants:
they get no gradients. Gradients of gradients are right through rope, mrope and linear, and refused through the others,
as forward-mode derivatives are. Errors are ValueError or RuntimeError with tigon's sentence.
"""
from .activations import embedding, relu_squared, softmax, sparsemax
from .depth import attn_res, mhc_apply, mhc_coeffs, mhc_forward, mhc_post_res, mhc_pre
from .distillations import (
    fused_linear_cosine_distillation, fused_linear_jsd, fused_linear_jsd_distillation, fused_linear_kl_div)
from .divergences import cross_entropy_jsd, cross_entropy_tvd, CrossEntropyDivergenceOutput, jsd, kl_div, tvd
from .entropies import (
    cross_entropy, CrossEntropyOutput, fused_linear_cross_entropy, fused_linear_scaled_cross_entropy)
from .experts import expert_parallel_moe, moe, moe_router
from .gates import geglu, swiglu
from .heads import multi_token_attention, neighborhood_attention, qk_norm_rope
from .integers import matmul_int8_int2, pack_weights, unpack_weights
from .mlp import tiled_mlp
from .norms import dyt, fused_add_rms_norm, group_norm, layer_norm, modulated_rms_norm, poly_norm, rms_norm
from .policy import fused_linear_grpo, grpo_loss, selective_log_softmax
from .preferences import fused_linear_cpo, fused_linear_dpo, fused_linear_kto, fused_linear_orpo, fused_linear_simpo
from .products import attention, linear
from .ranks import (
    logprobs, vocab_parallel_cross_entropy, vocab_parallel_fused_linear_cross_entropy,
    vocab_parallel_scaled_cross_entropy)
from .rotary import mrope, rope

__all__ = ["embedding", "relu_squared", "softmax", "sparsemax", "attn_res", "mhc_apply", "mhc_coeffs", "mhc_forward",
           "mhc_post_res", "mhc_pre", "fused_linear_cosine_distillation", "fused_linear_jsd",
           "fused_linear_jsd_distillation", "fused_linear_kl_div", "cross_entropy_jsd", "cross_entropy_tvd",
           "CrossEntropyDivergenceOutput", "jsd", "kl_div", "tvd", "cross_entropy",
           "CrossEntropyOutput", "fused_linear_cross_entropy", "fused_linear_scaled_cross_entropy", "logprobs",
           "expert_parallel_moe", "moe", "moe_router", "geglu", "swiglu", "multi_token_attention",
           "neighborhood_attention", "qk_norm_rope", "matmul_int8_int2", "pack_weights", "unpack_weights", "tiled_mlp",
           "dyt", "fused_add_rms_norm", "group_norm",
           "layer_norm", "modulated_rms_norm", "poly_norm", "rms_norm", "fused_linear_grpo", "grpo_loss",
           "selective_log_softmax", "fused_linear_cpo", "fused_linear_dpo", "fused_linear_kto", "fused_linear_orpo",
           "fused_linear_simpo", "attention", "linear", "vocab_parallel_cross_entropy",
           "vocab_parallel_fused_linear_cross_entropy", "vocab_parallel_scaled_cross_entropy", "mrope", "rope"]
