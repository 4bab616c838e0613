"""Small random models of every family, made from transformers' own classes."""
import copy
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

try:
    import transformers
except ImportError:  # the operators are tested without; test_models.py is skipped
    transformers = None

# The library for CUDA on a model of a GPU, whose kernels take the place of the CPU's (test_cuda.py). The memory of its device,
# whose bytes ranks exchange, is the host's.
ON_MODEL = "TIGON_TORCH_MODEL" in os.environ
if ON_MODEL:
    import tigon_torch  # first: operators are defined there

    torch.ops.load_library(os.environ["TIGON_TORCH_MODEL"])
    torch.ops.tigon.set_communicator_on_cuda(tigon_torch.ranks.address_of(tigon_torch.ranks._all_gather))

# Before transformers 5 experts were modules in a list, some layers returned tuples and some attention did not ask the registry:
# of each family the operators that find nothing to replace there.
OLD = transformers is not None and int(transformers.__version__.partition(".")[0]) < 5
WITHOUT = {} if not OLD else {
    "gemma2": {"fused_add_rms_norm"}, "gemma3_text": {"fused_add_rms_norm"}, "mixtral": {"fused_add_rms_norm", "moe"},
    "qwen2_moe": {"fused_add_rms_norm", "moe", "attention"}, "qwen3_moe": {"moe"}}

# What .ci/models adds to the suite: every type compiled, and twenty steps of training.
LONG = "TIGON_TORCH_MODELS" in os.environ

VOCAB = 256
SIZE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True, head_dim=16)
GEMMA = dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=12,
             layer_types=["sliding_attention", "full_attention"])

# The family, as tigon_torch names it, and the fields that make its peculiarities show in so small a model.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZE, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**SIZE, sliding_window=12, head_dim=16),
    "qwen2": lambda: transformers.Qwen2Config(**SIZE),
    "qwen3": lambda: transformers.Qwen3Config(**SIZE, head_dim=16),
    "gemma": lambda: transformers.GemmaConfig(**SIZE, head_dim=16, hidden_activation="gelu_pytorch_tanh"),
    "gemma2": lambda: transformers.Gemma2Config(**SIZE, **GEMMA, attn_logit_softcapping=5.0,
                                                final_logit_softcapping=3.0),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(**SIZE, **GEMMA),
    "phi3": lambda: transformers.Phi3Config(**SIZE, sliding_window=12,
                                            rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                                                 partial_rotary_factor=0.5)),
    "mixtral": lambda: transformers.MixtralConfig(**SIZE, num_local_experts=4, num_experts_per_tok=2,
                                                  sliding_window=12, head_dim=16),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(**SIZE, **EXPERTS, shared_expert_intermediate_size=48,
                                                     qkv_bias=True, mlp_only_layers=[0]),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZE, **EXPERTS, mlp_only_layers=[0]),
}


def with_soft_cap(config) -> None:
    """Gemma 2's attention with the soft cap, which its sdpa leaves out before transformers 5.21, and refuses after that."""
    text = config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) is not None:
        text._attn_implementation = "eager"


def build(family: str, dtype=torch.float32, seed: int = 0, **changes):
    """A model whose norms and biases are no ones and zeros, in training mode."""
    config = CONFIGS[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    with_soft_cap(config)
    torch.manual_seed(seed)
    return randomised(transformers.AutoModelForCausalLM.from_config(config), dtype)


def randomised(model, dtype):
    """The model in training mode, in this type, with random weights: norms and biases are no ones and zeros."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"  # the grouped one has no f64, which is the reference
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p), alpha=0.1)
            else:
                p.copy_(torch.randn_like(p) * (0.6 / p.shape[-1] ** 0.5 if "embed" not in name else 0.3))
    # model.to(dtype) makes complex buffers real.
    return model._apply(lambda t: t.to(dtype) if t.is_floating_point() else t).train()


def twin(model):
    """The same weights in another model, so that gradients do not mix."""
    return copy.deepcopy(model)


def batch(seed: int = 1, rows: int = 2, seq: int = 24, ignored: bool = True):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, seq), generator=g)
    labels = ids.clone()
    if ignored:
        labels[0, :5] = -100
        labels[-1, -3:] = -100
    return dict(input_ids=ids, labels=labels)


def gradients(model):
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def error(actual, expected) -> float:
    """The largest difference, relative to |expected| + its root mean square."""
    expected = expected.double()
    scale = expected.abs() + expected.pow(2).mean().sqrt().clamp_min(1e-30)
    return ((actual.double() - expected).abs() / scale).max().item()


def rms_error(actual, expected) -> float:
    """The root mean square of the difference, relative to that of what is expected."""
    expected = expected.double()
    return ((actual.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


@pytest.fixture(params=sorted(CONFIGS))
def family(request):
    return request.param


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch):
    """How often each operator was called."""
    from tigon_torch import ops

    counts = {}
    for name in ("rms_norm", "fused_add_rms_norm", "swiglu", "geglu", "rope", "attention", "cross_entropy",
                 "fused_linear_cross_entropy", "linear", "moe", "moe_router", "layer_norm",
                 "relu_squared"):
        def counted(*args, _name=name, _function=getattr(ops, name), **kwargs):
            counts[_name] = counts.get(_name, 0) + 1
            return _function(*args, **kwargs)

        monkeypatch.setattr(ops, name, counted)
    return counts
