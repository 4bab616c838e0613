"""Puts tigon's operators into models of transformers, one instance at a time or all that will be built.

    import tigon_torch
    print(tigon_torch.apply(model))      # what was replaced, and what was left and why
    tigon_torch.revert(model)            # as it was

    tigon_torch.apply_to_llama()         # every Llama that is built from now on
    tigon_torch.revert()

Weights are not touched: a patched model saves and loads as before. What an operator cannot compute as transformers
does (dropout, a mask of another kind, mixed types, another device) goes to transformers' own code.
"""
from __future__ import annotations

import copy
import functools

import torch
from torch import nn

from . import attention as _attention
from . import causal_lm as _causal_lm
from . import modules as _modules
from .families import FAMILIES, Family
from .measure import linear_is_faster
from .head import more_than_its_head
from .patch import Forward, Report, logger, put, restore

SWITCHES = {
    "rope": True,
    "rms_norm": True,
    "fused_add_rms_norm": True,
    "swiglu": True,
    "geglu": True,
    "attention": True,
    "cross_entropy": True,
    "fused_linear_cross_entropy": True,
    "linear": "auto",
    "moe": True,
}


def _switches(given: dict) -> dict:
    unknown = sorted(set(given) - set(SWITCHES))
    if unknown:
        raise TypeError(f"tigon_torch.apply: no switch {', '.join(unknown)}; there are {', '.join(SWITCHES)}")
    if given.get("linear", "auto") not in (True, False, "auto"):
        raise ValueError("tigon_torch.apply: linear is True, False or 'auto'")
    return {**SWITCHES, **given}


def _family_of(model) -> Family:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind is None or not isinstance(model, nn.Module):
        raise TypeError("tigon_torch.apply: expected a model of transformers, which has a config")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"tigon_torch.apply: does not know models of type '{kind}'; it knows {known}")
    return FAMILIES[kind]


