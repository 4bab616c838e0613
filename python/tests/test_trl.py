"""tigon_torch.losses in TRL's trainers, against TRL's own losses."""
import copy
import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import SIZE, VOCAB, build, error
from torch.utils._python_dispatch import TorchDispatchMode

import tigon_torch
from tigon_torch import losses

trl = pytest.importorskip("trl", minversion="1.16")  # TRL's losses of before are others
accelerate = pytest.importorskip("accelerate")
datasets = pytest.importorskip("datasets")


TEMPLATE = "{% for message in messages %}{{ message['content'] }} </s> {% endfor %}"


def make_tokenizer():
    import tokenizers
    import transformers

    words = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(VOCAB - 4))])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>",
                                                eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def text(seed, words):
    g = torch.Generator().manual_seed(seed)
    return " ".join(f"w{i}" for i in torch.randint(0, VOCAB - 4, (words,), generator=g).tolist())


PREFERENCES = {"prompt": [text(i, 5) for i in range(4)], "chosen": [" " + text(10 + i, 3 + i) for i in range(4)],
               "rejected": [" " + text(20 + i, 6 - i) for i in range(4)]}
ARGUMENTS = dict(report_to=[], use_cpu=True, per_device_train_batch_size=4, max_length=32, bf16=False)


def step(trainer, inputs, compute):
    model = trainer.model.train()
    model.zero_grad(set_to_none=True)
    loss = compute(model, copy.deepcopy(inputs))
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare(trainer, compute, inputs=None):
    """TRL's loss and gradients, and then tigon's."""
    inputs = next(iter(trainer.get_train_dataloader())) if inputs is None else inputs
    loss, expected = step(trainer, inputs, compute)
    tigon_torch.losses.use_in_trl(trainer)
    again, actual = step(trainer, inputs, compute)
    assert abs(again - loss) <= 2e-5 * abs(loss)
    assert actual.keys() == expected.keys()
    none = 1e-7 * max(g.abs().max() for g in expected.values())  # gradients of 0, such as those of biases of keys
    for name in expected:
        if expected[name].abs().max() <= none:
            assert actual[name].abs().max() <= none, name
        else:
            assert error(actual[name], expected[name]) <= 2e-4, name


@pytest.mark.parametrize("kind", losses.trl._TRL_DPO)
def test_trl_dpo(kind, tokenizer, tmp_path):
    args = trl.DPOConfig(output_dir=str(tmp_path), loss_type=kind, label_smoothing=0.1, beta=0.3, **ARGUMENTS)
    trainer = trl.DPOTrainer(model=build("llama"), ref_model=build("llama", seed=7), args=args,
                             processing_class=tokenizer, train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs))
    assert len(trainer._metrics["train"]["rewards/margins"]) == 2
    first, second = trainer._metrics["train"]["rewards/margins"]
    assert abs(first - second) <= 1e-4 * abs(first)


def test_trl_orpo(tokenizer, tmp_path):
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    args = ORPOConfig(output_dir=str(tmp_path), beta=0.3, **ARGUMENTS)
    trainer = ORPOTrainer(model=build("llama"), args=args, processing_class=tokenizer,
                          train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs))


@pytest.mark.parametrize("kind, alpha", [("sigmoid", 0.7), ("simpo", 0.0), ("simpo", 1.0), ("hinge", 1.0),
                                         ("ipo", 1.0)])
def test_trl_cpo(kind, alpha, tokenizer, tmp_path):
    trainer = trainer_of("cpo", tokenizer, tmp_path, build("llama"), loss_type=kind, cpo_alpha=alpha, beta=0.3,
                         label_smoothing=0.1)
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs))
    for name, (first, second) in trainer._stored_metrics["train"].items():
        assert second == pytest.approx(first, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("beta, items", [(0.0, None), (0.3, None), (1.0, 17)])
def test_trl_gkd(beta, items, tokenizer, tmp_path):
    trainer = trainer_of("gkd", tokenizer, tmp_path, build("llama"), beta=beta)
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs, num_items_in_batch=items))


