"""tigon_torch.modules beside their counterparts in torch and transformers: the same state dictionaries and results; and
tigon_torch.drop_in, whose names and arguments are those of liger-kernel 0.8.5."""
import inspect
import types

import pytest
import torch
from conftest import error
from torch import nn

from tigon_torch import drop_in, modules, ops
from tigon_torch.drop_in import functional, megatron

CONFIG = types.SimpleNamespace(hidden_size=16, intermediate_size=24, hidden_act="silu", mlp_bias=False,
                               pretraining_tp=1, num_local_experts=3, num_experts=3, num_experts_per_tok=2,
                               moe_intermediate_size=24, mlp_multipliers=(0.7, 1.3), initializer_range=0.3,
                               _experts_implementation="eager", hidden_activation="gelu_pytorch_tanh")
GEMMA = types.SimpleNamespace(**{**vars(CONFIG), "hidden_act": "gelu_pytorch_tanh"})


def transformers_class(path):
    """What makes a module of transformers, if it is there."""
    module, name = path.rsplit(".", 1)

    def make(*args):
        found = pytest.importorskip(f"transformers.models.{module}")
        if not hasattr(found, name):
            pytest.skip(f"this transformers has no {name}")
        return getattr(found, name)(*args)

    return make


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


X = rows(2, 5, 16)
CHOICES = (torch.tensor([[0, 2], [2, 1], [1, 0], [0, 2]] + [[1, 2]] * 6), rows(10, 2).softmax(-1))
PAIRS = {
    "RMSNorm": (lambda: modules.RMSNorm(16, 1e-5), lambda: nn.RMSNorm(16, 1e-5), (X,)),
    "RMSNorm of Llama": (lambda: modules.RMSNorm(16),
                         lambda: transformers_class("llama.modeling_llama.LlamaRMSNorm")(16), (X,)),
    "RMSNorm of OLMo 2": (lambda: modules.RMSNorm(16),
                          lambda: transformers_class("olmo2.modeling_olmo2.Olmo2RMSNorm")(16), (X,)),
    "RMSNorm of GLM-4": (lambda: modules.RMSNorm(16),
                         lambda: transformers_class("glm4.modeling_glm4.Glm4RMSNorm")(16), (X,)),
    "RMSNormForGemma": (lambda: modules.RMSNormForGemma(16),
                        lambda: transformers_class("gemma.modeling_gemma.GemmaRMSNorm")(16), (X,)),
    "LayerNorm": (lambda: modules.LayerNorm(16), lambda: nn.LayerNorm(16), (X,)),
    "LayerNorm without bias": (lambda: modules.LayerNorm(16, bias=False), lambda: nn.LayerNorm(16, bias=False), (X,)),
    "GroupNorm": (lambda: modules.GroupNorm(2, 4), lambda: nn.GroupNorm(2, 4), (rows(3, 4, 5, 7),)),
    "Embedding": (lambda: modules.Embedding(9, 16, 2), lambda: nn.Embedding(9, 16, 2), (torch.tensor([[1, 2, 8, 1]]),)),
    "Softmax": (modules.Softmax, lambda: nn.Softmax(-1), (X,)),
    "ReLUSquared": (modules.ReLUSquared, lambda: transformers_activation("relu2"), (X,)),
    "SwiGLUMLP": (lambda: modules.SwiGLUMLP(CONFIG),
                  lambda: transformers_class("llama.modeling_llama.LlamaMLP")(CONFIG), (X,)),
    "GEGLUMLP": (lambda: modules.GEGLUMLP(GEMMA), lambda: transformers_class("gemma.modeling_gemma.GemmaMLP")(GEMMA),
                 (X,)),
    "Phi3SwiGLUMLP": (lambda: modules.Phi3SwiGLUMLP(CONFIG),
                      lambda: transformers_class("phi3.modeling_phi3.Phi3MLP")(CONFIG), (X,)),
    "FalconH1MLP": (lambda: modules.FalconH1MLP(CONFIG),
                    lambda: transformers_class("falcon_h1.modeling_falcon_h1.FalconH1MLP")(CONFIG), (X,)),
    "Experts": (lambda: modules.Experts(CONFIG),
                lambda: transformers_class("mixtral.modeling_mixtral.MixtralExperts")(CONFIG), (rows(10, 16), *CHOICES)),
    "TiledSwiGLUMLP": (lambda: modules.TiledSwiGLUMLP(CONFIG, 3), lambda: modules.SwiGLUMLP(CONFIG), (X,)),
    "TiledGEGLUMLP": (lambda: modules.TiledGEGLUMLP(GEMMA), lambda: modules.GEGLUMLP(GEMMA), (X,)),
    "NeighborhoodAttention": (lambda: modules.NeighborhoodAttention(16, 4, 3), lambda: Neighborhood(16, 4, 3), (X,)),
    "NeighborhoodAttentionLayer": (lambda: modules.NeighborhoodAttentionLayer(16, 4, 3), lambda: NeighborhoodLayer(),
                                   (X,)),
    "MultiTokenAttention": (lambda: modules.MultiTokenAttention(2, 4, 3, padding=1, groups=2),
                            lambda: MultiToken(2, 4, 3, padding=1, groups=2), (rows(2, 2, 6, 6),)),
}


