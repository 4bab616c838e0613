"""One line for a trainer of transformers or TRL:

    trainer = transformers.Trainer(model=model, args=args, ...)     # or trl.SFTTrainer, DPOTrainer, ...
    print(tigon_torch.use_in(trainer))
    trainer.train()
"""
from __future__ import annotations

import types

import torch

from . import losses
from .apply import Report, _unwrap, apply


def _refuse(trainer, *conditions) -> None:
    for bad, what in conditions:
        if bad:
            raise ValueError(f"tigon_torch.use_in: {type(trainer).__name__} with {what} keeps its own loss")


def _below_trl(forward) -> types.CellType | None:
    """Where the forward that TRL has put around a model's, to compute log-probabilities, keeps that, or None."""
    code = getattr(forward, "__code__", None)
    cells = {} if code is None else dict(zip(code.co_freevars, forward.__closure__ or ()))
    return cells.get("original_forward")


def _apply_below_trl(model, switches: dict) -> Report:
    """apply(model), with TRL's forward around tigon's."""
    outer = vars(model).get("forward")
    inside = _below_trl(outer)
    if inside is None:
        return apply(model, **switches)
    del model.forward
    try:
        report = apply(model, **switches)
        inside.cell_contents = model.forward
    finally:
        model.forward = outer
    return report


def _only_the_loss(trainer) -> None:
    """Refuses what an SFTTrainer computes of more than the model's loss."""
    args = trainer.args
    _refuse(trainer, (args.loss_type not in ("nll", "dft"), f"loss_type {args.loss_type}"),
            (trainer.compute_loss_func is not None, "compute_loss_func"),
            (trainer.label_smoother is not None, "label_smoothing_factor"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"), (args.use_liger_kernel, "use_liger_kernel"))


def _sft_loss(trainer):
    """compute_loss of an SFTTrainer by the loss of its model, the mean over the labels of all processes."""

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        mode = "train" if trainer.model.training else "eval"
        labels = inputs["labels"]
        items = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        outputs = model(**{**inputs, "use_cache": False, "skip_logits": not return_outputs,
                           "num_items_in_batch": items.clamp(min=1), "return_token_accuracy": True,
                           "token_scaling": trainer.args.loss_type == "dft"})
        loss = outputs.loss
        if trainer.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * (trainer.accelerator.num_processes // trainer.get_tp_size())
        counted = (labels[:, 1:] != -100).sum()
        right = torch.where(counted > 0, outputs.token_accuracy * counted, 0.0)
        counted, right = (trainer.accelerator.gather_for_metrics(number).sum() for number in (counted, right))
        trainer._metrics[mode]["mean_token_accuracy"].append((right / counted).item() if counted > 0 else 0.0)
        if mode == "train":
            seen = inputs["attention_mask"].sum() if "attention_mask" in inputs else labels.new_tensor(labels.numel())
            trainer._total_train_tokens += trainer.accelerator.gather_for_metrics(seen).sum().item()
        trainer._metrics[mode]["num_tokens"] = [trainer._total_train_tokens]
        return (loss, outputs) if return_outputs else loss

    return compute_loss


def _is_of(trainer, name: str) -> bool:
    return type(trainer).__name__ == name and type(trainer).__module__.startswith("trl.")


def use_in(trainer, **switches) -> Report:
    """Patches the model of a trainer (apply(), whose switches it takes), and has its loss made by tigon.

    transformers.Trainer takes the loss of its model, which is then the fused one. trl.SFTTrainer computes its own of
    log-probabilities; here it takes the model's, in the same mean over tokens, and does not log entropies.
    Of TRL's other trainers the loss is made by losses.use_in_trl, and reference and teacher are patched, too.
    RewardTrainer, RLOOTrainer and others of TRL whose losses tigon does not have keep them, over patched layers.
    Raises ValueError where the trainer computes another loss than that: it keeps its own, over the patched layers or,
    where options say so before anything is patched, over the model as it was.
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        kind = type(trainer).__name__
        raise TypeError(f"tigon_torch.use_in: expected a Trainer of transformers or of TRL, not a {kind}")
    model, sft = _unwrap(trainer.model), _is_of(trainer, "SFTTrainer")
    kind = type(trainer).__name__
    preferences = any(_is_of(trainer, name) for name in losses.trl._TRL)
    others = not sft and not preferences and _is_of(trainer, kind)  # whose loss stays TRL's
    if sft or preferences:
        too_old = losses.trl.what_is_too_old()
        _refuse(trainer, (too_old, too_old))
    if sft:
        _only_the_loss(trainer)
    elif others:
        _refuse(trainer, (trainer.args.use_liger_kernel, "use_liger_kernel"))
    elif type(trainer).compute_loss is not Trainer.compute_loss and not preferences:
        _refuse(trainer, (True, "a compute_loss that tigon does not know"))
    report = _apply_below_trl(model, switches)
    if preferences or others:
        for other in (getattr(trainer, name, None) for name in ("ref_model", "teacher_model")):
            if other is not None:
                _apply_below_trl(_unwrap(other), switches)
    if preferences:
        losses.use_in_trl(trainer)
    if others:
        report.leave(f"the loss: that of {kind} is TRL's own")
    if sft:
        missing = report.replaced.get("fused_linear_cross_entropy", 0) == 0
        _refuse(trainer, (missing, f"a model that has {'; '.join(report.left) or 'no fused loss'},"))
        trainer.compute_loss = _sft_loss(trainer)
    return report