@pytest.mark.parametrize("beta, temperature", [(0.0, 1.0), (0.4, 2.0), (1.0, 1.0)])
def test_trl_distillation(beta, temperature, tokenizer, tmp_path):
    trainer = trainer_of("distillation", tokenizer, tmp_path, build("llama"), beta=beta, temperature=temperature)
    g = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[2, 4:] = 0
    inputs = {"prompt_ids": torch.randint(4, VOCAB, (4, 5), generator=g), "prompt_mask": torch.ones(4, 5).long(),
              "completion_ids": torch.randint(4, VOCAB, (4, 6), generator=g), "completion_mask": mask,
              "num_items_in_batch": torch.tensor(30)}
    compare(trainer, lambda model, batch: trainer.compute_loss(model, batch), inputs)
    assert len(trainer._metrics["train"]["entropy"]) == 1  # TRL's alone


def test_trl_kto(tokenizer, tmp_path):
    data = {"prompt": PREFERENCES["prompt"], "completion": PREFERENCES["chosen"], "label": [True, False, True, False]}
    args = trl.KTOConfig(output_dir=str(tmp_path), beta=0.3, undesirable_weight=1.2, **ARGUMENTS)
    trainer = trl.KTOTrainer(model=build("llama"), ref_model=build("llama", seed=7), args=args,
                             processing_class=tokenizer, train_dataset=datasets.Dataset.from_dict(data))
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs))


@pytest.mark.parametrize("kind, level", [("grpo", "token"), ("bnpo", "token"), ("dr_grpo", "token"),
                                         ("dapo", "token"), ("dapo", "sequence"), ("luspo", "sequence"),
                                         ("cispo", "token"), ("sapo", "token"), ("vespo", "token")])
def test_trl_grpo(kind, level, tokenizer, tmp_path):
    arguments = {name: value for name, value in ARGUMENTS.items() if name != "max_length"}
    args = trl.GRPOConfig(output_dir=str(tmp_path), loss_type=kind, num_generations=4, max_completion_length=6,
                          importance_sampling_level=level, temperature=0.9, **arguments)
    data = datasets.Dataset.from_dict({"prompt": PREFERENCES["prompt"]})
    trainer = trl.GRPOTrainer(model=build("llama"), reward_funcs=lambda completions, **_: [0.0] * len(completions),
                              args=args, processing_class=tokenizer, train_dataset=data)
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = 0.05  # the config's would load the reference by the model's name; the batch below brings its own
    g = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[2, 4:] = 0
    inputs = {"prompt_ids": torch.randint(4, VOCAB, (4, 5), generator=g), "prompt_mask": torch.ones(4, 5).long(),
              "completion_ids": torch.randint(4, VOCAB, (4, 6), generator=g), "completion_mask": mask,
              "advantages": torch.randn(4, generator=g), "num_items_in_batch": mask.sum()}
    logps, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
        torch.cat([inputs["prompt_mask"], mask], 1), 6)
    inputs["old_per_token_logps"] = logps.detach() + 0.3 * torch.randn(4, 6, generator=g)
    inputs["ref_per_token_logps"] = logps.detach() + 0.3 * torch.randn(4, 6, generator=g)
    widest = {}

    def compute(model, batch):
        with Widest() as seen:
            loss = trainer._compute_loss(model, batch)
        widest[len(widest)] = seen.rows
        return loss

    compare(trainer, compute, inputs)
    assert widest[0] >= 24 and widest[1] == 0  # TRL makes logits of the 4 x 6 tokens, tigon none


