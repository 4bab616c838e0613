"""Which of tigon's operators a module of transformers is equal to: its class's own forward is run on small random
numbers, with stand-ins for its children, and compared. Nothing is concluded from names but where to look.

Each function returns what the forward of modules.py needs to know of a module, or None where nothing equals it. Modules
of one class and the same fields are measured once a process. Weights are not touched, and need not be there.
"""
from __future__ import annotations

import copy
import dataclasses
import inspect

import torch
import torch.nn.functional as F
from torch import nn

from .. import ops
from .rebound import innermost

# Of f32, relative to the value and the root mean square: sums of another order, and exp of another library.
ROUNDING = 4e-6
# Of bf16: a step between two neighbours. Where only the sums differ, as in a norm, few elements take it.
STEP, FEW = 2.0**-7, 0.02
DTYPES = torch.float32, torch.bfloat16


def is_of_transformers(module) -> bool:
    """Whether its class is one of transformers' own; a class that is derived from one is somebody else's."""
    return type(module).__module__.startswith("transformers.")


def _scalars(module) -> frozenset:
    fields = {n: v for n, v in vars(module).items() if n != "training" and isinstance(v, (int, float, str, type(None)))}
    return frozenset(fields.items())


def _traits(module, outside=()) -> tuple:
    """What the forward of a module may depend on, apart from numbers: its class and fields, and its children's."""
    inner = [(n, _traits(m) if n not in outside else None) for n, m in module.named_children()]
    return type(module), _scalars(module), tuple(inner), tuple(n for n, p in module.named_parameters(recurse=False))


_known: dict[tuple, object] = {}


def _once(what: str, module, outside, measure):
    """measure(), once for all modules of these traits."""
    key = what, _traits(module, outside)
    if key not in _known:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
            torch.manual_seed(0)
            _known[key] = measure()
    return _known[key]


def _shell(module, **instead):
    """A module of the same class and fields, with these in the place of parameters and children."""
    made = copy.copy(module)
    vars(made).pop("forward", None)
    made.__dict__.update(_parameters={}, _modules={n: m for n, m in module._modules.items() if n not in instead})
    made.__dict__.update(instead, training=True)
    return made


def drops_out(module) -> float:
    """The probability of dropout among its children."""
    return max((m.p for m in module.children() if isinstance(m, nn.Dropout)), default=0.0)


def _numbers(*shape):
    """Of sizes from one millionth to thirty, a size for each row: eps, roundings and limits all show."""
    sizes = torch.logspace(-6, 1.5, shape[-2], device="cpu", dtype=torch.float32)
    return torch.randn(*shape, device="cpu", dtype=torch.float32) * sizes[:, None]


def _is_same(actual, expected, of_sums: bool) -> bool:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    a, e = actual.double(), expected.double()
    scale = e.abs() + (0 if actual.dtype == torch.bfloat16 and of_sums else e.pow(2).mean(-1, keepdim=True).sqrt())
    far = (a - e).abs() / scale.clamp_min(1e-30)
    if actual.dtype != torch.bfloat16:
        return far.max().item() <= ROUNDING
    return far.max().item() <= (1 if of_sums else 2) * STEP and (not of_sums or (far > 0).double().mean().item() <= FEW)


def same(theirs, ours, *inputs, of_sums: bool = False, dtypes=DTYPES) -> bool:
    """Whether two functions of tensors give the same in all of the types. An operator that rounds once where
    transformers rounds twice is the same up to a step of bf16; with `of_sums` nearly all bits have to be."""
    for dtype in dtypes:
        given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        try:
            actual, expected = ours(*given), theirs(*given)
        except Exception:
            return False
        both = isinstance(actual, tuple) and isinstance(expected, tuple)
        pairs = zip(actual, expected) if both else [(actual, expected)]
        if not all(torch.is_tensor(e) and _is_same(a, e, of_sums) for a, e in pairs):
            return False
    return True


# ---- norms

COLUMNS = 96


def _parameters(module) -> set:
    return {name for name, p in module.named_parameters(recurse=False)}


