"""The forward of a causal language model whose loss is made from hidden states, without its logits in memory.

It is transformers' own forward, whatever the model gives it and makes of it, over the same model with another head and
another loss function: a head that hands hidden states on as if they were logits, and a loss of those. A model that
multiplies its logits multiplies hidden states then, which is the same; families.py says which ones cap them, and
head.py looks at both.
"""
from __future__ import annotations

import functools
import inspect
import typing

import torch
from torch import nn

from .. import ops
from ..devices import autocast_type, runs, without_autocast
from .patch import say_once
from .sharded import class_of, has_hooks, is_sharded, refuse_partitioned, run_inside


class Metrics(typing.NamedTuple):
    """What a call of a model wants beside its loss, as arguments of ops.fused_linear_cross_entropy."""
    return_token_accuracy: bool = False
    return_predicted_tokens: bool = False


NONE = Metrics()


def _shifted(labels, kwargs, ignore_index):
    """Labels of the tokens that each position predicts, as transformers shifts them."""
    if kwargs.get("shift_labels") is not None:
        return kwargs["shift_labels"]
    return nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()


def _divided(loss, items):
    return loss / items.to(loss.device) if torch.is_tensor(items) else loss / items


def causal_lm_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None,
                   token_scaling: bool = False, **kwargs):
    """transformers' ForCausalLMLoss by tigon's cross_entropy: 16-bit logits are not copied to f32. token_scaling
    multiplies the loss of every token by its probability, which is taken for a constant."""
    target = _shifted(labels, {"shift_labels": shift_labels}, ignore_index).reshape(-1).to(logits.device)
    reduction = "none" if token_scaling else "mean" if num_items_in_batch is None else "sum"
    loss = ops.cross_entropy(logits.reshape(-1, vocab_size), target, ignore_index=ignore_index, reduction=reduction)
    if token_scaling:
        loss = (loss * torch.exp(-loss.detach())).sum()
        num_items_in_batch = (target != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return loss if num_items_in_batch is None else _divided(loss, num_items_in_batch)


def fused_loss(head, hidden, labels, softcap=None, num_items_in_batch=None, ignore_index=-100, metrics=NONE,
               token_scaling: bool = False, **kwargs):
    """The loss of hidden states [batch, seq, hidden] and labels by fused_linear_cross_entropy, and the metrics."""
    target = _shifted(labels, kwargs, ignore_index)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    weight, bias = head.weight, head.bias
    to = autocast_type(hidden)
    if to is not None:
        hidden, weight, bias = hidden.to(to), weight.to(to), None if bias is None else bias.to(to)
    reduction = "mean" if num_items_in_batch is None else "sum"
    with without_autocast(hidden):
        made = ops.fused_linear_cross_entropy(hidden, weight, target.reshape(-1), bias=bias, ignore_index=ignore_index,
                                              softcap=softcap, reduction=reduction, token_scaling=token_scaling,
                                              **metrics._asdict())
    loss, accuracy, tokens = made, None, None
    if any(metrics):
        loss, accuracy, tokens = made.loss, made.token_accuracy, made.predicted_tokens
    loss = loss if num_items_in_batch is None else _divided(loss, num_items_in_batch)
    return loss, accuracy, tokens if tokens is None else tokens.view(target.shape)


def metrics_of(logits, labels, kwargs, metrics):
    """The same metrics of logits."""
    ignored = kwargs.get("ignore_index", -100)
    target = _shifted(labels, kwargs, ignored).to(logits.device)
    counted = target != ignored
    tokens = torch.where(counted, logits.detach().argmax(-1), -1)
    accuracy = (tokens == target).sum() / counted.sum()
    return (accuracy if metrics.return_token_accuracy else None), (tokens if metrics.return_predicted_tokens else None)


def cap_of(config, family) -> tuple[float | None, float]:
    """The soft cap c of a model's logits, c tanh(m logits / c), or None, and the multiplier m that it has then."""
    text = config.get_text_config()
    softcap = getattr(text, "final_logit_softcapping", None) if family.capped else None
    return softcap, getattr(text, family.multiplied) if softcap is not None and family.multiplied else 1.0


class _Seen:
    """A model as its own forward sees it, with these in the place of attributes of it."""

    def __init__(self, model, **instead):
        self._model = model
        for name, value in instead.items():  # not by __dict__, which torch.compile of PyTorch 2.10 does not see
            setattr(self, name, value)

    def __getattr__(self, name):
        return getattr(self._model, name)


def with_head(model, path: str, head, **instead):
    """The model with this head. `path`: where it is, in the model or in one inside it ("language_model.lm_head")."""
    first, _, rest = path.partition(".")
    if not rest:
        return _Seen(model, **{first: head}, **instead)
    inner = getattr(model, first)

    def run(*args, **kwargs):
        return type(inner).forward(with_head(inner, rest, head), *args, **kwargs)

    return _Seen(model, **{first: run}, **instead)


class _Run:
    """One call of a model: its head and its loss function."""

    def __init__(self, model, labels, kwargs, family, metrics):
        self.model, self.real_head = model, model.get_output_embeddings()
        self.softcap, self.multiplier = cap_of(model.config, family)
        self.target = labels if kwargs.get("shift_labels") is None else kwargs["shift_labels"]
        self.hidden, self.metrics, self.measured = None, metrics, (None, None)

    def _why_not(self, hidden) -> str | None:
        head = self.real_head
        # What is gathered comes in the type of its policy.
        fits = hidden.dtype == head.weight.dtype or is_sharded(head) or autocast_type(hidden) is not None
        if not fits or hidden.device != head.weight.device or not runs("fused_linear_cross_entropy", hidden):
            return "the hidden states have another type or device than the head, so logits are made"
        if self.target.numel() != hidden.numel() // hidden.shape[-1]:
            return "there are not as many labels as hidden states, so logits are made"
        return None

    def head(self, hidden):
        why = self._why_not(hidden)
        if why is not None:
            say_once(f"tigon_torch: {why}")
            return self.real_head(hidden)
        self.hidden = hidden
        return hidden

    def loss(self, logits, labels, vocab_size=None, **kwargs):
        if self.hidden is None:
            return self.model.loss_function(logits, labels, vocab_size, **kwargs)
        hidden = logits.to(self.hidden.dtype) if self.softcap is None else self.hidden * self.multiplier

        def fused(hidden):
            return fused_loss(self.real_head, hidden, labels, self.softcap, metrics=self.metrics, **kwargs)

        loss, *self.measured = run_inside(self.real_head, fused, hidden)
        return loss


def has_causal_loss(model) -> bool:
    """Whether its class has transformers' loss of the next token."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    return LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss


def _why_not(model) -> str | None:
    head = model.get_output_embeddings()
    refuse_partitioned(*head.parameters())
    if class_of(head) is not nn.Linear or has_hooks(head):
        return "the model's head is not a plain linear layer, so its logits are made"
    if getattr(model, "_loss_function", causal_lm_loss) is not causal_lm_loss or not has_causal_loss(model):
        return "the model has a loss function of its own, so its logits are made"
    return None


def loss_forward(cls: type, path: str, skip: bool | None, family):
    """The forward of the class. `path`: where its head is; `skip`: whether calls with labels have no logits unless they
    say so; `family`: how its logits are capped (families.py)."""
    signature = inspect.signature(cls.forward)
    names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]

    @functools.wraps(cls.forward)
    def forward(self, *args, skip_logits=None, return_token_accuracy=False, return_predicted_tokens=False, **kwargs):
        kwargs.update(zip(names, args))
        args = args[len(names):]
        skips = skip if skip_logits is None else skip_logits
        if skips is None:
            skips = self.training
        labels, metrics = kwargs.get("labels"), Metrics(return_token_accuracy, return_predicted_tokens)
        why = _why_not(self) if skips and labels is not None else None
        if why is not None:
            say_once(f"tigon_torch: {why}")
        skips = skips and labels is not None and why is None
        if not skips and (labels is None or not any(metrics)):
            return cls.forward(self, *args, **kwargs)
        wanted = kwargs.pop("return_dict", None)
        run = _Run(self, labels, kwargs, family, metrics)
        seen = with_head(self, path, run.head, loss_function=run.loss) if skips else self
        out = cls.forward(seen, *args, return_dict=True, **kwargs)
        measured = run.measured
        if run.hidden is not None:
            out = type(out)(**{**out, "loss": out.loss, "logits": None})
        elif any(metrics):
            measured = metrics_of(out.logits, labels, kwargs, metrics)
        out.token_accuracy, out.predicted_tokens = measured
        return out if (self.config.return_dict if wanted is None else wanted) else out.to_tuple()

    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in
               (("skip_logits", None), ("return_token_accuracy", False), ("return_predicted_tokens", False))]
    parameters = list(signature.parameters.values())
    place = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_KEYWORD), len(parameters))
    forward.__signature__ = signature.replace(parameters=[*parameters[:place], *options, *parameters[place:]])
    return forward