class Widest(TorchDispatchMode):
    """The most rows of a product with as many columns as logits."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm) and result.shape[-1] == VOCAB:
            self.rows = max(self.rows, result.numel() // VOCAB)
        return result


def test_trl_grpo_of_soft_capped_logits(tokenizer, tmp_path):
    """Logits are made where a product alone would not be them."""
    args = trl.GRPOConfig(output_dir=str(tmp_path), loss_type="dapo", num_generations=4, max_completion_length=6,
                          **{name: value for name, value in ARGUMENTS.items() if name != "max_length"})
    trainer = trl.GRPOTrainer(model=build("gemma2"), reward_funcs=lambda completions, **_: [0.0] * len(completions),
                              args=args, processing_class=tokenizer,
                              train_dataset=datasets.Dataset.from_dict({"prompt": PREFERENCES["prompt"]}))
    trainer.current_gradient_accumulation_steps = 1
    g = torch.Generator().manual_seed(3)
    inputs = {"prompt_ids": torch.randint(4, VOCAB, (4, 5), generator=g), "prompt_mask": torch.ones(4, 5).long(),
              "completion_ids": torch.randint(4, VOCAB, (4, 6), generator=g), "completion_mask": torch.ones(4, 6).long(),
              "advantages": torch.randn(4, generator=g), "num_items_in_batch": torch.tensor(24)}
    compare(trainer, lambda model, batch: trainer._compute_loss(model, batch), inputs)


CONVERSATIONS = {"messages": [[{"role": "user", "content": text(i, 5)}, {"role": "assistant", "content": text(10 + i, 3 + i)}]
                              for i in range(4)]}
KTO = {"prompt": PREFERENCES["prompt"], "completion": PREFERENCES["chosen"], "label": [True, False, True, False]}
LOOP = dict(max_steps=4, save_strategy="no", logging_steps=1, learning_rate=1e-3, lr_scheduler_type="constant")


def reward(completions, **_):
    """More for words of higher numbers: not the same for all completions of a prompt, so that advantages are not 0."""
    return [sum(int(word[1:]) for word in c.split() if word[1:].isdigit()) / VOCAB for c in completions]


def trainer_of(kind, tokenizer, folder, model, adapter=None, **changes):
    """TRL's trainer of this kind, ready for its whole loop. With an adapter, the reference is the model without it."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    given = {"output_dir": str(folder), **ARGUMENTS, **LOOP, **changes}
    parts = dict(model=model, processing_class=tokenizer, peft_config=adapter)
    if kind == "grpo":
        del given["max_length"]
        args = trl.GRPOConfig(num_generations=4, max_completion_length=6, temperature=4.0, **given)
        data = datasets.Dataset.from_dict({"prompt": PREFERENCES["prompt"]})
        return trl.GRPOTrainer(args=args, reward_funcs=reward, train_dataset=data, **parts)
    if kind == "cpo":
        from trl.experimental.cpo import CPOConfig, CPOTrainer

        return CPOTrainer(args=CPOConfig(**given), train_dataset=datasets.Dataset.from_dict(PREFERENCES), **parts)
    if kind == "gkd":
        from trl.experimental.gkd import GKDConfig, GKDTrainer

        given = {"lmbda": 0.0, "max_new_tokens": 4, **given}
        return GKDTrainer(args=GKDConfig(**given), teacher_model=build("llama", seed=7),
                          train_dataset=datasets.Dataset.from_dict(CONVERSATIONS), **parts)
    if kind == "distillation":
        del given["max_length"]
        args = trl.DistillationConfig(**{"max_completion_length": 6, **given})
        return trl.DistillationTrainer(args=args, teacher_model=build("llama", seed=7),
                                       train_dataset=datasets.Dataset.from_dict({"prompt": PREFERENCES["prompt"]}),
                                       **parts)
    if kind == "orpo":
        return ORPOTrainer(args=ORPOConfig(**given), train_dataset=datasets.Dataset.from_dict(PREFERENCES), **parts)
    config, trainer, data = {"dpo": (trl.DPOConfig, trl.DPOTrainer, PREFERENCES),
                             "kto": (trl.KTOConfig, trl.KTOTrainer, KTO)}[kind]
    return trainer(args=config(**given), ref_model=None if adapter else build("llama", seed=7),
                   train_dataset=datasets.Dataset.from_dict(data), **parts)


def logged(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def lora(**changes):
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False,
                           task_type="CAUSAL_LM", **changes)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("kind", ["dpo", "orpo", "cpo", "kto", "grpo", "gkd", "distillation"])
def test_trl_loop_of_every_trainer(kind, adapter, tokenizer, tmp_path):
    """trainer.train() with TRL's loss and with tigon's on a patched model: the same losses and the same weights."""
    results = []
    for ours in (False, True):
        model = build("llama")
        if ours:
            tigon_torch.apply(model, linear=True)
        torch.manual_seed(5)  # of the adapter's weights
        # Plain gradient descent: Adam's first step is the sign of a gradient, also of one that is all rounding.
        trainer = trainer_of(kind, tokenizer, tmp_path, model, lora() if adapter else None, optim="sgd",
                             learning_rate=0.05)
        if ours:
            losses.use_in_trl(trainer)
        trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        start = {name: p.detach().clone() for name, p in trained.items()}
        trainer.train()
        results.append((logged(trainer), logged(trainer, "grad_norm"), trained))
    (expected, slopes, weights), (actual, again, moved) = results
    assert len(expected) == 4 and min(slopes) > 1e-2  # GRPO's loss is 0 before a step, by its definition
    assert actual == pytest.approx(expected, rel=1e-4, abs=2e-6)
    assert again == pytest.approx(slopes, rel=2e-3)
    assert len(weights) == (12 if adapter else 20)
    for name in weights:
        far = (weights[name] - start[name]).norm()
        assert far > 0 and (moved[name] - weights[name]).norm() <= 1e-3 * far, name


