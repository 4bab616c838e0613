"""Norm and rotation of heads, neighborhood attention, multi-token attention."""
from torch import Tensor

from ..arguments import checked, expect_dims, expect_shape, one_of, refuse, whole
from ..declared import like, operator
from .common import _CASTING, _autocast, _in_type_of, _ops
from .rotary import _COLUMNS, _PAIRS


def _planes(scores, w, b, *numbers):
    """y and probs."""
    sides = []
    for axis in (0, 1):
        stride, padding, dilation = numbers[axis], numbers[2 + axis], numbers[4 + axis]
        sides.append((scores.shape[2 + axis] + 2 * padding - dilation * (w.shape[2 + axis] - 1) - 1) // stride + 1)
    return scores.new_empty((scores.shape[0], w.shape[0], *sides)), scores.new_empty(scores.shape)


operator("qk_norm_rope(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, float eps,"
         " float offset, int casting, bool last, bool neighbours) -> q_out k_out", lambda q, k, *_: (like(q), like(k)),
         keeps="q k q_weight k_weight cos sin", gradients="q k q_weight k_weight", upstream="q_out k_out",
         zeros=True)
operator("neighborhood_attention(Tensor q, Tensor k, Tensor v, int kernel_size, int dilation, float scale) -> o",
         lambda q, *_: like(q), keeps="q k v", gradients="q! k! v!")
operator("multi_token_attention(Tensor scores, Tensor weight, Tensor? bias, int stride_q, int stride_k, int padding_q,"
         " int padding_k, int dilation_q, int dilation_k, int groups, bool sparse) -> y probs", _planes,
         keeps="weight probs", gradients="scores!=probs weight bias")


@checked
def qk_norm_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None = None,
                 k_weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0, casting: str = "llama",
                 rotary_dim: int | None = None, columns: str = "first", pairs: str = "halves") -> tuple[Tensor, Tensor]:
    """rope(rms_norm(q, q_weight), rms_norm(k, k_weight), cos, sin) of heads [batch, heads, seq, d] in one pass, as Qwen 3
    and Gemma 3 have it. Arguments as of rms_norm and rope; what is normalised is not rounded before it is rotated."""
    op = "qk_norm_rope"
    cast = one_of(_CASTING, op, "casting", casting)
    last, neighbours = one_of(_COLUMNS, op, "columns", columns), one_of(_PAIRS, op, "pairs", pairs)
    r = cos.shape[-1] if rotary_dim is None else whole(op, "rotary_dim", rotary_dim, 0)
    if r % 2 != 0 or r // 2 > cos.shape[-1]:
        refuse(op, "rotary_dim", r, "an even number of at most twice the columns of cos")
    expect_dims(op, "q", q, 4)
    expect_dims(op, "k", k, 4)
    for name, t in (("cos", cos), ("sin", sin)):
        batch = t.shape[:-2] if t.shape[:-2] in ((), (1,)) else q.shape[:1]
        expect_shape(op, name, t, (*batch, q.shape[2], t.shape[-1]), " for q of those tokens")
    return _ops.qk_norm_rope(q, k, q_weight, k_weight, cos[..., : r // 2], sin[..., : r // 2], eps, offset, cast, last,
                             neighbours)


@checked
def neighborhood_attention(q: Tensor, k: Tensor, v: Tensor, kernel_size: int = 7, dilation: int = 1,
                           scale: float | None = None) -> Tensor:
    """Softmax attention of q [batch, heads, seq, d] over the kernel_size tokens around each, dilation apart; kernel_size
    is odd, scale None is 1 / sqrt(d). Nothing but q, k and v is kept."""
    q, k, v = _autocast(q, k, v)
    whole("neighborhood_attention", "kernel_size", kernel_size, 1)
    whole("neighborhood_attention", "dilation", dilation, 1)
    if scale == 0:
        q = q * 0.0  # tigon's scale of 0 stands for 1 / sqrt(d)
    return _ops.neighborhood_attention(q, k, v, kernel_size, dilation, 0.0 if scale is None else scale)


def _pair(name, value, least):
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        refuse("multi_token_attention", name, f"of {len(pair)} numbers", "one, or (queries, keys)")
    return tuple(whole("multi_token_attention", name, n, least) for n in pair)


@checked
def multi_token_attention(scores: Tensor, weight: Tensor, bias: Tensor | None = None, stride=1, padding=0, dilation=1,
                          groups: int = 1, sparse: bool = False) -> Tensor:
    """conv2d(softmax(scores)) with causal masks before and after: scores [batch, heads, len, len], weight [heads_out,
    heads / groups, taps of queries, taps of keys], bias [heads_out]. sparse: sparsemax for softmax. What lies above the
    diagonal is 0 in the result and is not read in scores."""
    scores, weight = _autocast(scores, weight)
    weight, bias = _in_type_of(scores, "multi_token_attention", weight=weight, bias=bias)
    expect_dims("multi_token_attention", "scores", scores, 4)
    expect_dims("multi_token_attention", "weight", weight, 4)
    whole("multi_token_attention", "groups", groups, 1)
    return _ops.multi_token_attention(scores, weight, bias, *_pair("stride", stride, 1), *_pair("padding", padding, 0),
                                      *_pair("dilation", dilation, 1), groups, sparse)[0]