def _own_forward_takes(module, count: int) -> bool:
    """Whether the class's forward has so many parameters that have to be given."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return len(needed) == count


def is_called_a_norm(module) -> bool:
    return is_of_transformers(module) and not module._modules and type(module).__name__.endswith(("Norm", "NormGated"))


def is_a_norm(module) -> bool:
    return (is_of_transformers(module) and "Norm" in type(module).__name__ and not module._modules
            and _own_forward_takes(module, 1) and _parameters(module) <= {"weight", "bias"})


def rms_norm(module) -> tuple[float, float, str] | None:
    """eps, offset and casting of an RMS norm over the last axis."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not is_a_norm(module) or not isinstance(eps, float) or "bias" in _parameters(module):
        return None
    weighted = "weight" in _parameters(module)

    def measure():
        weight = torch.randn(COLUMNS, device="cpu", dtype=torch.float32)

        def theirs(x, w):
            return type(module).forward(_shell(module, **({"weight": w} if weighted else {})), x)

        for casting in ("llama", "gemma"):
            for offset in (0.0, 1.0):
                def ours(x, w, casting=casting, offset=offset):
                    return ops.rms_norm(x, w if weighted else None, eps, offset, casting)

                if same(theirs, ours, _numbers(64, COLUMNS), weight, of_sums=True):
                    return eps, offset, casting
        return None

    return _once("rms_norm", module, (), measure)


def widens(module, facts) -> bool | None:
    """Whether a norm of bf16 with a weight in f32 is f32, as Llama's is, or bf16, as Gemma's; None: it is something else."""
    def measure():
        x, weight = (torch.randn(*shape, device="cpu") for shape in ((64, COLUMNS), (COLUMNS,)))
        try:
            theirs = type(module).forward(_shell(module, weight=weight), x.bfloat16())
        except Exception:
            return None
        ours = ops.rms_norm(x.bfloat16().float(), weight, *facts)
        close = _is_same(ours.bfloat16(), theirs.bfloat16(), of_sums=False)
        return {torch.float32: True, torch.bfloat16: False}.get(theirs.dtype) if close else None

    return _once("rms_norm of bf16", module, (), measure) if "weight" in _parameters(module) else None


def layer_norm(module) -> float | None:
    """What is added to the weight of a LayerNorm over the last axis: 0, or 1 as in Nemotron. PyTorch's own is one."""
    plain = type(module) is nn.LayerNorm
    if not plain and not (is_a_norm(module) and isinstance(module, nn.LayerNorm)):
        return None
    if len(module.normalized_shape) != 1 or not module.elementwise_affine:
        return None

    def measure():
        weight, bias = torch.randn(2, COLUMNS, device="cpu", dtype=torch.float32)
        biased = module.bias is not None

        def theirs(x, w, b):
            made = _shell(module, weight=w, bias=b if biased else None, normalized_shape=(COLUMNS,))
            return type(module).forward(made, x)

        for offset in (0.0, 1.0):
            def ours(x, w, b, offset=offset):
                return ops.layer_norm(x, w + offset if offset else w, b if biased else None, module.eps)

            # Variances far above eps: near it f32's rounding of the mean is all that a norm of such a row has.
            if same(theirs, ours, torch.randn(64, COLUMNS, device="cpu"), weight, bias):
                return offset
        return None

    return _once("layer_norm", module, (), measure)


# ---- MLPs and experts

@dataclasses.dataclass(frozen=True)
class Gate:
    """act(multiplier * gate) * up, of a gate and an `up` that are clamped where there is a limit."""

    activation: str  # silu, tanh (gelu with it) or none (gelu)
    multiplier: float = 1.0
    limit: float | None = None

    def __call__(self, gate, up):
        if self.activation == "silu":
            return ops.swiglu(gate, up, gate_multiplier=self.multiplier, limit=self.limit)
        return ops.geglu(gate, up, self.activation)


def _gates(module):
    """Those that the fields of a module may stand for, the plain ones first."""
    numbers = dict.fromkeys([1.0, getattr(module, "gate_multiplier", 1.0)])
    limits = dict.fromkeys([None, getattr(module, "limit", None)])
    return [*(Gate("silu", number, limit) for number in numbers for limit in limits), Gate("tanh"), Gate("none")]


@dataclasses.dataclass(frozen=True)
class Mlp:
    """down(gate(gate_proj(x), up_proj(x))), or without a gate down(relu(up_proj(x))^2), times the scale."""

    gate: Gate | None
    packed: bool = False  # gate and up from one product
    scale: float = 1.0

    @property
    def operator(self) -> str:
        return "relu_squared" if self.gate is None else "swiglu" if self.gate.activation == "silu" else "geglu"

    def activate(self, *halves):
        return ops.relu_squared(*halves) if self.gate is None else self.gate(*halves)


