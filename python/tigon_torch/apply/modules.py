"""Forwards of single modules: norms, gated MLPs, experts, rotary attention, decoder layers, linear layers.

Each name ending in _forward makes a function of the module that it becomes a method of (patch.Forward). That hands the
call to the class's own forward wherever its operator would not give what that gives.
"""
from __future__ import annotations

import functools
import sys

import torch
import torch.nn.functional as F

from .. import ops
from .cache import takes_cache
from .recompute import instead_of


def _on_cpu(x: torch.Tensor) -> bool:
    return x.device.type == "cpu"


def rms_norm_facts(norm) -> tuple[float, float, str]:
    """eps, offset and casting of an RMS norm of transformers: Gemma's multiplies by 1 + w before it rounds."""
    gemma = type(norm).__name__.startswith("Gemma")
    return (norm.eps, 1.0, "gemma") if gemma else (norm.variance_epsilon, 0.0, "llama")


def _norm_fits(norm, x: torch.Tensor) -> bool:
    # Llama's norm of another type than its weight's returns the wider of the two.
    return _on_cpu(x) and x.dtype == norm.weight.dtype


def rms_norm_forward():
    def forward(self, hidden_states):
        if not _norm_fits(self, hidden_states):
            return type(self).forward(self, hidden_states)
        return ops.rms_norm(hidden_states, self.weight, *rms_norm_facts(self))

    return forward


def _made_by(norm, x, recompute: bool, result):
    """The context in which the norm of x is not kept, if the norm is tigon's."""
    tigons = recompute and norm.__dict__.get("forward") is not None and _norm_fits(norm, x)
    facts = rms_norm_facts(norm) if tigons else ()
    return instead_of(tigons, result, lambda x, weight: ops.rms_norm(x, weight, *facts), x, norm.weight)


def add_and_norm(x, residual, norm):
    """(norm(x + residual), x + residual)"""
    hooked = norm._forward_hooks or norm._forward_pre_hooks
    if not _norm_fits(norm, x) or residual.dtype != x.dtype or hooked:
        total = residual + x
        return norm(total), total
    return ops.fused_add_rms_norm(x, residual, norm.weight, *rms_norm_facts(norm))


def _checkpointing(forward):
    """With gradient checkpointing, if it is on: transformers wraps the forward of the class, which this one replaces."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    if "__call__" in vars(GradientCheckpointingLayer):  # transformers that checkpoint around forward
        return forward

    @functools.wraps(forward)
    def checkpointed(self, *args, **kwargs):
        if not (getattr(self, "gradient_checkpointing", False) and self.training and torch.is_grad_enabled()):
            return forward(self, *args, **kwargs)
        # A cache would be written a second time in backward.
        without = {name: None for name in ("cache", "layer_past") if kwargs.get(name) is not None}
        if kwargs.get("use_cache"):
            without["use_cache"] = False
        return self._gradient_checkpointing_func(functools.partial(forward, self, **{**kwargs, **without}), *args)

    return checkpointed


def layer_forward(recompute: bool):
    """Llama's decoder layer: the sum after attention and the norm of it are one operator."""

    def forward(self, hidden_states, **kwargs):
        x = self.input_layernorm(hidden_states)
        with _made_by(self.input_layernorm, hidden_states, recompute, x):
            x, _ = self.self_attn(hidden_states=x, **kwargs)
        x, residual = add_and_norm(x, hidden_states, self.post_attention_layernorm)
        with _made_by(self.post_attention_layernorm, residual, recompute, x):
            x = self.mlp(x)
        return residual + x

    return _checkpointing(forward)


def sandwich_layer_forward(recompute: bool):
    """Gemma 2's and 3's decoder layer, with norms before and after each part."""

    def forward(self, hidden_states, **kwargs):
        x = self.input_layernorm(hidden_states)
        with _made_by(self.input_layernorm, hidden_states, recompute, x):
            x, _ = self.self_attn(hidden_states=x, **kwargs)
        x, residual = add_and_norm(self.post_attention_layernorm(x), hidden_states, self.pre_feedforward_layernorm)
        with _made_by(self.pre_feedforward_layernorm, residual, recompute, x):
            x = self.mlp(x)
        return residual + self.post_feedforward_layernorm(x)

    return _checkpointing(forward)


GELU = {"gelu_pytorch_tanh": "tanh", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu": "none"}


def gate_of(activation: str):
    """The gate with this activation of transformers, or None."""
    if activation in ("silu", "swish"):
        return lambda gate, up: ops.swiglu(gate, up)
    if activation in GELU:
        approximate = GELU[activation]
        return lambda gate, up: ops.geglu(gate, up, approximate)
    return None


def mlp_forward(activation: str, recompute: bool):
    gate = gate_of(activation)

    def forward(self, x):
        halves = self.gate_proj(x), self.up_proj(x)
        y = gate(*halves)
        with instead_of(recompute, y, gate, *halves):
            return self.down_proj(y)

    return forward


def packed_mlp_forward(activation: str, recompute: bool):
    """Phi-3's, whose two halves come from one product."""
    gate = gate_of(activation)

    def forward(self, hidden_states):
        halves = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        y = gate(*halves)
        with instead_of(recompute, y, gate, *halves):
            return self.down_proj(y)

    return forward


def experts_forward():
    def forward(self, hidden_states, top_k_index, top_k_weights):
        mixed = hidden_states.dtype != self.gate_up_proj.dtype or torch.is_autocast_enabled("cpu")
        if mixed or not _on_cpu(hidden_states):
            return type(self).forward(self, hidden_states, top_k_index, top_k_weights)
        return ops.moe(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights)

    return forward


def linear_forward():
    def forward(self, x):
        # A few rows are a product of a matrix and a vector, which waits for the weights whoever computes it.
        rows = x.numel() // max(1, x.shape[-1])
        if rows < 16 or not _on_cpu(x) or x.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)
        return ops.linear(x, self.weight, self.bias)

    return forward


def _heads(self, x):
    """Query, key and value [batch, heads, seq, d], with the norms of heads where the family has them."""
    shape = (*x.shape[:-1], -1, self.head_dim)
    if hasattr(self, "qkv_proj"):
        queries, keys = self.config.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        parts = self.qkv_proj(x).split([queries, keys, keys], dim=-1)
    else:
        parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
    q, k, v = (part.view(shape) for part in parts)
    if hasattr(self, "q_norm"):
        q, k = self.q_norm(q), self.k_norm(k)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def rotary_attention_forward(family):
    """Attention of a decoder layer whose rotation is tigon's; window and softcap are read from the module."""
    window, softcap = family.window_of(), family.softcap_of()

    @takes_cache
    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, cache=None, **kwargs):
        module = sys.modules[type(self).__module__]
        q, k, v = _heads(self, hidden_states)
        cos, sin = position_embeddings
        if _on_cpu(q) and q.dtype == k.dtype == cos.dtype:
            q, k = ops.rope(q, k, cos, sin)
        else:
            q, k = module.apply_rotary_pos_emb(q, k, cos, sin)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx, kwargs=kwargs)
        attend = module.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation,
                                                              module.eager_attention_forward)
        extra = {}
        if window is not None:
            extra["sliding_window"] = window(self)
        if softcap is not None:
            extra["softcap"] = softcap(self)
        out, weights = attend(self, q, k, v, attention_mask, dropout=self.attention_dropout if self.training else 0.0,
                              scaling=self.scaling, **extra, **kwargs)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights

    return forward
