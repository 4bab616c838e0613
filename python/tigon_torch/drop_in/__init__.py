"""What liger_kernel.transformers has, by its names and arguments, over tigon_torch: one import is what changes.

    from tigon_torch.drop_in import LigerRMSNorm, LigerFusedLinearCrossEntropyLoss
    from tigon_torch.drop_in.functional import liger_swiglu

What says how Liger's kernels run (in_place, row_mode, impl, mode, backend) is taken and has no effect. Models are patched
by tigon_torch.apply.
"""
from .functional import CrossEntropyOutput  # noqa: F401
from .losses import (  # noqa: F401
    LigerCrossEntropyLoss, LigerFusedCETVDLoss, LigerFusedLinearCosineSimilarityLoss,
    LigerFusedLinearCrossEntropyLoss, LigerFusedLinearJSD, LigerFusedLinearJSDLoss, LigerFusedLinearKLDivLoss,
    LigerJSD, LigerKLDIVLoss, LigerTVDLoss, LigerVocabParallelCrossEntropy)
from .modules import (  # noqa: F401
    LigerBlockSparseTop2MLP, LigerDyT, LigerEmbedding, LigerExpertParallelFusedMoe, LigerExperts, LigerFalconH1MLP, LigerFalconH1SwiGLUMLP,
    LigerFusedAddRMSNorm, LigerFusedNeighborhoodAttention, LigerFusedNeighborhoodAttentionLayer, LigerGEGLUMLP,
    LigerGEGLUMLPForGemma4, LigerGroupNorm, LigerHunyuanV1SwiGLUMLP, LigerLayerNorm, LigerMHC, LigerMLP, LigerModulatedRMSNorm, LigerMultiTokenAttention,
    LigerPhi3SwiGLUMLP, LigerPolyNorm, LigerQwen3MoeSwiGLUMLP, LigerReLUSquared, LigerRMSNorm, LigerRMSNormForGemma,
    LigerRMSNormForGemma2, LigerRMSNormForGemma3, LigerRMSNormForGemma4, LigerRMSNormForGlm4,
    LigerRMSNormForMuseGlimmer, LigerRMSNormForMuseGlimmerTextCentered, LigerRMSNormForOlmo2,
    LigerRMSNormForQwen3Next, LigerSoftmax, LigerSparsemax,
    LigerSwiGLUMLP, LigerSwiGLUMLPForMuseGlimmer, LigerTiledGEGLUMLP, LigerTiledSwiGLUMLP)
from .rotations import (  # noqa: F401
    liger_llama4_text_rotary_pos_emb, liger_llama4_vision_rotary_pos_emb, liger_rotary_pos_emb,
    liger_rotary_pos_emb_gpt_oss, liger_rotary_pos_emb_vision)
