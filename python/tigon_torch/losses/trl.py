"""Losses in the trainers of TRL."""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import inspect
import re
import types

import torch
from torch import Tensor, nn

from .. import devices
from ..apply.head import head_and_backbone, more_than_its_head, small_batch, undisturbed
from .modules import (
    FusedLinearCPOLoss, FusedLinearDPOLoss, FusedLinearGRPOLoss, FusedLinearJSD, FusedLinearKTOLoss,
    FusedLinearORPOLoss, FusedLinearSimPOLoss, GRPOLoss)


OLDEST = (1, 16)  # the TRL whose losses these are


def what_is_too_old() -> str | None:
    """The TRL that is installed, where it computes its losses in other ways than those that are known here, or None."""
    version = importlib.metadata.version("trl")
    if tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", version).groups()) >= OLDEST:
        return None
    return f"TRL {version}, older than {OLDEST[0]}.{OLDEST[1]}, which needs Python 3.11,"


def _hidden(model, inputs: dict) -> tuple[Tensor, nn.Module]:
    """Hidden states of the tokens before each next one, and the head."""
    head, backbone = head_and_backbone(model)
    return backbone(**inputs, use_cache=False).last_hidden_state[:, :-1], head


@contextlib.contextmanager
def _reference(trainer):
    """The model of the reference, without gradients: the trainer's, or the one in training without its adapter."""
    with torch.no_grad():
        if trainer.ref_model is not None:
            yield trainer.ref_model
            return
        from trl.trainer.utils import use_adapter

        model = trainer.accelerator.unwrap_model(trainer.model)
        with use_adapter(model, "ref" if "ref" in model.peft_config else None):
            yield model


def _prompts_are_learned(model) -> bool:
    """PEFT's kinds that put tokens before the input: hidden states of the backbone alone have none."""
    return any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values())


def _refuse(trainer, *conditions) -> None:
    for bad, what in conditions:
        if bad:
            raise ValueError(f"tigon_torch.losses.use_in_trl: {type(trainer).__name__} with {what} keeps TRL's loss")


def _try(trainer, loss) -> None:
    """Runs the loss on zeros, so that options that its operator refuses are refused before training."""
    backbone = head_and_backbone(trainer.model)[1]
    x = torch.zeros(2, 2, 4, dtype=backbone.dtype, device=backbone.device)
    try:
        loss(x, x.new_zeros(4, 4))
    except (RuntimeError, ValueError) as error:
        _refuse(trainer, (True, f"an option that tigon refuses ({error})"))


def _models(trainer) -> list:
    """The one in training, that of the reference and the teacher, if there are others, outside wrappers of processes."""
    models = [trainer.model, getattr(trainer, "ref_model", None), getattr(trainer, "teacher_model", None)]
    return [getattr(model, "module", model) for model in models if model is not None]


def _no_plain_head(trainer) -> list:
    """Why logits are more than hidden states times the weight of the head, for the model and its reference."""
    reasons = []
    for model in _models(trainer):
        head, _ = head_and_backbone(model)
        softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        reasons += [(softcap is not None, "soft-capped logits"),
                    (isinstance(head, nn.Module) and type(head) is not nn.Linear, "an adapter on the head"),
                    (_prompts_are_learned(model), "learned prompts")]
        if not any(bad for bad, _ in reasons):
            with trainer.accelerator.autocast():  # which accelerate has put around the model's forward
                why = more_than_its_head(model)
            reasons.append((why is not None, f"a model of type '{model.config.model_type}', which has {why},"))
    return reasons