def _unwrap(model):
    """The model of transformers inside a PEFT wrapper or a compiled module."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class _Applying:
    """One call of apply: the model, its family, the switches, and where it writes down what it did."""

    def __init__(self, model, family: Family, switches: dict, skip_logits, recompute: bool):
        self.model, self.family, self.on, self.skip_logits = model, family, switches, skip_logits
        self.recompute = recompute
        self.transformers = family.load()
        self.report = Report(type(model).__name__)

    def instances(self, part: str):
        """The modules of the model that are exactly of this class of the family; subclasses are somebody else's."""
        cls = getattr(self.transformers, self.family.names(part), None)
        return [m for m in self.model.modules() if cls is not None and type(m) is cls]

    def forward(self, operator: str, module, make, *options) -> None:
        if "forward" in vars(module):
            self.report.leave(f"{operator} of a {type(module).__name__} whose forward somebody else replaced")
            return
        put(module, "forward", Forward(module, make, *options))
        self.report.count(operator)

    def run(self) -> Report:
        self.loss()  # first: the logits that it looks at are transformers' own
        self.norms()
        self.rotations()
        self.gates()
        if self.on["attention"]:
            self.attend()
        if self.on["moe"] and self.family.experts:
            self.experts()
        if self.on["linear"]:
            self.linears()
        return self.report

    def norms(self) -> None:
        if self.on["rms_norm"]:
            for norm in self.instances("RMSNorm"):
                self.forward("rms_norm", norm, _modules.rms_norm_forward)
        if self.on["fused_add_rms_norm"]:
            make = _modules.sandwich_layer_forward if self.family.sandwich else _modules.layer_forward
            for layer in self.instances("DecoderLayer"):
                dropout = [m.p for m in layer.children() if isinstance(m, nn.Dropout) and m.p > 0]
                if dropout:
                    self.report.leave(f"fused_add_rms_norm: the layer drops out {dropout[0]} of its residuals")
                else:
                    self.forward("fused_add_rms_norm", layer, make, self.recompute)

    def rotations(self) -> None:
        if self.on["rope"]:
            for layer in self.instances("Attention"):
                self.forward("rope", layer, _modules.rotary_attention_forward, self.family)

    def gates(self) -> None:
        activation = getattr(self.model.config, self.family.activation)
        operator = "swiglu" if activation in ("silu", "swish") else "geglu"
        mlps = self.instances("MLP")
        if _modules.gate_of(activation) is None:
            if mlps and (self.on["swiglu"] or self.on["geglu"]):
                self.report.leave(f"the MLP: tigon has no gate with the activation '{activation}'")
            return
        if not self.on[operator]:
            return
        make = _modules.packed_mlp_forward if self.family.packed else _modules.mlp_forward
        for mlp in mlps:
            self.forward(operator, mlp, make, activation, self.recompute)

    def attend(self) -> None:
        _attention.register()
        config = self.model.config
        before = config._attn_implementation
        if before not in ("sdpa", "eager", _attention.NAME):
            self.report.leave(f"attention: the model was built with attn_implementation='{before}'")
            return
        # A copy, because other models may have been built from the same config. The model keeps it when it is reverted:
        # what has changed in it since, by resize_token_embeddings for example, belongs to the model.
        copied = copy.deepcopy(config)
        copied._attn_implementation = _attention.NAME
        for module in self.model.modules():
            if type(getattr(module, "config", None)) is type(config):
                module.config = copied
        put(self.model, _attention.BEFORE, before)
        for model in [*self.instances("Model"), *self.instances("TextModel")]:
            if "forward" not in vars(model):
                put(model, "forward", Forward(model, _attention.plain_positions, self.family.masks, type(model)))
        for _ in self.instances("Attention"):
            self.report.count("attention")

    def experts(self) -> None:
        activation = self.model.config.hidden_act
        if activation not in ("silu", "swish"):
            self.report.leave(f"moe: tigon's experts have silu, this model's '{activation}'")
            return
        for experts in self.instances("Experts"):
            e, double, hidden = experts.gate_up_proj.shape
            if tuple(experts.down_proj.shape) != (e, hidden, double // 2):
                self.report.leave("moe: the weights of the experts have another layout than [experts, out, in]")
                continue
            self.forward("moe", experts, _modules.experts_forward)

    def linears(self) -> None:
        for layer in self.model.modules():
            if type(layer) is not nn.Linear or min(layer.weight.shape) < 16:
                continue
            outputs, inputs = layer.weight.shape
            if self.on["linear"] == "auto" and not linear_is_faster(inputs, outputs, layer.weight.dtype):
                self.report.leave(f"linear {inputs} -> {outputs}, {str(layer.weight.dtype)[6:]}: not faster here")
                continue
            self.forward("linear", layer, _modules.linear_forward)

    def loss(self) -> None:
        name = self.family.names("ForCausalLM")
        theirs = getattr(self.transformers, name)
        wanted = self.on["cross_entropy"] or self.on["fused_linear_cross_entropy"]
        if not wanted or not isinstance(self.model, theirs):
            return
        if type(self.model) is not theirs:
            self.report.leave(f"cross_entropy: the model is of a class of its own, not of transformers' {name}")
            return
        if hasattr(self.model, "_loss_function"):
            self.report.leave("cross_entropy: the model has a loss function of its own")
            return
        if self.on["fused_linear_cross_entropy"] and self.logits_fit():
            make = _causal_lm.moe_forward if self.family.experts else _causal_lm.dense_forward
            self.forward("fused_linear_cross_entropy", self.model, make, self.skip_logits, self.family.capped)
        if self.on["cross_entropy"]:
            put(self.model, "_loss_function", _causal_lm.causal_lm_loss)
            self.report.count("cross_entropy")

    def logits_fit(self) -> bool:
        """Whether the model's own logits are those that fused_linear_cross_entropy makes of its hidden states."""
        if any(p.is_meta for p in self.model.parameters()):
            self.report.leave("comparing fused_linear_cross_entropy with the model's own logits: it has no weights yet")
            return True
        softcap = self.model.config.final_logit_softcapping if self.family.capped else None
        why = more_than_its_head(self.model, softcap)
        if why is not None:
            self.report.leave(f"fused_linear_cross_entropy: the model has {why}")
        return why is None


def apply(model, *, skip_logits: bool | None = None, recompute: bool = True, **switches) -> Report:
    """Puts tigon's operators into this model; its family is read from model.config.model_type.

    Switches: rope, rms_norm, fused_add_rms_norm, swiglu, geglu, attention, cross_entropy, fused_linear_cross_entropy,
    moe (all on), and linear: True, False, or "auto", which measures each shape and takes tigon's where it is faster.
    skip_logits: whether a call with labels leaves the logits out; None: in training.
    recompute: outputs of norms and gates are not kept for backward but made again: less memory for a little time.
    Returns what was replaced and what was left, which is also logged. A second call replaces the first.
    Raises ValueError for a model of a type that it does not know, ImportError for a transformers older than 5.21.
    """
    outer, model = model, _unwrap(model)
    family, on = _family_of(model), _switches(switches)
    devices = {p.device.type for p in model.parameters()} - {"cpu", "meta"}
    if devices:
        raise ValueError(f"tigon_torch.apply: the model is on {', '.join(sorted(devices))}; tigon computes on the CPU")
    revert(model)  # and one inside it that was patched when it was built
    work = _Applying(model, family, on, skip_logits, recompute)
    try:
        work.run()
    except BaseException:
        revert(model)
        raise
    logger.info("%s", work.report)
    return work.report


_classes: set[type] = set()


def _apply_to_class(model_type: str, model, options, switches) -> Report | None:
    """The instance if there is one; otherwise every model of the family that will be built."""
    if model is not None:
        kind = _unwrap(model).config.model_type
        if kind != model_type:
            raise ValueError(f"tigon_torch: the model is of type '{kind}', not '{model_type}'")
        return apply(model, **options, **switches)
    _switches(switches)
    transformers = FAMILIES[model_type].load()
    base = getattr(transformers, FAMILIES[model_type].names("PreTrainedModel"))
    for cls in list(vars(transformers).values()):
        if not (isinstance(cls, type) and issubclass(cls, base)) or cls is base:
            continue
        restore(cls)
        before = cls.__init__

        @functools.wraps(before)
        def build(self, config, *args, _before=before, _cls=cls, **kwargs):
            _before(self, config, *args, **kwargs)
            if type(self) is _cls and config.model_type == model_type:
                apply(self, **options, **switches)

        put(cls, "__init__", build)
        _classes.add(cls)
    logger.info("tigon_torch: every %s model that is built from now on is patched", model_type)
    return None


def revert(model=None) -> None:
    """Undoes apply() on this model; without one, what apply_to_...() did to classes. A model without patches stays."""
    if model is None:
        while _classes:
            restore(_classes.pop())
        return
    for module in _unwrap(model).modules():
        if _attention.BEFORE in vars(module):
            module.config._attn_implementation = vars(module)[_attention.BEFORE]
        restore(module)


def _door(model_type: str):
    def apply_to(*, model=None, skip_logits: bool | None = None, recompute: bool = True, **switches) -> Report | None:
        return _apply_to_class(model_type, model, {"skip_logits": skip_logits, "recompute": recompute}, switches)

    name = f"apply_to_{model_type}"
    apply_to.__name__ = apply_to.__qualname__ = name
    apply_to.__doc__ = (f"Patches `model`, or without one every {model_type} model that is built from now on.\n\n"
                        "Switches as apply() has them. Undone by revert(model), or revert().")
    return apply_to


apply_to_llama = _door("llama")
apply_to_mistral = _door("mistral")
apply_to_qwen2 = _door("qwen2")
apply_to_qwen3 = _door("qwen3")
apply_to_gemma = _door("gemma")
apply_to_gemma2 = _door("gemma2")
apply_to_gemma3 = _door("gemma3_text")
apply_to_phi3 = _door("phi3")
apply_to_mixtral = _door("mixtral")
apply_to_qwen2_moe = _door("qwen2_moe")
apply_to_qwen3_moe = _door("qwen3_moe")

__all__ = ["FAMILIES", "Report", "SWITCHES", "apply", "revert", *(n for n in dir() if n.startswith("apply_to_"))]
