"""tigon_torch.losses against formulas in f64, and in TRL's trainers against TRL's own losses."""
import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, build, error

import tigon_torch
from tigon_torch import losses

PAIRS, LEN, HIDDEN = 3, 7, 24


def head(dtype=torch.float32, rows=2 * PAIRS, seed=0):
    """Hidden states, the layer above them, and targets of which some do not count."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, LEN, HIDDEN, generator=g).to(dtype).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN, generator=g) * 0.3).to(dtype).requires_grad_()
    bias = (torch.randn(VOCAB, generator=g) * 0.1).to(dtype).requires_grad_()
    target = torch.randint(0, VOCAB, (rows, LEN), generator=g)
    target[0, :3] = -100
    target[-1, -2:] = -100
    return x, weight, bias, target


def token_logps(x, weight, bias, target):
    """Log-probabilities of the targets, 0 where they do not count."""
    logp = F.linear(x, weight, bias).log_softmax(-1)
    return logp.gather(-1, target.clamp_min(0)[..., None])[..., 0] * (target != -100)


def check(actual, expected, inputs, exact, tolerance=1e-5):
    """A loss and its gradients, against the same in f64."""
    assert abs(actual.double() - expected).item() <= tolerance * abs(expected).item()
    for a, e in zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, exact)):
        assert error(a, e) <= tolerance


def in_f64(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"softcap": 2.0}])
def test_cross_entropy(options, fused):
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    softcap = options.get("softcap")
    z = F.linear(*exact)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    rest = {name: value for name, value in options.items() if name != "softcap"}
    expected = F.cross_entropy(z.flatten(0, 1), target.flatten(), **rest)
    if fused:
        loss = losses.FusedLinearCrossEntropyLoss(**options)(x, weight, target, bias)
    else:
        loss = losses.CrossEntropyLoss(**options)(F.linear(x, weight, bias), target)
    check(loss, expected, (x, weight, bias), exact)


def test_z_loss():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    z = F.linear(*exact).flatten(0, 1)[target.flatten() != -100]
    kept = target.flatten()[target.flatten() != -100]
    expected = F.cross_entropy(z, kept) + 0.01 * z.logsumexp(-1).pow(2).mean()
    check(losses.FusedLinearCrossEntropyLoss(z_loss=0.01)(x, weight, target, bias), expected, (x, weight, bias), exact)


def distributions():
    g = torch.Generator().manual_seed(2)
    student, teacher = (torch.randn(9, 40, generator=g).log_softmax(-1) for _ in range(2))
    return student.requires_grad_(), teacher


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jsd(beta):
    student, teacher = distributions()
    (q,), p = in_f64(student), teacher.double()
    if beta in (0, 1):
        expected = F.kl_div(*((q, p) if beta == 0 else (p, q)), log_target=True, reduction="batchmean")
    else:
        m = (beta * p.exp() + (1 - beta) * q.exp()).log()
        expected = sum(w * F.kl_div(m, t, log_target=True, reduction="batchmean") for w, t in ((beta, p), (1 - beta, q)))
    check(losses.JSD(beta)(student, teacher), expected, (student,), (q,))


@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(log_target):
    student, teacher = distributions()
    (q,) = in_f64(student)
    teacher = teacher if log_target else teacher.exp()
    expected = F.kl_div(q, teacher.double(), log_target=log_target, reduction="batchmean")
    check(losses.KLDiv(log_target=log_target)(student, teacher), expected, (student,), (q,))


def sums(exact, target):
    """Log-probabilities of the chosen and the rejected sequences, and how many tokens they have."""
    logps = token_logps(*exact, target).sum(-1)
    tokens = (target != -100).sum(-1)
    return logps[:PAIRS], logps[PAIRS:], tokens[:PAIRS], tokens[PAIRS:]


def nll(exact, target):
    chosen = token_logps(*exact, target)[:PAIRS]
    return -chosen.sum() / (target[:PAIRS] != -100).sum()


def test_dpo_with_a_reference_layer():
    x, weight, bias, target = head()
    ref_x, ref_weight, ref_bias, _ = (t.detach() for t in head(seed=5))
    exact = in_f64(x, weight, bias)
    c, r, *_ = sums(exact, target)
    c0, r0, *_ = sums([t.double() for t in (ref_x, ref_weight, ref_bias)], target)
    expected = -F.logsigmoid(0.2 * ((c - c0) - (r - r0))).mean()
    loss, results = losses.FusedLinearDPOLoss(beta=0.2, metrics=True)(x, weight, target, bias, ref_x, ref_weight, ref_bias)
    assert error(results["chosen_rewards"], (0.2 * (c - c0)).detach()) <= 1e-5
    check(loss, expected, (x, weight, bias), exact)
    by_logps = losses.FusedLinearDPOLoss(beta=0.2)(x, weight, target, bias, ref_logps=torch.cat([c0, r0]).float())
    assert abs(by_logps - loss) <= 1e-6


def test_orpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, nc, nr = sums(exact, target)
    c, r = c / nc, r / nr
    odds = (c - torch.log1p(-c.exp())) - (r - torch.log1p(-r.exp()))
    expected = nll(exact, target) - 0.1 * F.logsigmoid(odds).mean()
    check(losses.FusedLinearORPOLoss(beta=0.1)(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_simpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, nc, nr = sums(exact, target)
    expected = -F.logsigmoid(2.0 * (c / nc - r / nr) - 0.5).mean()
    check(losses.FusedLinearSimPOLoss(beta=2.0)(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_cpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, *_ = sums(exact, target)
    expected = nll(exact, target) - F.logsigmoid(0.1 * (c - r)).mean()
    check(losses.FusedLinearCPOLoss()(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_kto():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    s = token_logps(*exact, target).sum(-1)
    s0 = s.detach() + torch.linspace(-3, 3, 2 * PAIRS)
    desirable = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.uint8)
    sign, kl = 2.0 * desirable - 1, 0.7
    weights = torch.where(desirable.bool(), 1.0, 1.5)
    expected = (weights * torch.sigmoid(-0.3 * sign * (s - s0 - kl))).mean()
    loss = losses.FusedLinearKTOLoss(beta=0.3, undesirable_weight=1.5)(
        x, weight, target, desirable, bias, kl=torch.tensor(kl), ref_logps=s0.float())
    check(loss, expected, (x, weight, bias), exact)


def test_grpo():
    g = torch.Generator().manual_seed(4)
    logits = torch.randn(4, LEN, VOCAB, generator=g, requires_grad=True)
    ids = torch.randint(0, VOCAB, (4, LEN), generator=g)
    advantages = torch.randn(4, generator=g)
    mask = torch.ones(4, LEN, dtype=torch.long)
    mask[1, 4:] = 0
    (exact,) = in_f64(logits)
    logp = (exact / 0.8).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    old, ref = (logp.detach() + 0.3 * torch.randn(4, LEN, generator=g) for _ in range(2))
    ratio, d = (logp - old).exp(), ref - logp
    a = advantages[:, None].double()
    token = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.05 * (d.exp() - 1 - d)
    expected = (token * mask).sum() / mask.sum()
    loss = losses.GRPOLoss(temperature=0.8, beta=0.05)(logits, ids, advantages, old.float(), ref.float(), mask)
    check(loss, expected, (logits,), (exact,))


# ---- TRL

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def tokenizer():
    import tokenizers
    import transformers

    words = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(VOCAB - 4))])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>",
                                                eos_token="</s>", unk_token="<unk>")


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


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "cispo", "sapo"])
def test_trl_grpo(kind, tokenizer, tmp_path):
    arguments = {name: value for name, value in ARGUMENTS.items() if name != "max_length"}
    args = trl.GRPOConfig(output_dir=str(tmp_path), loss_type=kind, num_generations=4, max_completion_length=6,
                          temperature=0.9, **arguments)
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
    compare(trainer, lambda model, batch: trainer._compute_loss(model, batch), inputs)


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


def test_trl_refusals(tokenizer, tmp_path):
    args = trl.DPOConfig(output_dir=str(tmp_path), loss_type="aot", **ARGUMENTS)
    trainer = trl.DPOTrainer(model=build("llama"), ref_model=build("llama"), args=args, processing_class=tokenizer,
                             train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    with pytest.raises(ValueError, match=r"DPOTrainer with loss_type \['aot'\] keeps TRL's loss"):
        losses.use_in_trl(trainer)
    with pytest.raises(ValueError, match="expected one of DPOTrainer, ORPOTrainer, KTOTrainer, GRPOTrainer, not a int"):
        losses.use_in_trl(3)
