"""tigon_torch.losses in TRL's trainers, against TRL's own losses."""
import copy
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import VOCAB, build, error
from torch.utils._python_dispatch import TorchDispatchMode

import tigon_torch
from tigon_torch import losses

trl = pytest.importorskip("trl")
accelerate = pytest.importorskip("accelerate")
datasets = pytest.importorskip("datasets")


def make_tokenizer():
    import tokenizers
    import transformers

    words = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(VOCAB - 4))])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>",
                                                eos_token="</s>", unk_token="<unk>")


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
    for name in expected:
        assert error(actual[name], expected[name]) <= 2e-4, name


@pytest.mark.parametrize("kind", losses._TRL_DPO)
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
@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto", "grpo"])
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


@pytest.mark.parametrize("kind", ["dpo", "orpo", "kto", "grpo"])
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
    assert types[1] == types[0] == {torch.bfloat16}
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
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer.accelerator), "distributed_type", accelerate.DistributedType.FSDP)
        with pytest.raises(ValueError, match="ORPOTrainer with processes of FSDP keeps TRL's loss"):
            losses.use_in_trl(trainer)
    learned = pytest.importorskip("peft").PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="DPOTrainer with learned prompts keeps TRL's loss"):
        losses.use_in_trl(trainer_of("dpo", tokenizer, tmp_path, build("llama"), learned))
    with pytest.raises(ValueError, match="expected one of DPOTrainer, ORPOTrainer, KTOTrainer, GRPOTrainer, not a int"):
        losses.use_in_trl(3)


def test_trl_on_two_processes(tmp_path):
    """tests/trl_ranks.py compares the losses and weights of two processes with TRL's own, for every trainer."""
    script = pathlib.Path(__file__).with_name("trl_ranks.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*run, str(script), str(tmp_path)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
                               "ACCELERATE_USE_CPU": "true"})
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split().count("equal") == 4
