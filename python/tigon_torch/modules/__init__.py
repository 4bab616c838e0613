"""Modules over tigon_torch.ops: what one builds a model of. Their state dictionaries have the names of their
counterparts in torch or transformers, and load those."""
from .activations import Embedding, ReLUSquared, Softmax, Sparsemax
from .attention import MultiTokenAttention, NeighborhoodAttention, NeighborhoodAttentionLayer
from .hyper_connections import MHC
from .mlps import (
    BlockSparseTop2MLP, Experts, FalconH1MLP, GEGLUMLP, Phi3SwiGLUMLP, SwiGLUMLP, TiledGEGLUMLP, TiledSwiGLUMLP,
    TopkRouter)
from .norms import (
    DyT, FusedAddRMSNorm, GroupNorm, LayerNorm, ModulatedRMSNorm, PolyNorm, RMSNorm, RMSNormForGemma)

__all__ = ["Embedding", "ReLUSquared", "Softmax", "Sparsemax", "MultiTokenAttention", "NeighborhoodAttention",
           "NeighborhoodAttentionLayer", "MHC", "BlockSparseTop2MLP", "Experts", "FalconH1MLP", "GEGLUMLP",
           "Phi3SwiGLUMLP", "SwiGLUMLP", "TiledGEGLUMLP", "TiledSwiGLUMLP", "TopkRouter", "DyT", "FusedAddRMSNorm",
           "GroupNorm", "LayerNorm", "ModulatedRMSNorm", "PolyNorm", "RMSNorm", "RMSNormForGemma"]