@pytest.mark.parametrize("kind", ["dpo", "orpo", "cpo", "kto", "grpo", "gkd", "distillation"])
def test_trl_precision(kind, tokenizer, tmp_path):
    """bf16, TRL's default, is autocast: tigon's loss and the layers before it are under it, too."""
    results, types = [], []
    for ours in (False, True):
        model = build("llama")
        seen = set()
        model.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
        if ours:
            tigon_torch.apply(model)
        trainer = trainer_of(kind, tokenizer, tmp_path, model, bf16=True, max_steps=1)
        if ours:
            losses.use_in_trl(trainer)
        seen.clear()
        trainer.train()
        results.append(logged(trainer))
        types.append(set(seen))
    # TRL's own distillation is in bf16 where it generates, and in f32 in its loss.
    expected = {torch.bfloat16, torch.float32} if kind == "distillation" else {torch.bfloat16}
    assert types[1] == types[0] == expected
    assert results[1] == pytest.approx(results[0], rel=0.02, abs=2e-3)


def test_trl_trains(tokenizer, tmp_path):
    """A patched model in a trainer, with tigon's loss: two steps of the whole loop."""
    args = trl.DPOConfig(output_dir=str(tmp_path), max_steps=2, save_strategy="no", logging_steps=1, learning_rate=1e-3,
                         **ARGUMENTS)
    model = build("llama")
    tigon_torch.apply(model, linear=True)
    trainer = trl.DPOTrainer(model=model, ref_model=build("llama", seed=7), args=args, processing_class=tokenizer,
                             train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    losses.use_in_trl(trainer)
    trainer.train()
    seen = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(seen) == 2 and seen[1] < seen[0]


def test_trl_sft_of_a_patched_model(tokenizer, tmp_path):
    """TRL's own head over tigon's layers."""
    results = []
    for patch in (False, True):
        model = build("llama")
        if patch:
            tigon_torch.apply(model, linear=True)
        args = trl.SFTConfig(output_dir=str(tmp_path), max_steps=2, save_strategy="no", logging_steps=1,
                             learning_rate=1e-3, **ARGUMENTS)
        trainer = trl.SFTTrainer(model=model, args=args, processing_class=tokenizer,
                                 train_dataset=datasets.Dataset.from_dict({"text": [text(i, 12) for i in range(8)]}))
        trainer.train()
        results.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_trl_refusals(tokenizer, tmp_path, monkeypatch):
    args = trl.DPOConfig(output_dir=str(tmp_path), loss_type="aot", **ARGUMENTS)
    trainer = trl.DPOTrainer(model=build("llama"), ref_model=build("llama"), args=args, processing_class=tokenizer,
                             train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    with pytest.raises(ValueError, match=r"DPOTrainer with loss_type \['aot'\] keeps TRL's loss"):
        losses.use_in_trl(trainer)
    trainer = trainer_of("orpo", tokenizer, tmp_path, build("llama"))
    trainer.args.use_liger_kernel = True
    with pytest.raises(ValueError, match="ORPOTrainer with use_liger_kernel keeps TRL's loss"):
        losses.use_in_trl(trainer)
    trainer.args.use_liger_kernel = False
    with monkeypatch.context() as patch:  # as on a device without a kernel
        patch.setattr(losses.trl.devices, "has_kernel", lambda op, device: op != "fused_linear_preference")
        with pytest.raises(ValueError, match="ORPOTrainer with a model on the device 'cpu', for which tigon has no "
                                             "fused_linear_preference, keeps TRL's loss"):
            losses.use_in_trl(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer.accelerator), "distributed_type", accelerate.DistributedType.FSDP)
        with pytest.raises(ValueError, match="ORPOTrainer with processes of FSDP keeps TRL's loss"):
            losses.use_in_trl(trainer)
    learned = pytest.importorskip("peft").PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="DPOTrainer with learned prompts keeps TRL's loss"):
        losses.use_in_trl(trainer_of("dpo", tokenizer, tmp_path, build("llama"), learned))
    with pytest.raises(ValueError, match="expected one of DPOTrainer, ORPOTrainer, CPOTrainer, .*, not a int"):
        losses.use_in_trl(3)


