"""Whether the logits of a model are its head times the hidden states of its backbone, and no more.

Fused losses take hidden states and the head's weight. Some models scale, cap or mask their logits after the head, or
change hidden states before it, each by fields of a config of its own. So the model is asked, whatever its family.
"""
from __future__ import annotations

import contextlib
import itertools
import math

import torch
from torch import nn

from .causal_lm import with_head
from .patch import Forward
from .sharded import class_of, has_hooks

# Logits that the head is made to return: wide enough for caps and masks to show.
WIDEST = 64.0
# Buffers with more elements are weights of quantised layers, which no forward changes.
LARGE = 2**20


def head_and_backbone(model):
    """The layer that makes logits and the model that makes its input, inside wrappers of processes and of PEFT."""
    model = getattr(model, "module", model)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_output_embeddings(), inner.base_model


def is_plain(head) -> bool:
    """Whether a head is x weight^T + bias: a linear layer whose forward is PyTorch's or tigon's, without hooks."""
    own = vars(head).get("forward") if isinstance(head, nn.Module) else None
    return class_of(head) is nn.Linear and (own is None or isinstance(own, Forward)) and not has_hooks(head)


@contextlib.contextmanager
def undisturbed(model):
    """Runs of the model in evaluation, without gradients and uncompiled, that leave nothing behind: neither in its
    modules (modes, attributes, buffers) nor in the generator of random numbers."""
    kept = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
    values = [(b, b.clone()) for b in model.buffers() if b.numel() <= LARGE]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        try:
            model.eval()
            yield
        finally:
            for module, attributes, buffers in kept:
                for now, before in ((vars(module), attributes), (module._buffers, buffers)):
                    now.clear()
                    now.update(before)
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def small_batch(model) -> dict:
    """Two sequences of tokens that stand for themselves: not for padding, an image or the like."""
    table = model.get_input_embeddings().weight
    special = set()
    for config in (model.config, model.config.get_text_config()):
        for name, value in vars(config).items():
            if name.endswith(("_token_id", "_token_index")):
                special.update(value if isinstance(value, (list, tuple)) else [value])
    ids = list(itertools.islice((i for i in range(table.shape[0]) if i not in special), 8))
    ids = torch.tensor((ids * 8)[:8], device=table.device).reshape(2, 4)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _difference(actual, expected) -> float:
    """The largest one, relative to the largest of what is expected. NaN is equal to NaN: weights may have no values."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = actual.float(), expected.float()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    difference = torch.where(same, 0, (actual - expected).abs()).max() / expected.nan_to_num().abs().max()
    return 0.0 if same.all() else difference.nan_to_num(nan=float("inf"), posinf=float("inf")).item()


class _Probe:
    """A head that returns numbers up to WIDEST, and a loss function that looks at what became of them."""

    def __init__(self, head):
        self.head, self.heads, self.losses = head, 0, []

    def make(self, hidden):
        shape = (*hidden.shape[:-1], self.head.weight.shape[0])
        self.heads += 1
        numbers = torch.linspace(-WIDEST, WIDEST, math.prod(shape), dtype=hidden.dtype, device=hidden.device)
        self.made = numbers.view(shape)
        return self.made

    def loss(self, logits, labels, vocab_size=None, **kwargs):
        self.losses.append((logits, labels))
        return logits.sum()


def more_than_its_loss(model, path: str, softcap: float | None, multiplier: float) -> str | None:
    """What a model has whose loss is not that of all tokens' logits, or None where it is. Logits are those of its head,
    multiplied by some number; where there is a softcap by the multiplier, and then capped.

    Runs its own forward on a few tokens, over a head whose numbers do not depend on weights.
    """
    head = model.get_output_embeddings()
    if not is_plain(head):
        return f"a head that is no plain linear layer ({type(head).__name__})"
    probe = _Probe(head)
    with undisturbed(model):
        try:
            batch = small_batch(model)
            seen = with_head(model, path, probe.make, loss_function=probe.loss)
            type(model).forward(seen, **batch, labels=batch["input_ids"], use_cache=False, return_dict=True)
        except Exception as error:
            return f"logits that cannot be compared with those of its head ({type(error).__name__}: {error})"
        if probe.heads != 1 or len(probe.losses) != 1 or probe.losses[0][1] is not batch["input_ids"]:
            return "a loss that is not made of its head's logits alone"
        logits, made = probe.losses[0][0], probe.made
        if logits.shape != made.shape:
            return "a loss of other logits than its head's"
        if softcap is None:
            made = made * (logits.float().norm() / made.float().norm())
        else:
            made = softcap * torch.tanh(made * multiplier / softcap)
        difference = _difference(logits, made)
    if difference <= max(torch.finfo(made.dtype).eps, 1e-5):
        return None
    return f"logits that are more than a multiple of its head's (by {difference:.3g} of the largest one)"


def more_than_its_head(model, softcap: float | None = None) -> str | None:
    """What a model has whose logits are more than softcap(head(hidden states)), or None where they are that.

    Runs backbone and model on a few tokens. In the model's run the head returns numbers up to WIDEST, which the logits
    have to be, whatever the weights are; the head's input has to be the hidden states.
    """
    head, backbone = head_and_backbone(model)
    if getattr(model.config, "is_encoder_decoder", False):
        return "an encoder and decoder"
    if not is_plain(head):
        return f"a head that is no plain linear layer ({type(head).__name__})"
    seen = []

    def instead(layer, args, kwargs, output):
        made = torch.linspace(-WIDEST, WIDEST, output.numel(), dtype=output.dtype, device=output.device)
        seen.append((*args, *kwargs.values(), made.reshape(output.shape)))
        return seen[-1][-1]

    with undisturbed(model):
        handle = head.register_forward_hook(instead, with_kwargs=True)
        try:
            batch = small_batch(model)
            logits = model(**batch, use_cache=False).logits  # first: wrappers that shard it find out what is outermost
            hidden = backbone(**batch, use_cache=False).last_hidden_state
        except Exception as error:
            return f"logits that cannot be compared with head times hidden states ({type(error).__name__}: {error})"
        finally:
            handle.remove()
        if len(seen) != 1:
            return "logits that its head does not make"
        x, made = seen[0]
        if softcap is not None:
            made = softcap * torch.tanh(made / softcap)
        difference = max(_difference(x, hidden), _difference(logits, made))
    if difference <= max(torch.finfo(made.dtype).eps, 1e-5):
        return None
    return f"logits that are more than head times hidden states (by {difference:.3g} of the largest one)"
