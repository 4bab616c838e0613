"""The forward of a causal language model whose loss is made from hidden states, without its logits in memory."""
from __future__ import annotations

import sys

import torch
from torch import nn

from .. import ops
from .cache import name as name_of_cache, takes_cache
from .patch import say_once


def _shifted(labels, kwargs, ignore_index):
    """Labels of the tokens that each position predicts, as transformers shifts them."""
    if kwargs.get("shift_labels") is not None:
        return kwargs["shift_labels"]
    return nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()


def _divided(loss, items):
    return loss / items.to(loss.device) if torch.is_tensor(items) else loss / items


def causal_lm_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs):
    """transformers' ForCausalLMLoss by tigon's cross_entropy: 16-bit logits are not copied to f32."""
    target = _shifted(labels, {"shift_labels": shift_labels}, ignore_index).reshape(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = ops.cross_entropy(logits.reshape(-1, vocab_size), target, ignore_index=ignore_index, reduction=reduction)
    return loss if num_items_in_batch is None else _divided(loss, num_items_in_batch)


def fused_loss(head, hidden, labels, softcap=None, num_items_in_batch=None, ignore_index=-100, **kwargs):
    """The loss of hidden states [batch, seq, hidden] and labels by fused_linear_cross_entropy."""
    target = _shifted(labels, kwargs, ignore_index).reshape(-1)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    weight, bias = head.weight, head.bias
    if torch.is_autocast_enabled("cpu"):
        to = torch.get_autocast_dtype("cpu")
        hidden, weight, bias = hidden.to(to), weight.to(to), None if bias is None else bias.to(to)
    reduction = "mean" if num_items_in_batch is None else "sum"
    with torch.autocast("cpu", enabled=False):
        loss = ops.fused_linear_cross_entropy(hidden, weight, target, bias=bias, ignore_index=ignore_index,
                                              softcap=softcap, reduction=reduction)
    return loss if num_items_in_batch is None else _divided(loss, num_items_in_batch)


def _why_not(model, hidden, labels, kwargs) -> str | None:
    head = model.lm_head
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return "the model's head is not a plain linear layer, so its logits are made"
    own = getattr(model, "_loss_function", causal_lm_loss)
    if getattr(model, "loss_type", None) != "ForCausalLM" or own is not causal_lm_loss:
        return "the model has a loss function of its own, so its logits are made"
    if hidden.device.type != "cpu" or (hidden.dtype != head.weight.dtype and not torch.is_autocast_enabled("cpu")):
        return "the hidden states have another type or device than the head, so logits are made"
    target = labels if kwargs.get("shift_labels") is None else kwargs["shift_labels"]
    if target.numel() != hidden.numel() // hidden.shape[-1]:
        return "there are not as many labels as hidden states, so logits are made"
    return None


def _positions_to_keep(hidden, keep):
    """The last `keep` positions (0: all), those of an index, or of a mask [batch, seq]: as the forward of transformers."""
    if isinstance(keep, torch.Tensor) and keep.ndim == 2:
        return hidden[keep] if keep.dtype == torch.bool else torch.take_along_dim(hidden, keep[..., None], dim=1)
    return hidden[:, slice(-keep, None) if isinstance(keep, int) else keep, :]


def _loss_and_logits(self, outputs, labels, logits_to_keep, skip, capped: bool, kwargs):
    hidden = _positions_to_keep(outputs.last_hidden_state, logits_to_keep)
    softcap = self.config.final_logit_softcapping if capped else None
    given = labels is not None
    if skip is None:
        skip = self.training
    if given and skip:
        why = _why_not(self, hidden, labels, kwargs)
        if why is None:
            return fused_loss(self.lm_head, hidden, labels, softcap, **kwargs), None
        say_once(f"tigon_torch: {why}")
    logits = self.lm_head(hidden)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    loss = None
    if given:
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
    return loss, logits


def dense_forward(skip: bool | None, capped: bool):
    """`skip`: whether calls with labels have no logits unless they say so; `capped`: the family caps its logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils.generic import can_return_tuple

    kept = name_of_cache()

    @takes_cache
    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, inputs_embeds=None,
                labels=None, use_cache=None, logits_to_keep=0, skip_logits=None, **kwargs):
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                             **{kept: cache}, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs)
        skips = skip if skip_logits is None else skip_logits
        loss, logits = _loss_and_logits(self, outputs, labels, logits_to_keep, skips, capped, kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{kept: getattr(outputs, kept)},
                                      hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    return forward


def moe_forward(skip: bool | None, capped: bool):
    """The same for experts, with the loss of their balance."""
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast
    from transformers.utils.generic import can_return_tuple

    kept = name_of_cache()

    @takes_cache
    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, inputs_embeds=None,
                labels=None, use_cache=None, output_router_logits=None, logits_to_keep=0, skip_logits=None, **kwargs):
        router = self.config.output_router_logits if output_router_logits is None else output_router_logits
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                             **{kept: cache}, inputs_embeds=inputs_embeds, use_cache=use_cache,
                             output_router_logits=router, **kwargs)
        skips = skip if skip_logits is None else skip_logits
        loss, logits = _loss_and_logits(self, outputs, labels, logits_to_keep, skips, capped, kwargs)
        aux_loss = None
        if router:
            balance = sys.modules[type(self).__module__].load_balancing_loss_func
            aux_loss = balance(outputs.router_logits, self.num_experts, self.num_experts_per_tok, attention_mask)
            if labels is not None:
                loss = loss + self.router_aux_loss_coef * aux_loss.to(loss.device)
        return MoeCausalLMOutputWithPast(loss=loss, aux_loss=aux_loss, logits=logits,
                                         **{kept: getattr(outputs, kept)}, hidden_states=outputs.hidden_states,
                                         attentions=outputs.attentions, router_logits=outputs.router_logits)

    return forward
