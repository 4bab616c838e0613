"""liger_rotary_pos_emb and its relatives."""
import torch

from .. import ops
from ..arguments import refuse


def expect_heads_before_tokens(op, cos, unsqueeze_dim):
    """Tables [seq, d] are those of all heads also where they get an axis in front, as Pixtral's do."""
    if unsqueeze_dim != 1 and not (unsqueeze_dim == 0 and cos.dim() == 2):
        refuse(op, "unsqueeze_dim", unsqueeze_dim, "1, heads before tokens")


def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    expect_heads_before_tokens("liger_rotary_pos_emb", cos, unsqueeze_dim)
    return ops.rope(q, k, cos, sin, rotary_dim)


def liger_rotary_pos_emb_gpt_oss(q, k, cos, sin):
    """The tables have a column for each pair."""
    return ops.rope(q, k, cos, sin, q.shape[-1])


def liger_rotary_pos_emb_vision(q, k, cos, sin):
    """q and k [seq, heads, d]"""
    q_out, k_out = ops.rope(q[None].transpose(1, 2), k[None].transpose(1, 2), cos, sin)
    return q_out.transpose(1, 2)[0], k_out.transpose(1, 2)[0]


def liger_llama4_text_rotary_pos_emb(xq, xk, freqs_cis):
    """xq and xk [batch, seq, heads, d], neighbours rotated; freqs_cis complex [1 or batch, seq, d / 2]."""
    cos, sin = freqs_cis.real, freqs_cis.imag
    q, k = ops.rope(xq.transpose(1, 2), xk.transpose(1, 2), cos, sin, xq.shape[-1], pairs="neighbours")
    return q.transpose(1, 2), k.transpose(1, 2)


def liger_llama4_vision_rotary_pos_emb(query, key, freqs_ci):
    """The same with frequencies [seq, 1, d / 2], [seq, d / 2] or with an axis of batch in front; real ones, which a
    cast of the model makes, have no imaginary part."""
    if not torch.is_complex(freqs_ci):
        freqs_ci = torch.complex(freqs_ci.float(), torch.zeros_like(freqs_ci, dtype=torch.float32))
    if freqs_ci.dim() > 2:
        freqs_ci = freqs_ci.squeeze(-2)
    return liger_llama4_text_rotary_pos_emb(query, key, freqs_ci)