# ---- models whose logits are more than head times hidden states

VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16,
              patch_size=8, projection_dim=64)
OTHERS = {
    "granite": ("GraniteConfig", dict(logits_scaling=8.0)),
    "granitemoe": ("GraniteMoeConfig", dict(logits_scaling=4.0, num_local_experts=4, num_experts_per_tok=2,
                                            router_aux_loss_coef=0.0)),
    "cohere": ("CohereConfig", dict(logit_scale=0.25)),
    "cohere2": ("Cohere2Config", dict(logit_scale=0.25)),
    "hyperclovax": ("HyperCLOVAXConfig", dict(logits_scaling=0.25)),
    "minicpm3": ("MiniCPM3Config", dict(q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                                        v_head_dim=16, dim_model_base=32, num_key_value_heads=4)),
    "gemma4_text": ("Gemma4TextConfig", dict(head_dim=16, final_logit_softcapping=3.0, hidden_size_per_layer_input=8,
                                             vocab_size_per_layer_input=VOCAB)),
    "phi": ("PhiConfig", {}),  # its head has a bias
}


def other(kind, seed=0):
    """A small random model of one of OTHERS, or with images; types that this transformers lacks are skipped."""
    import transformers

    torch.manual_seed(seed)
    if kind == "llava":
        config = transformers.LlavaConfig(text_config=transformers.LlamaConfig(**SIZE), image_token_index=VOCAB - 1,
                                          vision_config=transformers.CLIPVisionConfig(**VISION))
        model = transformers.LlavaForConditionalGeneration(config)
    elif kind == "paligemma":  # the cap of its logits is in the config of its text
        text = transformers.Gemma2Config(**SIZE, head_dim=16, final_logit_softcapping=3.0)
        config = transformers.PaliGemmaConfig(text_config=text, image_token_index=VOCAB - 1, projection_dim=64,
                                              vision_config=transformers.SiglipVisionConfig(**VISION))
        model = transformers.PaliGemmaForConditionalGeneration(config)
    else:
        name, fields = OTHERS[kind]
        if not hasattr(transformers, name):
            pytest.skip(f"transformers {transformers.__version__} has no {name}")
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**{**SIZE, **fields}))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.6 / p.shape[-1] ** 0.5) + (p.dim() == 1))
    return model.train()


def grpo_batch(trainer, images=False):
    """Prompts of 5 tokens, or of 7 with an image, and completions of 6."""
    g = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[2, 4:] = 0
    inputs = {"prompt_ids": torch.randint(4, VOCAB - 1, (4, 5), generator=g), "completion_mask": mask,
              "completion_ids": torch.randint(4, VOCAB - 1, (4, 6), generator=g),
              "advantages": torch.randn(4, generator=g), "num_items_in_batch": mask.sum()}
    if images:
        inputs["prompt_ids"][:, :4] = VOCAB - 1
        inputs["pixel_values"], inputs["num_images"] = torch.randn(4, 3, 16, 16, generator=g), [1] * 4
    inputs["prompt_mask"] = torch.ones_like(inputs["prompt_ids"])
    trainer.current_gradient_accumulation_steps = 1
    return inputs


@pytest.mark.parametrize("kind", ["paligemma", *(kind for kind in OTHERS if kind != "phi")])
def test_trl_logits_that_are_more_than_a_product(kind, tokenizer, tmp_path):
    """DPO keeps TRL's loss; GRPO has the same one as TRL, of the model's own logits."""
    trainer = trainer_of("dpo", tokenizer, tmp_path, other(kind))
    says = "soft-capped logits" if "gemma" in kind else rf"type '{kind}', which has logits that are more .* \(by 0\."
    with pytest.raises(ValueError, match=f"DPOTrainer with .*{says}.* keeps TRL's loss"):
        losses.use_in_trl(trainer)
    assert "_compute_loss" not in vars(trainer)
    trainer = trainer_of("grpo", tokenizer, tmp_path, other(kind))
    inputs = grpo_batch(trainer)
    if kind == "paligemma":
        inputs["token_type_ids"] = torch.arange(11).repeat(4, 1) // 5  # the prompt, which it attends to as a whole
    compare(trainer, lambda model, batch: trainer._compute_loss(model, batch), inputs)