def transformers_activation(name):
    return pytest.importorskip("transformers.activations").ACT2FN[name]


class Neighborhood(nn.Module):
    def __init__(self, hidden, heads, size):
        super().__init__()
        self.heads, self.size = heads, size
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        i = torch.arange(x.shape[1])
        near = (i[None] - i[:, None]).abs() <= self.size // 2
        o = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.out_proj(o.transpose(1, 2).flatten(2))


class NeighborhoodLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.layer_norm = Neighborhood(16, 4, 3), nn.LayerNorm(16)

    def forward(self, x):
        return x + self.attention(self.layer_norm(x))


class MultiToken(nn.Conv2d):
    def forward(self, scores):
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        p = torch.where(causal, scores.masked_fill(~causal, -torch.inf).softmax(-1), 0)
        return torch.where(causal, super().forward(p), 0)


def trained(module, args):
    args = [a.detach().clone().requires_grad_() if a.is_floating_point() else a for a in args]
    y = module(*args)
    y.backward(rows(*y.shape))
    return [y.detach(), *(p.grad for p in module.parameters()), *(a.grad for a in args if a.is_floating_point())]


@pytest.mark.parametrize("name", PAIRS)
def test_loads_its_counterpart_and_is_equal(name):
    ours, theirs, args = PAIRS[name]
    theirs = theirs()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(rows(*p.shape) / 4)
    ours = ours()
    ours.load_state_dict(theirs.state_dict())  # strictly
    for a, b in zip(trained(ours, args), trained(theirs, args), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("make, args", [
    (lambda: modules.FusedAddRMSNorm(16), (X, X)), (lambda: modules.ModulatedRMSNorm(16), (X, X[:, 0], X[:, 1])),
    (modules.PolyNorm, (X,)), (lambda: modules.DyT(16), (X,)), (lambda: modules.DyT(16, beta=False), (X,)),
    (lambda: modules.Sparsemax(1), (X,)), (lambda: modules.BlockSparseTop2MLP(CONFIG), (X,)),
    (lambda: modules.MHC(nn.Linear(16, 16), hc=3, c=16), (rows(2, 5, 3, 16),))],
    ids=["FusedAddRMSNorm", "ModulatedRMSNorm", "PolyNorm", "DyT", "DyT without beta", "Sparsemax", "BlockSparseTop2MLP",
         "MHC"])
def test_trains_and_copies(make, args):
    """What has no counterpart: a step of AdamW changes every parameter, and a copy by state dictionary is the same."""
    module = make()
    y = module(*args)
    y = y[0] if isinstance(y, tuple) else y
    assert y.shape == args[0].shape
    before = [p.detach().clone() for p in module.parameters()]
    if before:
        (y * rows(*y.shape)).sum().backward()
        torch.optim.AdamW(module.parameters(), lr=1e-2).step()
    assert all(not torch.equal(a, b) for a, b in zip(before, module.parameters()))
    copy = make()
    copy.load_state_dict(module.state_dict())
    results = [m(*args) for m in (module, copy)]
    results = [r[0] if isinstance(r, tuple) else r for r in results]
    assert torch.equal(*results) and repr(copy)


ROUTED = dict(hidden_size=16, num_experts_per_tok=3, num_local_experts=12, num_experts=12, n_routed_experts=12,
              routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True,
              topk_method="group_limited_greedy", scoring_func="sqrtsoftplus")
GROUPS = dict(scale=2.5, groups=4, kept_groups=2)
ROUTERS = {
    "deepseek_v3.modeling_deepseek_v3.DeepseekV3TopkRouter": dict(score="sigmoid", correction_bias=True, **GROUPS),
    "glm4_moe.modeling_glm4_moe.Glm4MoeTopkRouter": dict(score="sigmoid", correction_bias=True, **GROUPS),
    "mistral4.modeling_mistral4.Mistral4TopkRouter": GROUPS,
    "deepseek_v2.modeling_deepseek_v2.DeepseekV2TopkRouter": dict(normalise=False, group_score="largest", **GROUPS),
    "deepseek_v4.modeling_deepseek_v4.DeepseekV4TopKRouter": dict(score="sqrt_softplus", scale=2.5,
                                                                 correction_bias=True),
}


@pytest.mark.parametrize("path", ROUTERS)
def test_routers_load_their_counterparts_and_are_equal(path):
    theirs = transformers_class(path)(types.SimpleNamespace(**ROUTED))
    ours = modules.TopkRouter(16, 12, 3, **ROUTERS[path])
    with torch.no_grad():
        for t in theirs.state_dict().values():
            t.copy_(rows(*t.shape) / 2)
    ours.load_state_dict(theirs.state_dict())  # strictly
    results = []
    for router in (ours, theirs):
        logits, weights, indices = router(rows(2, 25, 16))
        indices, order = indices.sort(-1)  # theirs are in no order
        weights = weights.gather(-1, order)
        (weights * rows(*weights.shape)).sum().backward()
        results.append((logits.detach(), weights.detach(), indices, router.weight.grad))
    assert results[0][2].shape == (50, 3)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_modules_refuse_what_they_do_not_have():
    with pytest.raises(ValueError, match="tigon: SwiGLUMLP: hidden_act is 'gelu_pytorch_tanh'; expected one of 'silu'"):
        modules.SwiGLUMLP(GEMMA)
    with pytest.raises(ValueError, match="tigon: RMSNorm: init is 'two'; expected one of 'ones', 'zeros'"):
        modules.RMSNorm(4, init="two")
    with pytest.raises(ValueError, match="tigon: MHC: x is of shape .*; expected ... x 3 x 16"):
        modules.MHC(nn.Identity(), hc=3, c=16)(X)
    with pytest.raises(ValueError, match="kernel_size is 4; expected an odd number"):
        modules.NeighborhoodAttention(16, 4, 4)


# ---- Liger's names

# Functions and arguments of liger_kernel.transformers.functional.
FUNCTIONS = {
    "liger_cross_entropy": "input target weight size_average ignore_index reduce reduction label_smoothing lse_square_scale"
                           " softcap return_z_loss return_token_accuracy return_predicted_tokens",
    "liger_fused_linear_cross_entropy": "input weight target bias ce_weight ignore_index lse_square_scale label_smoothing"
                                        " reduction softcap return_z_loss accum_dtype use_token_scaling"
                                        " return_token_accuracy return_predicted_tokens chunk_mem_const",
    "liger_fused_linear_scaled_cross_entropy_tp": "input weight target tp_group temperature ignore_index tiles_per_reduce"
                                                  " return_entropy",
    "liger_fused_linear_jsd": "student_input student_weight teacher_input teacher_weight shift_labels jsd_beta ignore_index"
                              " temperature accum_dtype",
    "liger_fused_linear_kl_div": "student_input student_weight target shift_labels reduction ignore_index temperature eps"
                                 " accum_dtype",
    "liger_geglu": "a b",
    "liger_group_norm": "X affine_scaling_weight affine_shifting_bias num_channels num_groups eps",
    "liger_jsd": "input target shift_labels beta ignore_index",
    "liger_kl_div": "input target size_average reduce reduction log_target eps",
    "liger_sparsemax": "input dim",
    "liger_multi_token_attention": "scores weight bias stride padding dilation groups sparse",
    "liger_fused_neighborhood_attention": "query key value kernel_size dilation scale",
    "liger_tvd": "input target shift_labels reduction ignore_index",
    "liger_layer_norm": "X W B eps",
    "liger_qwen2vl_mrope": "q k cos sin mrope_section unsqueeze_dim",
    "liger_relu_squared": "x",
    "liger_rms_norm": "X W eps offset casting_mode in_place",
    "liger_modulated_rms_norm": "X W scale shift eps offset casting_mode in_place",
    "liger_poly_norm": "X W B eps in_place",
    "liger_fused_add_rms_norm": "X R W eps offset casting_mode in_place",
    "liger_rope": "q k cos sin position_ids unsqueeze_dim rotary_dim",
    "liger_swiglu": "a b",
    "liger_softmax": "x",
    "liger_dyt": "x alpha gamma beta",
    "liger_mhc_coeffs": "x phi b alpha_pre alpha_post alpha_res allow_fp32 tmax rms_eps pre_eps sinkhorn_eps post_mult",
    "liger_mhc_pre": "x h_pre",
    "liger_mhc_post_res": "x f_out h_post h_res",
    "liger_mhc_apply": "x f_out h_pre h_post h_res return_x_in",
    "liger_attn_res": "V w_query w_norm eps",
    "liger_mhc_forward": "x layer phi b alpha_pre alpha_post alpha_res allow_fp32 tmax rms_eps pre_eps sinkhorn_eps"
                         " post_mult return_coeffs",
}
NORM = "hidden_size eps offset casting_mode init_fn in_place"
DISTILLATION = ("weight_hard_loss weight_soft_loss beta ignore_index temperature compiled chunk_size return_soft_hard_loss",
                "student_input student_weight teacher_input teacher_weight true_labels student_bias teacher_bias")
# Classes, and the arguments of their constructors and of their calls.
CLASSES = {
    "LigerCrossEntropyLoss": ("weight ignore_index lse_square_scale label_smoothing reduction softcap return_z_loss"
                              " return_token_accuracy return_predicted_tokens", "_input target"),
    "LigerFusedLinearCrossEntropyLoss": ("ce_weight ignore_index lse_square_scale label_smoothing reduction softcap"
                                         " return_z_loss accum_dtype use_token_scaling return_token_accuracy"
                                         " return_predicted_tokens", "lin_weight _input target bias"),
    "LigerFusedLinearJSD": ("jsd_beta ignore_index temperature accum_dtype",
                            "student_input student_weight teacher_input teacher_weight shift_labels"),
    "LigerFusedLinearKLDivLoss": ("reduction ignore_index temperature eps accum_dtype",
                                  "student_input student_weight target shift_labels"),
    "LigerFusedLinearJSDLoss": DISTILLATION,
    "LigerFusedLinearCosineSimilarityLoss": DISTILLATION,
    "LigerFusedCETVDLoss": ("ignore_index", "student_logits teacher_logits target"),
    "LigerJSD": ("beta ignore_index", "log_q log_p shift_labels"),
    "LigerKLDIVLoss": ("eps", "y_pred y_true"),
    "LigerTVDLoss": ("reduction ignore_index", "p q shift_labels"),
    "LigerVocabParallelCrossEntropy": ("ignore_index label_smoothing reduction label_smoothing_formula"
                                       " label_smoothing_mode", "vocab_parallel_logits target tp_group"),
    "LigerDyT": ("hidden_size beta init_alpha", "x"),
    "LigerEmbedding": ("num_embeddings embedding_dim padding_idx", "indices"),
    "LigerFusedAddRMSNorm": (NORM, "hidden_states residual"),
    "LigerFusedNeighborhoodAttention": ("hidden_size num_heads kernel_size dilation bias dropout scale",
                                        "hidden_states attention_mask"),
    "LigerFusedNeighborhoodAttentionLayer": ("hidden_size num_heads kernel_size dilation bias dropout layer_norm_eps scale",
                                             "hidden_states attention_mask"),
    "LigerGEGLUMLP": ("config", "x"),
    "LigerGEGLUMLPForGemma4": ("config layer_idx", "x"),
    "LigerGroupNorm": ("num_channels num_groups eps bias init_fn", "hidden_states"),
    "LigerLayerNorm": ("hidden_size eps bias init_fn impl mode backend", "hidden_states"),
    "LigerMHC": ("layer hc c tmax rms_eps pre_eps sinkhorn_eps post_mult phi_dtype allow_fp32", "x"),
    "LigerMLP": ("config", "x"),
    "LigerFalconH1MLP": ("config", "x"),
    "LigerFalconH1SwiGLUMLP": ("config", "x"),
    "LigerHunyuanV1SwiGLUMLP": ("config layer_idx is_shared_mlp", "x"),
    "LigerModulatedRMSNorm": (NORM + " elementwise_affine", "hidden_states scale shift"),
    "LigerMultiTokenAttention": ("in_channels out_channels kernel_size stride padding dilation groups bias sparse", "scores"),
    "LigerPolyNorm": ("eps in_place", "hidden_states"),
    "LigerReLUSquared": ("", "x"),
    "LigerRMSNorm": (NORM + " row_mode elementwise_affine", "hidden_states"),
    "LigerRMSNormForGemma": (NORM + " row_mode", "hidden_states"),
    "LigerRMSNormForGemma2": (NORM + " row_mode", "hidden_states"),
    "LigerRMSNormForGemma3": (NORM.replace("hidden_size", "dim"), "hidden_states"),
    "LigerRMSNormForGemma4": (NORM.replace("hidden_size", "dim") + " with_scale", "hidden_states"),
    "LigerRMSNormForMuseGlimmer": (NORM.replace("hidden_size", "dim") + " with_scale", "hidden_states"),
    "LigerRMSNormForMuseGlimmerTextCentered": (NORM + " row_mode", "hidden_states"),
    "LigerRMSNormForOlmo2": (NORM + " row_mode", "hidden_states"),
    "LigerRMSNormForGlm4": (NORM + " row_mode", "hidden_states"),
    "LigerRMSNormForQwen3Next": (NORM + " row_mode", "hidden_states"),
    "LigerSoftmax": ("", "x"),
    "LigerSparsemax": ("dim", "x"),
    "LigerSwiGLUMLP": ("config intermediate_size", "x"),
    "LigerSwiGLUMLPForMuseGlimmer": ("config", "x"),
    "LigerBlockSparseTop2MLP": ("config", "x"),
    "LigerExpertParallelFusedMoe": ("process_group", "hidden_states expert_indices expert_weights all_B all_C all_A"
                                    " num_experts"),
    "LigerExperts": ("config", "hidden_states top_k_index top_k_weights"),
    "LigerPhi3SwiGLUMLP": ("config", "x"),
    "LigerQwen3MoeSwiGLUMLP": ("config intermediate_size", "x"),
    "LigerTiledGEGLUMLP": ("config num_shards", "x"),
    "LigerTiledSwiGLUMLP": ("config num_shards", "x"),
}


def names_of(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_ligers_arguments(name):
    assert names_of(getattr(functional, name)) == FUNCTIONS[name].split()


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_ligers_arguments(name):
    """In its order; what ours have beyond them comes after."""
    found, (init, call) = getattr(drop_in, name), CLASSES[name]
    if init:
        assert names_of(found.__init__)[: len(init.split())] == init.split()
    assert names_of(found.forward)[: len(call.split())] == call.split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_and_total_variation_distance(dtype):
    """Each with its own upstream gradients, of logits of which many pairs are alike when they are rounded."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        z, teacher = torch.randn(2, 16, 128, generator=generator).to(dtype)
        upstream, target = torch.randn(2, 16, generator=generator).double(), torch.randint(0, 128, (16,), generator=generator)
        z, exact = z.requires_grad_(), z.detach().double().requires_grad_()
        ce, tvd = drop_in.LigerFusedCETVDLoss()(z, teacher, target)
        expected = (nn.functional.cross_entropy(exact, target, reduction="none"),
                    (exact.softmax(-1) - teacher.double().softmax(-1)).abs().sum(-1) / 2)
        for a, e in zip((ce, tvd), expected):
            torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-6)
        actual, = torch.autograd.grad(ce @ upstream[0].to(ce.dtype) + tvd @ upstream[1].to(tvd.dtype), z)
        gradient, = torch.autograd.grad(expected[0] @ upstream[0] + expected[1] @ upstream[1], exact)
        assert error(actual, gradient) <= (4e-3 if dtype == torch.bfloat16 else 2e-5)


def test_drop_in_losses():
    z, target = rows(6, 11), torch.tensor([1, 2, -100, 4, 0, 10])
    x, w, weight = rows(6, 16), rows(11, 16), rows(11).exp()
    out = functional.liger_cross_entropy(z, target, weight, lse_square_scale=0.1, return_z_loss=True,
                                         return_token_accuracy=True, return_predicted_tokens=True)
    kept = target != -100
    exact = torch.nn.functional.cross_entropy(z, target, weight)
    z_loss = 0.1 * z.logsumexp(-1).square()[kept].mean()
    torch.testing.assert_close(out.loss, exact + z_loss)
    torch.testing.assert_close(out.z_loss, z_loss)
    assert torch.equal(out.predicted_tokens, torch.where(kept, z.argmax(-1), -1))
    torch.testing.assert_close(out.token_accuracy, (z.argmax(-1) == target)[kept].float().mean())
    loss = drop_in.LigerFusedLinearCrossEntropyLoss(ce_weight=weight, accum_dtype=torch.float32, return_z_loss=True)
    torch.testing.assert_close(loss(w, x, target).loss, torch.nn.functional.cross_entropy(x @ w.t(), target, weight))
    with pytest.raises(ValueError, match="accum_dtype is torch.bfloat16; expected None or torch.float32"):
        functional.liger_fused_linear_cross_entropy(x, w, target, accum_dtype=torch.bfloat16)
    teacher = rows(6, 11).flip(0)
    ce, tvd = drop_in.LigerFusedCETVDLoss()(z, teacher, target)
    torch.testing.assert_close(ce, torch.nn.functional.cross_entropy(z, target, reduction="none"))
    torch.testing.assert_close(tvd, (z.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2 * kept)
    torch.testing.assert_close(
        drop_in.LigerKLDIVLoss(reduction="batchmean")(z.log_softmax(-1), teacher.softmax(-1)),
        nn.KLDivLoss(reduction="batchmean")(z.log_softmax(-1), teacher.softmax(-1)))
    nll, entropy = functional.liger_fused_linear_scaled_cross_entropy_tp(x, w, target, None, return_entropy=True)
    p = (x @ w.t()).log_softmax(-1)
    torch.testing.assert_close(entropy, -(p.exp() * p).sum(-1) * kept)
    torch.testing.assert_close(nll, -p.gather(-1, target.clamp(min=0)[:, None])[:, 0] * kept)


def test_tables_that_get_an_axis_in_front():
    """Pixtral's cos and sin [seq, d] are those of all heads, and are unsqueezed at 0."""
    q, k, angle = rows(1, 4, 5, 8), rows(1, 2, 5, 8), rows(5, 4).repeat(1, 2)
    cos, sin = angle.cos(), angle.sin()
    for rotated in (drop_in.liger_rotary_pos_emb, functional.liger_rope):
        for ours, x in zip(rotated(q, k, cos, sin, None, 0), (q, k)):
            u, v = x.chunk(2, -1)
            torch.testing.assert_close(ours, x * cos[None] + torch.cat((-v, u), -1) * sin[None])
        with pytest.raises(ValueError, match="unsqueeze_dim is 0; expected 1"):
            rotated(q, k, cos[None], sin[None], None, 0)


def test_llama4_rotation():
    q, k, angle = rows(2, 5, 4, 8), rows(2, 5, 2, 8), rows(1, 5, 4)
    freqs = torch.polar(torch.ones_like(angle), angle)
    for ours, x in zip(drop_in.liger_llama4_text_rotary_pos_emb(q, k, freqs), (q, k)):
        y = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * freqs[:, :, None]).flatten(3)
        torch.testing.assert_close(ours, y)
    vision = drop_in.liger_llama4_vision_rotary_pos_emb(q, k, freqs[0, :, None])
    assert torch.equal(vision[0], drop_in.liger_llama4_text_rotary_pos_emb(q, k, freqs)[0])


def test_megatron():
    config = types.SimpleNamespace(normalization="RMSNorm", sequence_parallel=True, layernorm_zero_centered_gamma=True)
    norm = megatron.LigerMegatronRMSNorm(config, 16)
    assert norm.weight.sequence_parallel and not norm.weight.any()
    torch.testing.assert_close(norm(X), nn.functional.rms_norm(X, (16,), eps=1e-5))
    bias = rows(16)
    gate, up = (X + bias).chunk(2, -1)
    torch.testing.assert_close(megatron.LigerMegatronSwiGLU()(X, bias), nn.functional.silu(gate) * up)
    assert megatron.LigerMegatronSwiGLU(lambda *a: a)(X, None, True, False) == (X, None, True, False)
    z, target, k = rows(3, 4, 11), torch.randint(0, 11, (3, 4), generator=torch.Generator().manual_seed(1)), 11
    logp = z.log_softmax(-1)
    nll, smoothing = -logp.gather(-1, target[..., None])[..., 0], 0.1 * k / (k - 1)
    torch.testing.assert_close(megatron.LigerMegatronCrossEntropy(label_smoothing=0.1)(z, target),
                               (1 - smoothing) * nll - smoothing * logp.mean(-1))
    for wrong, sentence in ((lambda: megatron.LigerMegatronSwiGLU()(X, None, True), "8 bits"),
                            (lambda: megatron.LigerMegatronRMSNorm(types.SimpleNamespace(normalization="LayerNorm"), 4),
                             "config.normalization is 'LayerNorm'; expected 'RMSNorm'")):
        with pytest.raises(ValueError, match="tigon: LigerMegatron.*" + sentence):
            wrong()


def test_metrics_are_those_of_the_logits():
    x, w, target = rows(3, 5, 16), rows(11, 16), torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(1))
    target[1, 2] = -100
    flags = {"return_z_loss": True, "return_token_accuracy": True, "return_predicted_tokens": True, "z_loss": 0.1}
    for reduction in ("mean", "sum", "none"):
        fused = ops.fused_linear_cross_entropy(x, w, target, reduction=reduction, **flags)
        plain = ops.cross_entropy(x @ w.t(), target, reduction=reduction, **flags)
        for a, b in zip(fused, plain, strict=True):
            torch.testing.assert_close(a, b)
    for i, name in enumerate(("return_z_loss", "return_token_accuracy", "return_predicted_tokens"), 1):  # each alone
        alone = ops.fused_linear_cross_entropy(x, w, target, reduction="none", z_loss=0.1, **{name: True})
        assert [j for j, t in enumerate(alone) if t is not None] == [0, i]
        torch.testing.assert_close(alone[i], plain[i])
