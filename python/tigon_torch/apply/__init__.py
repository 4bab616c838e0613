"""Puts tigon's operators into models of transformers, one instance at a time or all that will be built.

    import tigon_torch
    print(tigon_torch.apply(model))      # what was replaced, and what was left and why
    tigon_torch.revert(model)            # as it was

    tigon_torch.apply_to_llama()         # every Llama that is built from now on
    tigon_torch.revert()

Weights are not touched: a patched model saves and loads as before. What an operator cannot compute as transformers
does (dropout, a mask of another kind, mixed types, another device) goes to transformers' own code. On CUDA that is what
has no kernel there (tigon_torch.backends()), attention and linear layers among it.
"""
from __future__ import annotations

import copy
import functools
import inspect

import torch
from torch import nn

from ..devices import has_kernel
from . import attention as _attention
from . import causal_lm as _causal_lm
from . import equal as _equal
from . import modules as _modules
from . import products as _products
from . import rotations as _rotations
from .families import FAMILIES, Family, types_of
from .measure import FEW, least_rows, linear_is_faster
from .head import more_than_its_loss
from .patch import Forward, Report, logger, put, restore
from .sharded import refuse_parts

SWITCHES = {
    "rope": True,
    "rms_norm": True,
    "fused_add_rms_norm": True,
    "layer_norm": True,
    "swiglu": True,
    "geglu": True,
    "relu_squared": True,
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
    """The model of transformers inside a compiled module, DistributedDataParallel and a PEFT wrapper."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = getattr(model.module, "_orig_mod", model.module)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _device_of(model) -> str:
    """The type of device of all parameters that have memory."""
    kinds = sorted({p.device.type for p in model.parameters()} - {"meta"})
    if not set(kinds) <= {"cpu", "cuda"} or len(kinds) > 1:
        raise ValueError(f"tigon_torch.apply: the model is on {' and '.join(kinds)}; expected the CPU or CUDA")
    return kinds[0] if kinds else "cpu"


class _Applying:
    """One call of apply: the model, its family, the switches, and where it writes down what it did."""

    def __init__(self, model, family: Family, switches: dict, skip_logits, recompute: bool, device: str):
        self.model, self.family, self.on, self.skip_logits = model, family, switches, skip_logits
        self.recompute, self.device = recompute, device
        self.transformers = family.load()
        self.text = model.config.get_text_config()
        self.report = Report(type(model).__name__)

    def forward(self, operator: str, module, make, *options) -> None:
        if "forward" in vars(module):
            self.report.leave(f"{operator} of a {type(module).__name__} whose forward somebody else replaced")
            return
        put(module, "forward", Forward(module, make, *options))
        self.report.count(operator)

    def takes(self, operator: str) -> bool:
        """Whether an operator is wanted and has a kernel where the model is."""
        if not self.on[operator]:
            return False
        if not has_kernel(operator, self.device):
            self.report.leave(f"{operator}: PyTorch's own on {self.device.upper()}")
            return False
        return True

    def is_of_text(self, module) -> bool:
        """Whether it belongs to the language model, by its config."""
        return type(getattr(module, "config", None)) is type(self.text)

    def run(self) -> Report:
        self.loss()  # first: the logits that it looks at are transformers' own
        modules = list(self.model.modules())
        for replace in (self.norm, self.layer, self.rotation, self.gate, self.experts, self.router):
            for module in modules:
                replace(module)
        self.join_layers(modules)
        if self.on["attention"]:
            self.attend(modules)
        if self.on["linear"]:
            self.linears(modules)
            for module in modules:
                self.projections(module)
        return self.report

    def norm(self, norm) -> None:
        facts, offset = _equal.rms_norm(norm), _equal.layer_norm(norm)
        if facts is not None:
            if self.takes("rms_norm"):
                self.forward("rms_norm", norm, _modules.rms_norm_forward, *facts, _equal.widens(norm, facts))
        elif offset is not None:
            if self.takes("layer_norm"):
                self.forward("layer_norm", norm, _modules.layer_norm_forward, offset)
        elif self.on["rms_norm"] and _equal.is_called_a_norm(norm):
            self.report.leave(f"rms_norm: {type(norm).__name__} is another norm than tigon's")

    def layer(self, layer) -> None:
        is_one = type(layer).__name__.endswith("DecoderLayer") or hasattr(layer, "post_attention_layernorm")
        if not is_one or not self.takes("fused_add_rms_norm"):
            return
        if _equal.drops_out(layer) > 0:
            self.report.leave(f"fused_add_rms_norm: the layer drops out {_equal.drops_out(layer)} of its residuals")
            return
        form = _equal.layer(layer)
        if form is None:
            self.report.leave(f"fused_add_rms_norm: {type(layer).__name__} adds and norms in another order")
            return
        first, second = (_equal.rms_norm(getattr(layer, name)) for name in (form.norms[0], form.norms[2]))
        if second is None:
            self.report.leave(f"fused_add_rms_norm: the norm of {type(layer).__name__} is no RMS norm of tigon's")
            return
        self.forward("fused_add_rms_norm", layer, _modules.layer_forward, self.recompute, form, first, second)

    def join_layers(self, modules) -> None:
        """On a GPU each layer of a list makes the norm that begins the next one, the last one that behind the list."""
        if self.device != "cuda":
            return
        for parent in modules:
            for layers in parent.children():
                if not isinstance(layers, nn.ModuleList):
                    continue
                behind = [(_modules.first_norm(layer), layer) for layer in layers][1:]
                for layer, (norm, caller) in zip(layers, [*behind, (getattr(parent, "norm", None), parent)]):
                    facts = None if norm is None else _equal.rms_norm(norm)
                    if _modules.first_norm(layer) is not None and facts is not None:
                        put(layer, _modules.NEXT, _modules.Next(layer, norm, caller, facts))

    def rotation(self, attention) -> None:
        name = type(attention).__name__
        if not self.on["rope"] or not _equal.is_of_transformers(attention) or "Attention" not in name:
            return
        kinds = {n: _rotations.rotation(f) for n, f in _rotations.rotations_of(type(attention)).items()}
        if any(kinds.values()) and self.takes("rope"):
            self.forward("rope", attention, _rotations.rotary_attention_forward, type(attention))
        for function in (function for function, kind in kinds.items() if kind is None):
            self.report.leave(f"rope: {function} of {name} rotates other pairs or columns than tigon's rope")

    def gate(self, mlp) -> None:
        wanted = any(self.on[name] for name in ("swiglu", "geglu", "relu_squared"))
        if not wanted or not _equal.is_of_transformers(mlp):
            return
        found = _equal.mlp(mlp)
        if found is not None:
            if self.takes(found.operator):
                self.forward(found.operator, mlp, _modules.mlp_forward, found, self.recompute)
        elif _equal.is_a_gated_mlp(mlp):
            self.report.leave(f"the MLP: {type(mlp).__name__}{_activation(mlp)} has another gate than tigon's")
        elif type(mlp).__name__.lower().endswith("mlp") and any(type(m) is nn.Linear for m in mlp.children()):
            self.report.leave(f"the MLP: {type(mlp).__name__}{_activation(mlp)} has no gate and no squared ReLU")

    def experts(self, experts) -> None:
        if not self.on["moe"] or not _equal.is_experts(experts):
            return
        found = _equal.swiglu_experts(experts)
        if found is not None and not self.takes("moe"):
            return
        if found is not None:
            self.forward("moe", experts, _modules.experts_forward, found)
        else:
            self.report.leave(f"moe: {type(experts).__name__} is not SwiGLU experts with weights [experts, out, in]")

    def router(self, router) -> None:
        if not self.on["moe"] or not has_kernel("moe_router", self.device):
            return
        found = _equal.topk_router(router)
        if found is not None:
            self.forward("moe_router", router, _modules.router_forward, found)

    def attend(self, modules) -> None:
        if self.family.attention is not None:
            self.report.leave(f"attention: {self.family.attention}")
            return
        own = not has_kernel("attention", self.device)
        if own:  # by tigon's masks: transformers' hide that they are causal from torch.compile
            self.report.leave(f"attention: PyTorch's own on {self.device.upper()}")
        _attention.register()
        before = self.text._attn_implementation
        if before not in (("sdpa", _attention.NAME) if own else ("sdpa", "eager", _attention.NAME)):
            self.report.leave(f"attention: the model was built with attn_implementation='{before}'")
            return
        if before == "sdpa" and getattr(self.text, "attn_logit_softcapping", None) is not None:
            self.report.leave("attention: this transformers' sdpa leaves out the soft cap of the config; "
                              "attn_implementation='eager' has it")
            return
        names = {type(self.text): before}
        for module in modules:
            if not own and not self.is_of_text(module) and _attention.is_of_tower(module):
                if (name := module.config._attn_implementation) in ("sdpa", "eager", _attention.NAME):
                    names[type(module.config)] = name
        # Copies, because other models may have been built from the same config. The model keeps them when it is
        # reverted: what has changed in one since, by resize_token_embeddings for example, belongs to the model.
        memo = {}
        for module in modules:
            if type(getattr(module, "config", None)) in {type(self.model.config), *names}:
                module.config = copy.deepcopy(module.config, memo)
                of = module.config if type(module.config) in names else module.config.get_text_config()
                of._attn_implementation = _attention.NAME
        put(self.model, _attention.BEFORE, names)
        self.plain_positions()
        for module in modules:
            if not own and type(getattr(module, "config", None)) in names and _attention.packs_images(module):
                if "forward" not in vars(module):
                    put(module, "forward", Forward(module, _attention.packed_images, type(module)))
        for module in filter(_attention.is_attention, modules):
            if type(getattr(module, "config", None)) not in names:
                self.report.leave(f"attention: {type(module).__name__} is not of the language model")
            elif not own:
                self.report.count("attention")
                if names[type(module.config)] == "eager":
                    put(module, _attention.EAGER, True)

    def plain_positions(self) -> None:
        text, family = self.model.get_decoder(), FAMILIES.get(self.text.model_type)
        if family is None or family.masks == "own" or not self.is_of_text(text) or "forward" in vars(text):
            return
        if {"attention_mask", "input_ids"} <= set(inspect.signature(type(text).forward).parameters):
            put(text, "forward", Forward(text, _attention.plain_positions, family.masks, type(text)))

    def linears(self, modules) -> None:
        for layer in modules:
            if type(layer) is not nn.Linear or min(layer.weight.shape) < 16 or not self.takes("linear"):
                continue
            outputs, inputs = layer.weight.shape
            if self.on["linear"] != "auto":
                self.forward("linear", layer, _modules.linear_forward, FEW, None, False)
                continue
            shape = inputs, outputs, layer.weight.dtype
            least, faster = least_rows(*shape), linear_is_faster(*shape)
            if faster:
                self.forward("linear", layer, _modules.linear_forward, least, None, True)
                continue
            but = "" if least == FEW else f", but with fewer than {FEW} rows"
            self.report.leave(f"linear {inputs} -> {outputs}, {str(layer.weight.dtype)[6:]}: not faster here{but}")
            under_autocast = layer.weight.dtype == torch.float32  # which is measured when it is called so
            if (least != FEW or under_autocast) and "forward" not in vars(layer):
                put(layer, "forward", Forward(layer, _modules.linear_forward, least, FEW, True))

    def projections(self, attention) -> None:
        """Query, key and value on a GPU, whose products are PyTorch's: of one input (products.py)."""
        layers = [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj")]
        if self.device != "cuda" or has_kernel("linear", self.device) or not all(map(_products.is_plain, layers)):
            return
        beside = _products.Beside(*layers)
        for layer in layers:
            put(layer, _products.BESIDE, beside)
            put(layer, "forward", Forward(layer, _products.beside_forward))

    def loss(self) -> None:
        wanted = self.on["cross_entropy"] or self.on["fused_linear_cross_entropy"]
        head = self.model.get_output_embeddings()
        if not wanted or head is None or not _causal_lm.has_causal_loss(self.model):
            return
        if not _equal.is_of_transformers(self.model):
            self.report.leave(f"cross_entropy: the model is of a class of its own, not of transformers' {self.like()}")
            return
        if hasattr(self.model, "_loss_function"):
            self.report.leave("cross_entropy: the model has a loss function of its own")
            return
        path = next((name for name, module in self.model.named_modules() if module is head), None)
        if self.takes("fused_linear_cross_entropy") and self.logits_fit(path):
            make = _causal_lm.loss_forward, type(self.model), path, self.skip_logits, self.family
            self.forward("fused_linear_cross_entropy", self.model, *make)
        if self.takes("cross_entropy"):
            put(self.model, "_loss_function", _causal_lm.causal_lm_loss)
            self.report.count("cross_entropy")

    def like(self) -> str:
        """The class of transformers that the model's own is derived from."""
        names = (cls.__name__ for cls in type(self.model).__mro__ if cls.__module__ == self.transformers.__name__)
        return next(names, "")

    def logits_fit(self, path: str) -> bool:
        """Whether the model's loss is that which fused_linear_cross_entropy makes of its hidden states."""
        if any(p.is_meta for p in self.model.parameters()):
            self.report.leave("comparing fused_linear_cross_entropy with the model's own logits: it has no weights yet")
            return True
        why = more_than_its_loss(self.model, path, *_causal_lm.cap_of(self.model.config, self.family))
        if why is not None:
            self.report.leave(f"fused_linear_cross_entropy: the model has {why}")
        return why is None


def _activation(mlp) -> str:
    config = getattr(mlp, "config", None)
    name = getattr(config, "hidden_act", getattr(config, "hidden_activation", None))
    return f" ('{name}')" if name else ""


def apply(model, *, skip_logits: bool | None = None, recompute: bool = True, **switches) -> Report:
    """Puts tigon's operators into this model; its family is read from model.config.model_type.

    Switches: rope, rms_norm, fused_add_rms_norm, layer_norm, swiglu, geglu, relu_squared, attention, cross_entropy,
    fused_linear_cross_entropy, moe (all on), and linear: True, False, or "auto", which measures each shape and takes
    tigon's where it is faster.
    skip_logits: whether a call with labels leaves the logits out; None: in training.
    recompute: outputs of norms and gates are not kept for backward but made again: less memory for a little time.
    Returns what was replaced and what was left, which is also logged. A second call replaces the first.
    Whatever a module of the model computes otherwise than tigon's operators stays as it is: each class is compared on
    small random numbers, once a process.
    The device of the parameters decides which kernels there are: move a model first. Parameters on the CPU and on CUDA
    are refused.
    Raises ValueError for a model of a type that it does not know, ImportError for a transformers older than 4.57.
    """
    outer, model = model, _unwrap(model)
    family, on = _family_of(model), _switches(switches)
    refuse_parts(model)
    device = _device_of(model)
    revert(model)  # and one inside it that was patched when it was built
    work = _Applying(model, family, on, skip_logits, recompute, device)
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
    types = types_of(model_type)
    if model is not None:
        kind = _unwrap(model).config.model_type
        if kind not in types:
            raise ValueError(f"tigon_torch: the model is of type '{kind}', not '{model_type}'")
        return apply(model, **options, **switches)
    _switches(switches)
    from transformers import PreTrainedModel

    for cls in list(vars(FAMILIES[model_type].load()).values()):
        if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel) or cls is PreTrainedModel:
            continue
        if getattr(cls.config_class, "model_type", None) not in types:
            continue
        restore(cls)
        before = cls.__init__

        @functools.wraps(before)
        def build(self, config, *args, _before=before, _cls=cls, **kwargs):
            _before(self, config, *args, **kwargs)
            if type(self) is _cls and config.model_type in types:
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
            _attention.restore(module)
        restore(module)


def _door(model_type: str):
    def apply_to(*, model=None, skip_logits: bool | None = None, recompute: bool = True, **switches) -> Report | None:
        return _apply_to_class(model_type, model, {"skip_logits": skip_logits, "recompute": recompute}, switches)

    name = f"apply_to_{model_type}"
    apply_to.__name__ = apply_to.__qualname__ = name
    types = " or ".join(types_of(model_type))
    apply_to.__doc__ = (f"Patches `model`, or without one every {types} model that is built from now on.\n\n"
                        "Switches as apply() has them. Undone by revert(model), or revert().")
    return apply_to


globals().update({f"apply_to_{model_type}": _door(model_type) for model_type in FAMILIES})  # one for each type

__all__ = ["FAMILIES", "Report", "SWITCHES", "apply", "revert", *(n for n in dir() if n.startswith("apply_to_"))]