@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto"])
def test_trl_logits_of_model_and_reference(kind, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="Trainer with a model of type 'granite', which has logits that are more than"):
        losses.use_in_trl(trainer_of(kind, tokenizer, tmp_path, other("granite")))
    if kind != "orpo":
        trainer = trainer_of(kind, tokenizer, tmp_path, build("llama"))
        trainer.ref_model = other("granite")
        with pytest.raises(ValueError, match="Trainer with a model of type 'granite', which has logits that are more"):
            losses.use_in_trl(trainer)


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_trl_log_probabilities_that_are_others_than_the_models(kind, tokenizer, tmp_path):
    """TRL multiplies by a field that this model does not read."""
    trainer = trainer_of(kind, tokenizer, tmp_path, build("llama", logit_scale=0.5))
    with pytest.raises(ValueError, match="type 'llama', of whose logits TRL has other log-probabilities"):
        losses.use_in_trl(trainer)


@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto", "grpo"])
def test_trl_head_with_a_bias(kind, tokenizer, tmp_path):
    trainer = trainer_of(kind, tokenizer, tmp_path, other("phi"))
    inputs = grpo_batch(trainer) if kind == "grpo" else None
    compute = trainer._compute_loss if kind == "grpo" else trainer.compute_loss
    compare(trainer, lambda model, batch: getattr(trainer, compute.__name__)(model, batch), inputs)


def test_trl_adapters_and_the_head(tokenizer, tmp_path):
    """A head that PEFT has wrapped is no plain product; what is before the backbone's end is the backbone's."""
    pytest.importorskip("peft")
    with pytest.raises(ValueError, match="ORPOTrainer with an adapter on the head keeps TRL's loss"):
        adapter = lora()
        adapter.target_modules.add("lm_head")
        losses.use_in_trl(trainer_of("orpo", tokenizer, tmp_path, build("qwen2"), adapter))
    for kind, saved in (("grpo", "lm_head"), ("grpo", "norm"), ("dpo", "norm"), ("kto", "norm")):
        trainer = trainer_of(kind, tokenizer, tmp_path, build("llama"), lora(modules_to_save=[saved]))
        name = "_compute_loss" if kind == "grpo" else "compute_loss"
        compare(trainer, lambda model, batch: getattr(trainer, name)(model, batch),
                grpo_batch(trainer) if kind == "grpo" else None)


def test_trl_leaves_the_model_as_it_was(tokenizer, tmp_path):
    trainer = trainer_of("dpo", tokenizer, tmp_path, build("gemma"))
    trainer.model.train()
    trainer.ref_model.eval()
    models = (trainer.model, trainer.ref_model)
    before = [[(m.training, dict(vars(m))) for m in model.modules()] for model in models]
    state, metrics = torch.get_rng_state(), copy.deepcopy(trainer._metrics)
    losses.use_in_trl(trainer)
    assert before == [[(m.training, dict(vars(m))) for m in model.modules()] for model in models]
    assert torch.equal(torch.get_rng_state(), state) and trainer._metrics == metrics


# ---- what a batch has beside tokens

def image_batch(kind):
    """Texts that begin with an image, as TRL's collators make them, and a field that few models have."""
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(4, VOCAB - 1, (4, 10), generator=g)
    ids[:, :4] = VOCAB - 1
    mask, completion = torch.ones_like(ids), torch.ones_like(ids)
    mask[1, 8:], completion[:, :6], completion[1, 8:] = 0, 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask, "completion_mask": completion, "vision_feature_layer": -1,
              "pixel_values": torch.randn(4, 3, 16, 16, generator=g)}
    if kind == "kto":
        other_ids = torch.cat([ids[:, :6], ids[:, 6:].roll(1, 0)], 1)
        inputs.update(KL_input_ids=other_ids, KL_attention_mask=torch.ones_like(ids), KL_completion_mask=completion,
                      label=torch.tensor([True, False, True, False]))
    return inputs


@pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
def test_trl_images(kind, tokenizer, tmp_path):
    """The same losses and the same gradients, those of the tower for images among them."""
    trainer = trainer_of(kind, tokenizer, tmp_path, other("llava"))
    if kind != "grpo":
        reference = trl.trainer.utils.add_fused_lm_head
        trainer.ref_model = other("llava", seed=7)
        reference(trainer.ref_model)
    inputs = grpo_batch(trainer, images=True) if kind == "grpo" else image_batch(kind)
    name = "_compute_loss" if kind == "grpo" else "compute_loss"
    compare(trainer, lambda model, batch: getattr(trainer, name)(model, batch), inputs)
    tower = trainer.model.model.vision_tower
    assert sum(p.grad.abs().sum() > 0 for p in tower.parameters() if p.grad is not None) > 10


@pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
def test_trl_what_is_handed_on(kind, tokenizer, tmp_path):
    """The backbone is called with what TRL calls it with, by name and by value."""
    trainer = trainer_of(kind, tokenizer, tmp_path, build("llama"))
    inputs = next(iter(trainer.get_train_dataloader())) if kind != "grpo" else grpo_batch(trainer)
    shape = inputs["input_ids"].shape if kind != "grpo" else (4, 11)
    inputs["mm_token_type_ids"] = torch.arange(shape[1]).repeat(shape[0], 1)
    inputs["token_type_ids"] = inputs["mm_token_type_ids"] + 1
    calls = []
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            model.model.register_forward_pre_hook(lambda _, *given: calls.append(given), with_kwargs=True)
    name = "_compute_loss" if kind == "grpo" else "compute_loss"
    seen = []
    for ours in (False, True):
        if ours:
            losses.use_in_trl(trainer)
        calls.clear()
        getattr(trainer, name)(trainer.model, copy.deepcopy(inputs))
        seen.append([{name: value for name, value in kwargs.items() if value is not None} for _, kwargs in calls])
        assert not any(args for args, _ in calls)
    assert [sorted(call) for call in seen[0]] == [sorted(call) for call in seen[1]]

    def key(call):
        return call["input_ids"].tolist()

    for expected, actual in zip(*(sorted(calls, key=key) for calls in seen)):
        for name, value in expected.items():
            assert torch.equal(torch.as_tensor(actual[name]), torch.as_tensor(value)), name


# ---- options

def test_trl_weight_of_the_loss(tokenizer, tmp_path):
    trainer = trainer_of("dpo", tokenizer, tmp_path, build("llama"), loss_type=["sigmoid"], loss_weights=[0.5])
    compare(trainer, lambda model, inputs: trainer.compute_loss(model, inputs))


@pytest.mark.parametrize("kind", ["cispo", "sapo", "vespo", "dapo"])
def test_trl_delta(kind, tokenizer, tmp_path):
    """TRL reads it for some types of loss alone."""
    trainer = trainer_of("grpo", tokenizer, tmp_path, build("llama"), loss_type=kind, delta=1.05)
    inputs = grpo_batch(trainer)
    inputs["old_per_token_logps"] = torch.full((4, 6), -5.0)
    compare(trainer, lambda model, batch: trainer._compute_loss(model, batch), inputs)


@pytest.mark.parametrize("kind", ["grpo", "dapo"])
def test_trl_without_a_longest_completion(kind, tokenizer, tmp_path):
    """max_completion_length may be None, and has no part in these losses."""
    trainer = trainer_of("grpo", tokenizer, tmp_path, build("llama"), loss_type=kind)
    trainer.max_completion_length = None
    compare(trainer, lambda model, batch: trainer._compute_loss(model, batch), grpo_batch(trainer))


@pytest.mark.parametrize("kind, options, says", [
    *(("grpo", dict(loss_type=kind, importance_sampling_level="sequence"),
       f"loss_type {kind} and importance_sampling_level sequence") for kind in ("cispo", "sapo", "vespo")),
    ("grpo", dict(delta=0.0), "delta 0.0"), ("grpo", dict(delta=-1.0), "delta -1.0"),
    ("grpo", dict(cast_lm_head_to_fp32=True), "cast_lm_head_to_fp32"),
    ("grpo", dict(top_entropy_quantile=0.5), "top_entropy_quantile"),
    ("grpo", dict(entropy_coef=0.1), "an entropy bonus"),
    ("grpo", dict(off_policy_mask_threshold=0.5), "off_policy_mask_threshold"),
    ("grpo", dict(epsilon=-1.0), "an option that tigon refuses .*epsilon_low"),
    ("dpo", dict(beta=float("nan")), "an option that tigon refuses .*beta"),
    ("dpo", dict(loss_type=["sigmoid", "sft"]), "loss_type"), ("dpo", dict(use_weighting=True), "use_weighting"),
    ("dpo", dict(ld_alpha=0.5), "ld_alpha"), ("dpo", dict(f_divergence_type="js_divergence"), "f_divergence_type"),
    ("orpo", dict(beta=float("nan")), "an option that tigon refuses .*beta"),
    ("kto", dict(loss_type="apo_zero_unpaired"), "loss_type"),
    ("kto", dict(desirable_weight=float("inf")), "an option that tigon refuses .*desirable_weight")])