def _own_log_probs(trainer, model) -> None:
    """Compares, on a few tokens, the log-probabilities that TRL computes of hidden states with those of the model's own
    logits: TRL, too, goes by fields of the config."""
    temperature = getattr(trainer, "temperature", 1.0)
    with undisturbed(model), trainer.accelerator.autocast():
        batch = small_batch(model)
        ids = batch["input_ids"]
        try:
            theirs = model(**batch, labels=ids, fused_lm_head=True).log_probs[:, -ids.shape[1] + 1:].float()
            logits = model(**batch, use_cache=False).logits[:, -ids.shape[1] : -1]
        except Exception as error:
            _refuse(trainer, (True, f"a model that takes no text alone ({type(error).__name__}: {error})"))
        own = (logits.float() / temperature).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        dtype = devices.autocast_type(logits) or logits.dtype
    bound = max(16 * torch.finfo(dtype).eps, 1e-4) * max(1.0, (logits.abs().max() / temperature).item())
    difference = (theirs - own).abs().max().item()
    what = f"a model of type '{model.config.model_type}', of whose logits TRL has other log-probabilities"
    _refuse(trainer, (not difference <= bound, f"{what} (by {difference:.3g}),"))


# TRL's loss_type that tigon has under the same name and with the same formula.
_TRL_DPO = ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero",
            "apo_down", "discopop")


def _mean(trainer, value, count=1.0) -> float:
    """Over all processes, of which this one has the mean of `count` values; NaN where there are none at all."""
    device = trainer.accelerator.device
    value, count = (torch.as_tensor(number, dtype=torch.float32, device=device).detach() for number in (value, count))
    total = trainer.accelerator.gather(torch.stack([torch.where(count > 0, value * count, 0.0), count])[None]).sum(0)
    return (total[0] / total[1]).item()


def _log(trainer, mode: str, values: dict, count=1.0) -> dict:
    """Means of so many values here, or (mean, how many). Returns those over all processes, without what there is not."""
    means = {name: _mean(trainer, *value) if isinstance(value, tuple) else _mean(trainer, value, count)
             for name, value in values.items()}
    means = {name: mean for name, mean in means.items() if mean == mean}
    for name, mean in means.items():
        trainer._metrics[mode][name].append(mean)
    return means


def _log_tokens(trainer, mode: str, inputs: dict) -> None:
    if mode == "train":
        trainer._total_train_tokens += trainer.accelerator.gather(inputs["attention_mask"].sum()).sum().item()
    trainer._metrics[mode]["num_tokens"] = [trainer._total_train_tokens]


def _dpo(trainer) -> dict:
    kinds = list(trainer.loss_types)
    _refuse(trainer, (len(kinds) != 1 or kinds[0] not in _TRL_DPO, f"loss_type {kinds}"),
            (trainer.f_divergence_type != "reverse_kl", f"f_divergence_type {trainer.f_divergence_type}"),
            (trainer.ld_alpha is not None, "ld_alpha"), (trainer.use_weighting, "use_weighting"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"))
    smoothing = trainer.label_smoothing if kinds[0] in ("exo_pair", "robust") else 0.0
    loss_of = FusedLinearDPOLoss(beta=trainer.beta, loss=kinds[0], label_smoothing=smoothing,
                                 discopop_tau=trainer.args.discopop_tau, metrics=True)
    _try(trainer, lambda x, w: loss_of(x, w, x.new_zeros(x.shape[:2]).long(), ref_logps=x.new_zeros(2).float()))
    weight = trainer.loss_weights[0]

    def compute(model, inputs, return_outputs):
        if return_outputs:
            return type(trainer)._compute_loss(trainer, model, inputs, return_outputs)
        mode = "train" if trainer.model.training else "eval"
        own = {"completion_mask", "ref_chosen_logps", "ref_rejected_logps"}
        passed = {name: value for name, value in inputs.items() if name not in own}
        target = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)[:, 1:]
        x, head = _hidden(model, passed)
        reference = {}
        if trainer.precompute_ref_logps:
            reference["ref_logps"] = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]]).float()
        else:
            with _reference(trainer) as ref_model:
                ref_x, ref_head = _hidden(ref_model, passed)
            reference.update(ref_x=ref_x, ref_weight=ref_head.weight, ref_bias=ref_head.bias)
        loss, results = loss_of(x, head.weight, target, head.bias, **reference)
        chosen, rejected = results["chosen_rewards"], results["rejected_rewards"]
        _log(trainer, mode, {"rewards/chosen": chosen.mean(), "rewards/rejected": rejected.mean(),
                             "rewards/accuracies": (chosen > rejected).float().mean(),
                             "rewards/margins": (chosen - rejected).mean(),
                             "logps/chosen": results["chosen_logps"].mean(),
                             "logps/rejected": results["rejected_logps"].mean()})
        _log_tokens(trainer, mode, inputs)
        return loss * weight

    return {"_compute_loss": compute}


