"""Gated MLPs and experts, made of a config of transformers; they load the weights of its modules."""
import torch
from torch import Tensor, nn

from .. import ops
from ..arguments import refuse

_SILU = ("silu", "swish")


def activation_of(module, config, names) -> str:
    """The name of the config's activation, one of names."""
    found = next((getattr(config, name) for name in ("hidden_act", "hidden_activation") if getattr(config, name, None)),
                 names[0])
    if found not in names:
        refuse(type(module).__name__, "hidden_act", repr(found), "one of " + ", ".join(map(repr, names)))
    return found


class _GatedMLP(nn.Module):
    names = _SILU

    def __init__(self, config, intermediate_size: int | None = None):
        super().__init__()
        self.config = config
        self.activation = activation_of(self, config, self.names)
        self.hidden_size = config.hidden_size
        self.intermediate_size = config.intermediate_size if intermediate_size is None else intermediate_size
        bias = getattr(config, "mlp_bias", None) or False
        self.gate_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=bias)


class SwiGLUMLP(_GatedMLP):
    """down_proj(silu(gate_proj(x)) * up_proj(x)): LlamaMLP, Qwen3MoeMLP and most others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))


class GEGLUMLP(_GatedMLP):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)): GemmaMLP; "gelu" is the form of erf, the others that of tanh."""

    names = ("gelu_pytorch_tanh", "gelu", "gelu_new")

    def forward(self, x: Tensor) -> Tensor:
        form = "none" if self.activation == "gelu" else "tanh"
        return self.down_proj(ops.geglu(self.gate_proj(x), self.up_proj(x), form))


class FalconH1MLP(_GatedMLP):
    """down_proj(silu(gate_proj(x) * m[0]) * up_proj(x)) * m[1], with the config's mlp_multipliers."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_multiplier, self.down_multiplier = config.mlp_multipliers

    def forward(self, x: Tensor) -> Tensor:
        y = ops.swiglu(self.gate_proj(x), self.up_proj(x), gate_multiplier=self.gate_multiplier)
        return self.down_proj(y) * self.down_multiplier


class Phi3SwiGLUMLP(nn.Module):
    """Gate and up of one layer: Phi3MLP."""

    def __init__(self, config):
        super().__init__()
        activation_of(self, config, _SILU)
        self.config = config
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.swiglu(*self.gate_up_proj(x).chunk(2, -1)))


class BlockSparseTop2MLP(nn.Module):
    """One expert of Mixtral: w2(silu(w1(x)) * w3(x))."""

    def __init__(self, config):
        super().__init__()
        activation_of(self, config, _SILU)
        self.ffn_dim, self.hidden_dim = config.intermediate_size, config.hidden_size
        self.w1 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(ops.swiglu(self.w1(x), self.w3(x)))


class Experts(nn.Module):
    """SwiGLU experts as one operator: MixtralExperts, Qwen3MoeExperts and DeepSeek's, of transformers 5."""

    def __init__(self, config):
        super().__init__()
        activation_of(self, config, _SILU)
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        self.num_experts = next(getattr(config, name) for name in names if hasattr(config, name))
        self.hidden_dim = config.hidden_size
        self.intermediate_dim = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * self.intermediate_dim, self.hidden_dim))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, self.intermediate_dim))
        for weight in self.parameters():
            nn.init.normal_(weight, std=getattr(config, "initializer_range", 0.02))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        k = top_k_index.shape[-1]
        return ops.moe(hidden_states, self.gate_up_proj, self.down_proj, top_k_index.reshape(-1, k),
                       top_k_weights.reshape(-1, k))


class TopkRouter(nn.Module):
    """The router in front of experts: DeepseekV3TopkRouter, Glm4MoeTopkRouter, DeepseekV4TopKRouter and their like of
    transformers 5. Returns the logits, computed in f32, and the weights and indices that ops.moe_router makes of them.
    correction_bias: with the buffer e_score_correction_bias, which is added for the choice."""

    def __init__(self, hidden_size: int, num_experts: int, top_k: int, score: str = "softmax", normalise: bool = True,
                 scale: float = 1.0, groups: int = 1, kept_groups: int = 1, group_score: str = "two_largest",
                 correction_bias: bool = False):
        super().__init__()
        self.top_k = top_k
        self.options = dict(score=score, normalise=normalise, scale=scale, groups=groups, kept_groups=kept_groups,
                            group_score=group_score)
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        nn.init.normal_(self.weight, std=0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(num_experts) if correction_bias else None)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = hidden_states.reshape(-1, self.weight.shape[1])
        with torch.autocast(x.device.type, enabled=False):
            logits = nn.functional.linear(x.float(), self.weight.float())
        indices, weights = ops.moe_router(logits, self.top_k, self.e_score_correction_bias, **self.options)
        return logits, weights, indices


class _TiledMLP(nn.Module):
    def __init__(self, config, num_shards: int | None = None):
        super().__init__()
        activation_of(self, config, self.names)
        self.config, self.num_shards = config, num_shards
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return ops.tiled_mlp(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.gate,
                             self.num_shards)


class TiledSwiGLUMLP(_TiledMLP):
    """SwiGLUMLP some tokens at a time, of which x alone is kept for backward."""

    names, gate = _SILU, "swiglu"


class TiledGEGLUMLP(_TiledMLP):
    """The same of GEGLUMLP, in the form of tanh."""

    names, gate = ("gelu_pytorch_tanh", "gelu_new"), "geglu"
