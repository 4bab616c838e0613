"""Liger's layers."""
import torch
from torch import nn

from .. import modules, ops
from ..arguments import refuse
from ..modules import (  # noqa: F401   whose arguments are Liger's
    BlockSparseTop2MLP as LigerBlockSparseTop2MLP, DyT as LigerDyT, Embedding as LigerEmbedding,
    Experts as LigerExperts, FalconH1MLP as LigerFalconH1MLP, FalconH1MLP as LigerFalconH1SwiGLUMLP,
    GEGLUMLP as LigerGEGLUMLP, MultiTokenAttention as LigerMultiTokenAttention,
    NeighborhoodAttention as LigerFusedNeighborhoodAttention,
    NeighborhoodAttentionLayer as LigerFusedNeighborhoodAttentionLayer, Phi3SwiGLUMLP as LigerPhi3SwiGLUMLP,
    ReLUSquared as LigerReLUSquared, Softmax as LigerSoftmax, Sparsemax as LigerSparsemax, SwiGLUMLP as LigerMLP,
    SwiGLUMLP as LigerQwen3MoeSwiGLUMLP, SwiGLUMLP as LigerSwiGLUMLP, SwiGLUMLP as LigerSwiGLUMLPForMuseGlimmer,
    TiledGEGLUMLP as LigerTiledGEGLUMLP, TiledSwiGLUMLP as LigerTiledSwiGLUMLP)


class LigerRMSNorm(modules.RMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=True,
                 row_mode=None, elementwise_affine=True, impl=None, mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, elementwise_affine)


class LigerRMSNormForGemma(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=True,
                 row_mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn)


class LigerRMSNormForGemma2(LigerRMSNormForGemma):
    pass


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma):
    pass


class LigerRMSNormForMuseGlimmerTextCentered(LigerRMSNormForGemma):
    pass


class LigerRMSNormForGemma3(LigerRMSNormForGemma):
    def __init__(self, dim, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros", in_place=False):
        super().__init__(dim, eps, offset, casting_mode, init_fn)


class LigerRMSNormForGemma4(LigerRMSNorm):
    def __init__(self, dim=None, eps=1e-6, offset=0.0, casting_mode="gemma", init_fn="ones", in_place=False,
                 with_scale=True):
        super().__init__(dim, eps, offset, casting_mode, init_fn, elementwise_affine=with_scale)
        self.with_scale = with_scale


class LigerRMSNormForMuseGlimmer(LigerRMSNormForGemma4):
    pass


class LigerRMSNormForOlmo2(LigerRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=False,
                 row_mode=None):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn)


class LigerRMSNormForGlm4(LigerRMSNormForOlmo2):
    pass


class LigerFusedAddRMSNorm(modules.FusedAddRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=False):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn)


class LigerModulatedRMSNorm(modules.ModulatedRMSNorm):
    def __init__(self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones", in_place=True,
                 elementwise_affine=True):
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, elementwise_affine)


def _start(module, init_fn, bias):
    """The parameters as Liger starts them: a bias of random numbers, if it shall not be zeros."""
    (nn.init.ones_ if init_fn == "ones" else nn.init.zeros_)(module.weight)
    (nn.init.normal_ if bias else nn.init.zeros_)(module.bias)


class LigerLayerNorm(modules.LayerNorm):
    def __init__(self, hidden_size, eps=1e-6, bias=False, init_fn="ones", impl=None, mode=None, backend=None):
        super().__init__(hidden_size, eps)
        _start(self, init_fn, bias)


class LigerGroupNorm(modules.GroupNorm):
    def __init__(self, num_channels, num_groups, eps=1e-6, bias=False, init_fn="ones"):
        super().__init__(num_groups, num_channels, eps)
        _start(self, init_fn, bias)


class LigerPolyNorm(modules.PolyNorm):
    def __init__(self, eps=1e-6, in_place=True):
        super().__init__(eps)


class LigerMHC(modules.MHC):
    def __init__(self, layer, *, hc, c, tmax=20, rms_eps=1e-6, pre_eps=0.0, sinkhorn_eps=1e-6, post_mult=2.0,
                 phi_dtype=torch.float16, allow_fp32=False):
        super().__init__(layer, hc=hc, c=c, tmax=tmax, rms_eps=rms_eps, pre_eps=pre_eps, sinkhorn_eps=sinkhorn_eps,
                         post_mult=post_mult, phi_dtype=phi_dtype)


class LigerGEGLUMLPForGemma4(modules.GEGLUMLP):
    """With twice the width in the layers that share keys and values, where the config has use_double_wide_mlp."""

    def __init__(self, config, layer_idx=None):
        shared = getattr(config, "num_kv_shared_layers", 0) or 0
        first = getattr(config, "num_hidden_layers", 0) - shared
        wide = getattr(config, "use_double_wide_mlp", False) and layer_idx is not None and shared > 0 and layer_idx >= first
        super().__init__(config, 2 * config.intermediate_size if wide else None)


class LigerExpertParallelFusedMoe(nn.Module):
    """Without parameters: the weights of this rank's experts are arguments."""

    def __init__(self, process_group=None):
        super().__init__()
        self.process_group = process_group

    def forward(self, hidden_states, expert_indices, expert_weights, all_B, all_C, all_A, num_experts):
        ranks = 1 if self.process_group is None else self.process_group.size()
        if num_experts != ranks * all_A.shape[0]:
            refuse("LigerExpertParallelFusedMoe", "num_experts", num_experts,
                   f"{ranks * all_A.shape[0]}, {all_A.shape[0]} of each rank")
        k = expert_indices.shape[-1]
        return ops.expert_parallel_moe(hidden_states, torch.cat([all_B, all_C], 1), all_A, expert_indices.reshape(-1, k),
                                       expert_weights.reshape(-1, k), self.process_group)


class LigerHunyuanV1SwiGLUMLP(modules.SwiGLUMLP):
    def __init__(self, config, layer_idx=None, is_shared_mlp=False):
        super().__init__(config)
        self.layer_idx = layer_idx