def _products_before(module) -> tuple[str, ...]:
    """The linear layers before the activation of an MLP, or nothing if it is none."""
    names = set(module._modules)
    if not is_of_transformers(module) or _parameters(module) or "down_proj" not in names:
        return ()
    forms = ("gate_proj", "up_proj"), ("gate_up_proj",), ("up_proj",)
    return next((form for form in forms if set(form) <= names), ())


def is_a_gated_mlp(module) -> bool:
    return len(_products_before(module)) == 2 or _products_before(module) == ("gate_up_proj",)


def mlp(module) -> Mlp | None:
    before = _products_before(module)
    if not before or drops_out(module) > 0:
        return None
    packed, scales = before == ("gate_up_proj",), dict.fromkeys([1.0, getattr(module, "down_multiplier", 1.0)])
    forms = [Mlp(None)] if before == ("up_proj",) else [Mlp(gate, packed, s) for gate in _gates(module) for s in scales]

    def measure():
        def theirs(x):
            parts = [x] if len(before) == 1 else x.chunk(2, dim=-1)
            stand_ins = {name: (lambda _, part=part: part) for name, part in zip(before, parts)}
            return type(module).forward(_shell(module, down_proj=lambda y: y, **stand_ins), x)

        for form in forms:
            def ours(x, form=form):
                y = form.activate(*([x] if form.gate is None else x.chunk(2, dim=-1)))
                return y if form.scale == 1.0 else y * form.scale

            if same(theirs, ours, _numbers(64, COLUMNS)):
                return form
        return None

    return _once("mlp", module, (*before, "down_proj"), measure)


def is_experts(module) -> bool:
    return is_of_transformers(module) and {"gate_up_proj", "down_proj"} <= _parameters(module)


@dataclasses.dataclass(frozen=True)
class Experts:
    """SwiGLU experts, gate_up_proj [experts, 2 n, hidden], down_proj [experts, hidden, n], with ops.swiglu's limit."""

    limit: float | None = None


def swiglu_experts(module) -> Experts | None:
    if not is_experts(module) or len(_parameters(module)) != 2 or not _own_forward_takes(module, 3):
        return None

    def measure():
        gate_up, down = (torch.randn(*shape, device="cpu", dtype=torch.float32) for shape in ((3, 12, 8), (3, 8, 6)))
        index = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0], [1, 2]], device="cpu")
        own = innermost(type(module).forward)

        def theirs(x, w, gate_up, down):
            return own(_shell(module, gate_up_proj=gate_up, down_proj=down, num_experts=3), x, index, w)

        x, w = (torch.randn(5, n, device="cpu", dtype=torch.float32) * 10 for n in (8, 2))  # beyond any limit
        for form in map(Experts, dict.fromkeys([None, getattr(module, "limit", None)])):
            def ours(x, w, gate_up, down, form=form):
                return ops.moe(x, gate_up, down, index, w, limit=form.limit)

            if same(theirs, ours, x, w, gate_up, down, dtypes=DTYPES[:1]):
                return form
        return None

    return _once("experts", module, (), measure)


@dataclasses.dataclass(frozen=True)
class Router:
    """Logits by the weight, in f32, and what ops.moe_router makes of them."""

    score: str
    normalise: bool
    scale: float
    groups: int
    kept_groups: int
    group_score: str

    def __call__(self, x, weight, bias, k):
        logits = F.linear(x.reshape(-1, weight.shape[1]).float(), weight.float())
        indices, weights = ops.moe_router(logits, k, bias, self.score, self.normalise, self.scale, self.groups,
                                          self.kept_groups, self.group_score)
        return logits, weights, indices


def _routers(module):
    """Those that the fields of a module may stand for; groups that it has come before none."""
    own = getattr(module, "num_group", None) or 1, getattr(module, "topk_group", None) or 1
    scales = dict.fromkeys([float(getattr(module, "routed_scaling_factor", None) or 1.0), 1.0])
    return [Router(score, normalise, scale, *groups, group_score)
            for groups in dict.fromkeys([own, (1, 1)])
            for group_score in (("two_largest", "largest") if groups[1] < groups[0] else ("two_largest",))
            for score in ("sigmoid", "softmax", "sqrt_softplus") for normalise in (True, False) for scale in scales]


def _by_index(logits, weights, indices):
    """Choices of a token in the order of experts: torch.topk has them in any."""
    indices, order = indices.sort(-1)
    return logits, weights.gather(-1, order), indices