def test_trl_options_without_an_equal(kind, options, says, tokenizer, tmp_path):
    trainer = trainer_of(kind, tokenizer, tmp_path, build("llama"), **options)
    with pytest.raises(ValueError, match=f"Trainer with .*{says}.* keeps TRL's loss"):
        losses.use_in_trl(trainer)
    assert not {"_compute_loss", "get_batch_loss_metrics"} & vars(trainer).keys()


def test_trl_of_before(tokenizer, tmp_path, monkeypatch):
    """One that computes its losses in other ways is named, by both calls, and the trainer keeps its loss."""
    trainer = trainer_of("dpo", tokenizer, tmp_path, build("llama"))
    monkeypatch.setattr(losses.trl, "OLDEST", (99, 0))
    with pytest.raises(ValueError, match=r"use_in_trl: DPOTrainer with TRL [\d.]+, older than 99\.0, which needs Python 3\.11, "
                                         r"keeps TRL's loss"):
        losses.use_in_trl(trainer)
    with pytest.raises(ValueError, match=r"use_in: DPOTrainer with TRL [\d.]+, older than 99\.0, .* keeps its own loss"):
        tigon_torch.use_in(trainer)
    assert "_compute_loss" not in vars(trainer) and "forward" not in vars(trainer.model.model.layers[0])


def test_trl_options_that_are_not_known(tokenizer, tmp_path):
    """Those of a later release of TRL are refused where they are set; a trainer of one's own is."""
    trainer = trainer_of("dpo", tokenizer, tmp_path, build("llama"))

    @dataclasses.dataclass
    class Later(trl.DPOConfig):
        margin: float = 0.0

    trainer.args.__class__ = Later
    losses.use_in_trl(trainer)
    trainer.args.margin = 0.5
    with pytest.raises(ValueError, match="with the option margin, which tigon does not know, keeps TRL's loss"):
        losses.use_in_trl(trainer)
    trainer.args.margin = 0.0
    trainer.__class__ = type("DPOTrainer", (trl.DPOTrainer,), {"__module__": "mine"})
    with pytest.raises(ValueError, match="expected one of DPOTrainer, .* not a DPOTrainer"):
        losses.use_in_trl(trainer)


# ---- evaluation

@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto"])
def test_trl_evaluation_with_logits(kind, tokenizer, tmp_path):
    """evaluate() with compute_metrics and predict() return what they return with TRL's loss."""
    model = build("llama")
    tigon_torch.apply(model, linear=True)
    trainer = trainer_of(kind, tokenizer, tmp_path, model, per_device_eval_batch_size=4)
    trainer.compute_metrics = lambda outcome: {"mean": float(outcome.predictions.mean()),
                                               "labels": float(outcome.label_ids.shape[0])}
    results = []
    for ours in (False, True):
        if ours:
            losses.use_in_trl(trainer)
        metrics = trainer.evaluate(trainer.train_dataset)
        predicted = trainer.predict(trainer.train_dataset)
        trainer.compute_metrics, asked = None, trainer.compute_metrics
        metrics["alone"] = trainer.evaluate(trainer.train_dataset)["eval_loss"]
        trainer.compute_metrics = asked
        results.append((metrics, predicted.predictions))
    (expected, logits), (actual, again) = results
    assert "eval_mean" in expected
    for name in ("alone", "eval_loss", "eval_mean", "eval_labels", "eval_rewards/margins"):
        assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert again.shape == logits.shape and error(torch.as_tensor(again), torch.as_tensor(logits)) <= 1e-4


def test_trl_on_two_processes(tmp_path):
    """tests/trl_ranks.py compares the losses and weights of two processes with TRL's own, for every trainer."""
    script = pathlib.Path(__file__).with_name("trl_ranks.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*run, str(script), str(tmp_path)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
                               "ACCELERATE_USE_CPU": "true"})
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split().count("equal") == 4