def _of_pairs(trainer, loss_of, padding_value: int, whole_text: bool, last: int | None, names=()) -> dict:
    """For a trainer of pairs without a reference. whole_text: the likelihood is of the whole chosen text, not of its
    completion; last: up to which position TRL takes means of logits; names of the loss's own metrics."""

    def metrics_of(model, batch, train_eval="train"):
        both = trainer.concatenated_inputs(batch, is_encoder_decoder=False, padding_value=padding_value,
                                           device=trainer.accelerator.device)
        ids, mask = both["concatenated_input_ids"], both["concatenated_attention_mask"]
        head, backbone = head_and_backbone(model)
        x = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        more = (torch.where(mask == 1, ids, -100)[: ids.shape[0] // 2, 1:],) if whole_text else ()
        loss, results = loss_of(x[:, :-1], head.weight, both["concatenated_labels"][:, 1:], head.bias, *more)
        with torch.no_grad():  # the mean over positions and vocabulary, for which one product a sequence is enough
            logits = nn.functional.linear(x[:, :last].mean(1), head.weight, head.bias).float().mean(-1)
        chosen, rejected = results["chosen_rewards"], results["rejected_rewards"]
        prefix = "eval_" if train_eval == "eval" else ""
        values = {"rewards/chosen": chosen.mean(), "rewards/rejected": rejected.mean(),
                  "rewards/accuracies": (chosen > rejected).float().mean(),
                  "rewards/margins": (chosen - rejected).mean(), "logps/chosen": results["chosen_logps"].mean(),
                  "logps/rejected": results["rejected_logps"].mean(), "nll_loss": results["nll_loss"].mean(),
                  "logits/chosen": logits.chunk(2)[0].mean(), "logits/rejected": logits.chunk(2)[1].mean(),
                  **dict(zip(names, results["metrics"]))}
        return loss, {prefix + name: _mean(trainer, value) for name, value in values.items()}

    return {"get_batch_loss_metrics": metrics_of}


def _orpo(trainer) -> dict:
    _refuse(trainer, (trainer.is_encoder_decoder, "an encoder and decoder"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"))
    loss_of = FusedLinearORPOLoss(beta=trainer.beta, metrics=True)
    _try(trainer, lambda x, w: loss_of(x, w, x.new_zeros(x.shape[:2]).long()))
    return _of_pairs(trainer, loss_of, trainer.padding_value, True, -1, ("log_odds_ratio", "log_odds_chosen"))


def _cpo(trainer) -> dict:
    kind = trainer.loss_type
    _refuse(trainer, (trainer.is_encoder_decoder, "an encoder and decoder"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"), (trainer.alpha != 0, f"alpha {trainer.alpha}"),
            (kind not in ("sigmoid", "simpo", "hinge", "ipo"), f"loss_type {kind}"))
    options = dict(beta=trainer.beta, compute_nll_loss=trainer.cpo_alpha != 0, alpha=trainer.cpo_alpha, metrics=True)
    if kind == "sigmoid":
        loss_of = FusedLinearCPOLoss(label_smoothing=trainer.label_smoothing, **options)
    elif kind == "simpo":
        loss_of = FusedLinearSimPOLoss(gamma=trainer.simpo_gamma, label_smoothing=trainer.label_smoothing, **options)
    else:  # those of DPO without a reference
        loss_of = FusedLinearDPOLoss(loss=kind, average_log_prob=kind == "ipo", **options)
    _try(trainer, lambda x, w: loss_of(x, w, x.new_zeros(x.shape[:2]).long()))
    return _of_pairs(trainer, loss_of, trainer.pad_token_id, False, None)


def _kto(trainer) -> dict:
    _refuse(trainer, (trainer.loss_type != "kto", f"loss_type {trainer.loss_type}"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"))
    loss_of = FusedLinearKTOLoss(beta=trainer.beta, desirable_weight=trainer.desirable_weight,
                                 undesirable_weight=trainer.undesirable_weight, metrics=True)
    _try(trainer, lambda x, w: loss_of(x, w, x.new_zeros(x.shape[:2]).long(), x.new_ones(2).byte(),
                                       ref_logps=x.new_zeros(2).float()))

    def compute(model, inputs, return_outputs):
        if return_outputs:
            return type(trainer)._compute_loss(trainer, model, inputs, return_outputs)
        mode = "train" if trainer.model.training else "eval"
        own = {"completion_mask", "label", "ref_logps", "ref_KL_logps"}
        passed = {name: value for name, value in inputs.items() if name not in own and not name.startswith("KL_")}
        target = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)[:, 1:]
        desirable = torch.as_tensor(inputs["label"], dtype=torch.bool, device=target.device)
        x, head = _hidden(model, passed)
        reference, kl = {}, None
        with torch.no_grad():
            own = trainer._compute_kl_logps(model, inputs)
            if trainer.precompute_ref_logps:
                reference["ref_logps"], theirs = inputs["ref_logps"].float(), inputs.get("ref_KL_logps")
            else:
                with _reference(trainer) as ref_model:
                    ref_x, ref_head = _hidden(ref_model, passed)
                    theirs = trainer._compute_kl_logps(ref_model, inputs)
                reference.update(ref_x=ref_x, ref_weight=ref_head.weight, ref_bias=ref_head.bias)
            if trainer.calculate_KL:
                kl = trainer.accelerator.gather_for_metrics((own - theirs).mean()).mean().clamp(min=0).reshape(1)
        loss, results = loss_of(x, head.weight, target, desirable.to(torch.uint8), head.bias, kl, **reference)
        values = {"kl": 0.0 if kl is None else kl.item()}
        for name, which in (("chosen", desirable), ("rejected", ~desirable)):  # a batch may have none of them
            values[f"rewards/{name}"] = results["rewards"][which].mean(), which.sum()
            values[f"logps/{name}"] = results["logps"][which].mean(), which.sum()
        means = _log(trainer, mode, values)
        if "rewards/chosen" in means and "rewards/rejected" in means:
            margin = means["rewards/chosen"] - means["rewards/rejected"]
            trainer._metrics[mode]["rewards/margins"].append(margin)
        _log_tokens(trainer, mode, inputs)
        return loss

    return {"_compute_loss": compute}


def _gkd(trainer) -> dict:
    _refuse(trainer, (trainer.aux_loss_enabled, "the auxiliary loss of experts"))
    loss_of = FusedLinearJSD(beta=trainer.beta)  # TRL's temperature is that of the texts which are sampled
    _try(trainer, lambda x, w: loss_of(x, w, x, w))

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        if return_outputs:
            return type(trainer).compute_loss(trainer, model, inputs, return_outputs, num_items_in_batch)
        passed = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        labels = inputs["labels"][:, 1:]
        teacher = trainer.accelerator.unwrap_model(trainer.teacher_model).eval()
        with torch.no_grad():
            teacher_x, teacher_head = _hidden(teacher, passed)
        x, head = _hidden(model, passed)
        loss = loss_of(x, head.weight, teacher_x, teacher_head.weight, labels, head.bias, teacher_head.bias)
        return loss if num_items_in_batch is None else loss * (labels != -100).sum() / num_items_in_batch

    return {"compute_loss": compute_loss}


def _divergence(student_hidden_states, teacher_hidden_states, student_lm_head_weight, teacher_lm_head_weight,
                completion_mask, beta, num_items_in_batch=None, student_lm_head_bias=None, teacher_lm_head_bias=None,
                student_logit_scale=1.0, teacher_logit_scale=1.0, student_final_logit_softcapping=None,
                teacher_final_logit_softcapping=None, temperature=1.0):
    """In the place of the function of this form that TRL's DistillationTrainer calls; scales and caps are refused
    before. Its entropies are 0, and not logged."""
    labels = torch.where(completion_mask == 0, -100, 0)
    counted = (labels != -100).sum()
    loss = FusedLinearJSD(beta, temperature=temperature)(
        student_hidden_states, student_lm_head_weight, teacher_hidden_states, teacher_lm_head_weight, labels,
        student_lm_head_bias, teacher_lm_head_bias)
    loss = loss if num_items_in_batch is None else loss * counted / num_items_in_batch
    return loss, loss.new_zeros(()), counted


def _distillation(trainer) -> dict:
    """TRL's own computation with another function for its last step."""
    theirs = type(trainer)._compute_loss
    name = "_chunked_divergence_loss"
    known = name in theirs.__globals__ and inspect.signature(theirs.__globals__[name]).parameters.keys() == \
        inspect.signature(_divergence).parameters.keys()
    _refuse(trainer, (not known, "a loss of another form than TRL 1.16's"), (trainer.use_vllm, "vLLM"))
    _try(trainer, lambda x, w: _divergence(x, x, w, w, x.new_ones(x.shape[:2]), trainer.beta,
                                           temperature=trainer.temperature))
    own = types.FunctionType(theirs.__code__, {**theirs.__globals__, name: _divergence}, theirs.__name__,
                             theirs.__defaults__, theirs.__closure__)

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        result = type(trainer).compute_loss(trainer, model, inputs, return_outputs, num_items_in_batch)
        trainer._metrics["train" if trainer.model.training else "eval"]["entropy"].pop()
        return result

    return {"_compute_loss": types.MethodType(own, trainer), "compute_loss": compute_loss}


class _HandedOn(Exception):
    """What TRL calls the model with; raised in the place of the call."""


def _handed_on(trainer, inputs: dict) -> dict:
    """What GRPOTrainer calls its model with for a batch: the tokens, images, and whatever else its release knows."""

    def model(**passed):
        raise _HandedOn(passed)

    try:
        type(trainer)._compute_loss(trainer, model, inputs)
    except _HandedOn as call:
        passed = call.args[0]
    return {name: value for name, value in passed.items() if name not in ("labels", "fused_lm_head", "use_cache")}


def _grpo(trainer) -> dict:
    args = trainer.args
    kinds = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
    of_all_items = trainer.loss_type in ("dapo", "cispo", "vespo")
    clipped = trainer.loss_type not in ("cispo", "sapo", "vespo")  # TRL has a delta for these alone
    level, delta = trainer.importance_sampling_level, args.delta if clipped else None
    _refuse(trainer, (trainer.loss_type not in kinds, f"loss_type {trainer.loss_type}"),
            (level != "token" and not clipped, f"loss_type {trainer.loss_type} and importance_sampling_level {level}"),
            (delta is not None and delta <= 0, f"delta {delta}"),
            (args.cast_lm_head_to_fp32, "cast_lm_head_to_fp32"),
            (trainer.loss_type == "dr_grpo" and not trainer.max_completion_length, "no max_completion_length"),
            (trainer.aux_loss_enabled, "the auxiliary loss of experts"), (trainer.use_vllm, "vLLM"),
            (trainer.top_entropy_quantile < 1, "top_entropy_quantile"),
            (trainer._entropy_bonus_enabled, "an entropy bonus"),
            (trainer.off_policy_mask_threshold is not None, "off_policy_mask_threshold"))
    # Logits that are more than a plain product are taken as the model makes them.
    fused = not any(bad for bad, _ in _no_plain_head(trainer))
    kind = FusedLinearGRPOLoss if fused else GRPOLoss
    loss_of = kind(type=trainer.loss_type, level=level, beta=trainer.beta,
                       temperature=trainer.temperature, epsilon_low=trainer.epsilon_low,
                       epsilon_high=trainer.epsilon_high, delta=delta,
                       tau_positive=args.sapo_temperature_pos, tau_negative=args.sapo_temperature_neg,
                       k_positive=args.vespo_k_pos, lambda_positive=args.vespo_lambda_pos,
                       k_negative=args.vespo_k_neg, lambda_negative=args.vespo_lambda_neg,
                       bias_corrected_kl=bool(args.use_bias_correction_kl),
                       max_length=trainer.max_completion_length if trainer.loss_type == "dr_grpo" else None,
                       metrics=True)
    _try(trainer, lambda x, w: loss_of(*((x, w) if fused else (x,)), x.new_zeros(x.shape[:2]).long(),
                                       x.new_ones(2).float(), ref_logp=x.new_zeros(x.shape[:2]).float()))

    def compute(model, inputs):
        mode = "train" if trainer.model.training else "eval"
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        passed = _handed_on(trainer, inputs)
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        steps = trainer.current_gradient_accumulation_steps if mode == "train" else 1.0
        if of_all_items:
            items = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
            parts = args.steps_per_generation if mode == "train" else 1
            loss_of.options["denominator"] = float(items * steps / parts)
        batch = dict(old_logp=inputs.get("old_per_token_logps"), mask=mask,
                     ref_logp=inputs.get("ref_per_token_logps") if trainer.beta else None)
        length, advantages = ids.shape[1] + 1, inputs["advantages"].float()
        if fused:
            layer, backbone = head_and_backbone(model)
            x = backbone(**passed, use_cache=False).last_hidden_state[:, -length:]
            loss, results = loss_of(x, layer.weight, ids, advantages, layer.bias, **batch)
        else:
            logits = model(**passed, logits_to_keep=length, use_cache=False).logits
            loss, results = loss_of(logits[:, -length:], ids, advantages, **batch)
        names = {"kl": "kl", "clipped": "clip_ratio/region_mean"}
        _log(trainer, mode, {names[name]: value for name, value in results.items()}, mask.sum())
        return loss if of_all_items else loss / steps

    return {"_compute_loss": compute}


def _as_forward(trainer, function):
    """The function under the trainer's autocast, which accelerate puts on the model's forward, and in the place of the
    forward of a model over several processes, whose wrapper sums the gradients of what went through it."""

    @functools.wraps(function)
    def run(model, *args, **kwargs):
        with trainer.accelerator.autocast():
            if not isinstance(model, nn.parallel.DistributedDataParallel) or not torch.is_grad_enabled():
                return function(model, *args, **kwargs)
            inner, own = model.module, model.module.__dict__.get("forward")

            def once(*_):
                restore()
                return function(inner, *args, **kwargs)

            def restore():
                if own is None:
                    inner.__dict__.pop("forward", None)
                else:
                    inner.forward = own

            inner.forward = once
            try:
                return model()
            finally:
                restore()

    return run


_TRL = {"DPOTrainer": _dpo, "ORPOTrainer": _orpo, "CPOTrainer": _cpo, "KTOTrainer": _kto, "GRPOTrainer": _grpo,
        "GKDTrainer": _gkd, "DistillationTrainer": _distillation}
# The operators of their losses.
_OPERATORS = {"GRPOTrainer": ("fused_linear_grpo", "grpo_loss"), "GKDTrainer": ("fused_linear_distillation",),
              "DistillationTrainer": ("fused_linear_distillation",)}
_OF_LOGITS = ("ORPOTrainer", "CPOTrainer", "GKDTrainer", "DistillationTrainer")  # and not of TRL's log-probabilities

# Options of TRL's trainers, beside those of transformers', that tigon's loss takes, refuses above, or has nothing to do
# with: about models, data, generation and logs. Another one that is set may change the loss.
_MODELS_AND_DATA = """model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout dataset_num_proc
    max_length truncation_mode padding_free pad_to_multiple_of activation_offloading sync_ref_model ref_model_mixup_alpha
    ref_model_sync_steps precompute_ref_log_probs precompute_ref_batch_size pad_token beta"""
_OPTIONS = {
    "DPOTrainer": """loss_type loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing
        use_weighting discopop_tau""",
    "ORPOTrainer": "max_completion_length padding_value generate_during_eval is_encoder_decoder",
    "CPOTrainer": """max_completion_length generate_during_eval is_encoder_decoder loss_type label_smoothing cpo_alpha
        simpo_gamma alpha""",
    "GKDTrainer": """temperature lmbda max_new_tokens teacher_model_name_or_path teacher_model_init_kwargs seq_kd
        chat_template_path dataset_text_field dataset_kwargs eos_token shuffle_dataset packing packing_strategy
        eval_packing completion_only_loss assistant_only_loss loss_type""",
    "DistillationTrainer": """teacher_model_name_or_path teacher_model_revision teacher_model_init_kwargs
        max_completion_length shuffle_dataset temperature top_p top_k min_p generation_kwargs chat_template_kwargs
        repetition_penalty cache_implementation use_vllm max_tool_calling_iterations log_completions
        num_completions_to_print log_unique_prompts""",
    "KTOTrainer": "loss_type desirable_weight undesirable_weight",
    "GRPOTrainer": """cast_lm_head_to_fp32 num_generations num_generations_eval max_completion_length
        ds3_gather_for_generation shuffle_dataset generation_batch_size steps_per_generation temperature top_p top_k
        min_p generation_kwargs chat_template_kwargs repetition_penalty cache_implementation use_vllm num_iterations
        epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg
        vespo_lambda_neg importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type
        mask_truncated_completions top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min
        entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations off_policy_mask_threshold
        use_bias_correction_kl log_completions log_multimodal num_completions_to_print log_unique_prompts
        log_completions_hub_repo use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged""",
}


def _options_that_are_not_known(trainer) -> list[str]:
    from transformers import TrainingArguments

    known = {*_MODELS_AND_DATA.split(), *_OPTIONS[type(trainer).__name__].split(),
             *(field.name for field in dataclasses.fields(TrainingArguments))}
    unknown = []
    for field in dataclasses.fields(trainer.args):
        made = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if made else field.default
        # Options of vLLM have a part in nothing where it is not used, and are refused with it.
        heard_of = field.name in known or field.name.startswith("vllm_")
        if not heard_of and getattr(trainer.args, field.name) != default:
            unknown.append(field.name)
    return unknown


def use_in_trl(trainer) -> None:
    """Lets a DPOTrainer, ORPOTrainer, CPOTrainer (SimPO), KTOTrainer, GRPOTrainer, GKDTrainer or DistillationTrainer of
    TRL compute its loss by tigon.

    Hidden states go into a fused loss, logits are not made; where they are more than a product of hidden states and
    head (soft-capped or scaled ones, an adapter on the head, learned prompts), GRPO makes those of the completions.
    Whether they are is compared here, on a few tokens, with the model's own logits and TRL's own log-probabilities.
    Metrics that need logits or entropies are not logged; evaluation that has to return logits is TRL's own.
    Raises ValueError where an option of the trainer or the model has no equal; the trainer then is as it was.
    """
    name = type(trainer).__name__
    if name not in _TRL or not type(trainer).__module__.startswith("trl."):
        raise ValueError(f"tigon_torch.losses.use_in_trl: expected one of {', '.join(_TRL)}, not a {name}")
    _refuse(trainer, (what_is_too_old(), what_is_too_old()))
    kind = trainer.accelerator.distributed_type.value
    device = next(trainer.model.parameters()).device.type
    without = [op for op in _OPERATORS.get(name, ("fused_linear_preference",)) if not devices.has_kernel(op, device)]
    unknown = [f"the option {option}, which tigon does not know," for option in _options_that_are_not_known(trainer)]
    _refuse(trainer, (trainer.args.use_liger_kernel, "use_liger_kernel"),
            (kind != "NO" and not kind.startswith("MULTI_"), f"processes of {kind}"),
            (getattr(trainer.accelerator, "parallelism_config", None) is not None, "a parallelism_config"),
            (without, f"a model on the device '{device}', for which tigon has no {' and no '.join(without)},"),
            *((True, option) for option in unknown))
    made = _TRL[name](trainer)
    if name != "GRPOTrainer":
        _refuse(trainer, *_no_plain_head(trainer))
    if name not in _OF_LOGITS:
        for model in _models(trainer):
            _own_log_probs(trainer, model)
    for attribute, function in made.items():
        whole = name == "DistillationTrainer"  # which itself goes through the wrapper of processes
        setattr(trainer, attribute, function if whole else _as_forward(trainer, function))