def topk_router(module) -> Router | None:
    """Of a router whose logits are f32: in 16 bits two are often equal, and torch.topk chooses any of them."""
    if not is_of_transformers(module) or not type(module).__name__.endswith("Router") or module._modules:
        return None
    buffers = {name for name, _ in module.named_buffers(recurse=False)}
    if _parameters(module) != {"weight"} or not buffers <= {"e_score_correction_bias"}:
        return None
    if not _own_forward_takes(module, 1) or not isinstance(getattr(module, "top_k", None), int):
        return None

    def measure():
        experts, own = module.weight.shape[0], innermost(type(module).forward)
        bias = torch.randn(experts, device="cpu", dtype=torch.float32) / 4 if buffers else None

        def theirs(x, weight):
            return _by_index(*own(_shell(module, weight=weight, hidden_dim=16, e_score_correction_bias=bias), x))

        x, weight = (torch.randn(n, 16, device="cpu", dtype=torch.float32) for n in (1000, experts))
        for form in _routers(module):
            def ours(x, weight, form=form):
                return _by_index(*form(x, weight, bias, module.top_k))

            if same(theirs, ours, x, weight / 4):
                return form
        return None

    return _once("router", module, (), measure)


# ---- decoder layers

@dataclasses.dataclass(frozen=True)
class Layer:
    """h = x + m n2(attention(n1(x))), y = h + m n4(mlp(n3(h))). n2 and n4 may be missing, m is 1 without a name."""

    norms: tuple[str, str | None, str, str | None]
    attention: str = "self_attn"
    mlp: str = "mlp"
    multiplier: str | None = None
    drops: tuple[str, ...] = ()  # arguments that its attention is not given

    def names(self) -> set:
        return {name for name in (*self.norms, self.attention, self.mlp) if name is not None}


def _layers(norms):
    return [Layer(norms, attention, mlp, multiplier) for attention in ("self_attn", "linear_attn")
            for mlp in ("mlp", "feed_forward") for multiplier in ("residual_multiplier", None)]


LAYERS = [
    *_layers(("input_layernorm", "post_attention_layernorm",
              "pre_feedforward_layernorm", "post_feedforward_layernorm")),
    *_layers(("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")),
    *_layers(("input_layernorm", None, "post_attention_layernorm", None)),
]


OTHER = "of_tigon"  # an argument that a layer does not know, and hands on


def _layer_is(form: Layer, module) -> Layer | None:
    """The form, with the arguments that the module keeps from its attention, if it gives the same."""
    names = [p.name for p in list(inspect.signature(type(module).forward).parameters.values())[2:]
             if p.kind is not p.VAR_KEYWORD]
    given, received = {**dict.fromkeys(names), OTHER: None}, set()

    def norm(name):
        if name is None:
            return lambda x: x
        shift = form.norms.index(name) + 1.0
        return lambda x: torch.tanh(x * shift) + shift

    def attend(hidden_states, **kwargs):
        received.update(kwargs)
        made = torch.sin(hidden_states)
        return (made, None) if form.attention == "self_attn" else made

    norms = {name: norm(name) for name in form.norms if name is not None}
    multiplier = getattr(module, form.multiplier) if form.multiplier else 1.0

    def ours(x):
        n1, n2, n3, n4 = map(norm, form.norms)
        h = x + n2(torch.sin(n1(x))) * multiplier
        return h + n4(torch.cos(n3(h))) * multiplier

    def own(mlp):
        def theirs(x):
            made = _shell(module, **norms, **{form.attention: attend, form.mlp: mlp})
            return innermost(type(module).forward)(made, x, **given)
        return theirs

    x = torch.randn(3, 5, COLUMNS, device="cpu", dtype=torch.float32)
    if not any(same(own(mlp), ours, x) for mlp in (torch.cos, lambda x: (torch.cos(x), None))):
        return None
    if OTHER not in received or not received <= set(given):
        return None
    return dataclasses.replace(form, drops=tuple(sorted(set(given) - received)))


def layer(module) -> Layer | None:
    """The form of a decoder layer."""
    if not is_of_transformers(module) or drops_out(module) > 0:
        return None
    children = set(module._modules)
    forms = [form for form in LAYERS if form.names() <= children]
    forms = [form for form in forms if form.multiplier is None or hasattr(module, form.multiplier)]

    def measure():
        return next(filter(None, (_layer_is(form, module) for form in forms)), None)

    outside = {name for form in forms for name in form.names()}
    return _once("layer", module, tuple(sorted(outside)), measure) if forms else None
