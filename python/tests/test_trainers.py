"""tigon_torch.use_in: one line for a trainer of transformers or TRL, against the trainer without it."""
import pathlib
import re

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from conftest import CONFIGS, VOCAB, batch, build  # noqa: E402

import tigon_torch  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch.md"
COMMON = dict(report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, learning_rate=1e-3, bf16=False)


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def rows(count=16):
    ids = torch.cat([batch(seed, ignored=False)["input_ids"] for seed in range(count // 2)])
    return [{"input_ids": row, "labels": torch.where(torch.arange(24) < 3 + i, -100, row)} for i, row in enumerate(ids)]


class TestTrainer:
    @pytest.mark.parametrize("family", ["llama", "gemma2"])
    def test_loss(self, family, tmp_path, calls):
        """Batches with unequal numbers of labels, of which two are one step: the mean is over the tokens of both."""
        results = []
        for line in (False, True):
            args = transformers.TrainingArguments(str(tmp_path), max_steps=3, per_device_train_batch_size=2,
                                                  gradient_accumulation_steps=2, **COMMON)
            trainer = transformers.Trainer(model=build(family), args=args, train_dataset=rows())
            if line:
                report = tigon_torch.use_in(trainer, linear=False)
                assert report.replaced["fused_linear_cross_entropy"] == 1
                calls.clear()
            results.append(losses_of(trainer))
        assert results[1] == pytest.approx(results[0], rel=1e-5)
        assert calls["fused_linear_cross_entropy"] == 6 and calls["attention"] == 12

    def test_refusals(self, tmp_path):
        class Own(transformers.Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                return 2 * super().compute_loss(model, inputs, **kwargs)

        trainer = Own(model=build("llama"), args=transformers.TrainingArguments(str(tmp_path), **COMMON))
        with pytest.raises(ValueError, match="Own with a compute_loss that tigon does not know keeps its own loss"):
            tigon_torch.use_in(trainer)
        assert not any("forward" in vars(m) for m in trainer.model.modules())
        with pytest.raises(TypeError, match="expected a Trainer of transformers or of TRL, not a int"):
            tigon_torch.use_in(3)


def sft(model, tokenizer, folder, data=None, **options):
    trl = pytest.importorskip("trl", minversion="1.16")
    datasets = pytest.importorskip("datasets")
    from test_trl import text

    data = data or {"text": [text(i, 6 + i) for i in range(8)]}
    usual = dict(max_length=32, max_steps=3, per_device_train_batch_size=4, **COMMON)
    args = trl.SFTConfig(str(folder), **{**usual, **options})
    return trl.SFTTrainer(model=model, args=args, processing_class=tokenizer,
                          train_dataset=datasets.Dataset.from_dict(data))


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("trl", minversion="1.16")
    from test_trl import make_tokenizer

    return make_tokenizer()


class TestSFT:
    @pytest.mark.parametrize("kind", ["granite", "packed", "accumulated", "patched before", "dft", "repeated"])
    def test_loss(self, kind, tokenizer, tmp_path, calls):
        """TRL's losses: padded batches, packed ones, two batches a step, a model that was patched before, and words
        that it learns in three steps."""
        from small_models import of_type

        options = {"packed": dict(packing=True, padding_free=True), "accumulated": dict(gradient_accumulation_steps=2),
                   "dft": dict(loss_type="dft"),
                   "repeated": dict(data={"text": ["w5 w6 " * 6] * 8}, learning_rate=0.02)}
        results, accuracies = [], []
        for line in (False, True):
            model = of_type("granite") if kind == "granite" else build("llama")
            if line and kind == "patched before":
                tigon_torch.apply(model, linear=False)
            trainer = sft(model, tokenizer, tmp_path, **options.get(kind, {}))
            if line:
                tigon_torch.use_in(trainer, linear=False)
                calls.clear()
            results.append(losses_of(trainer))
            accuracies.append([entry["mean_token_accuracy"] for entry in trainer.state.log_history if "loss" in entry])
        assert results[1] == pytest.approx(results[0], rel=1e-5)
        assert accuracies[1] == pytest.approx(accuracies[0], abs=1e-6)
        assert kind != "repeated" or accuracies[0][-1] > 0.2
        assert calls["fused_linear_cross_entropy"] == (6 if kind == "accumulated" else 3) and calls["rope"] >= 6
        assert "attention" in calls

    def test_adapters(self, tokenizer, tmp_path, calls):
        peft = pytest.importorskip("peft")
        results = []
        for line in (False, True):
            torch.manual_seed(5)
            model = peft.get_peft_model(build("llama"), peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
            trainer = sft(model, tokenizer, tmp_path)
            if line:
                tigon_torch.use_in(trainer, linear=False)
                calls.clear()
            results.append(losses_of(trainer))
        assert results[1] == pytest.approx(results[0], rel=1e-5) and calls["fused_linear_cross_entropy"] == 3

    @pytest.mark.parametrize("loss_type", ["nll", "dft"])
    def test_evaluation(self, loss_type, tokenizer, tmp_path):
        """Without logits, and with those that predict() returns."""
        results, predictions = [], []
        for line in (False, True):
            trainer = sft(build("llama"), tokenizer, tmp_path, loss_type=loss_type)
            if line:
                tigon_torch.use_in(trainer, linear=False)
            results.append(trainer.evaluate(trainer.train_dataset)["eval_loss"])
            predictions.append(trainer.predict(trainer.train_dataset))
        assert results[1] == pytest.approx(results[0], rel=1e-5)
        assert predictions[1].metrics["test_loss"] == pytest.approx(predictions[0].metrics["test_loss"], rel=1e-5)
        assert abs(predictions[1].predictions - predictions[0].predictions).max() < 1e-4

    def test_no_label_at_all(self, tokenizer, tmp_path):
        trainer = sft(build("llama"), tokenizer, tmp_path)
        tigon_torch.use_in(trainer, linear=False)
        inputs = {**batch(), "attention_mask": torch.ones(2, 24, dtype=torch.long)}
        inputs["labels"].fill_(-100)
        assert trainer.compute_loss(trainer.model, inputs) == 0

    def test_refusals(self, tokenizer, tmp_path):
        trainer = sft(build("llama"), tokenizer, tmp_path, label_smoothing_factor=0.1)
        with pytest.raises(ValueError, match="SFTTrainer with label_smoothing_factor keeps its own loss"):
            tigon_torch.use_in(trainer)

    def test_a_head_with_a_hook_is_refused(self, tokenizer, tmp_path):
        trainer = sft(build("llama"), tokenizer, tmp_path)
        trainer.model.lm_head.register_forward_hook(lambda module, args, output: output)
        with pytest.raises(ValueError, match="SFTTrainer with a model that has .*a head that is no plain linear layer"):
            tigon_torch.use_in(trainer, linear=False)
        assert len(losses_of(trainer)) == 3  # by TRL's own loss


def test_preferences(tokenizer, tmp_path, calls):
    """Model and reference are patched, and the loss is use_in_trl's."""
    trl = pytest.importorskip("trl", minversion="1.16")
    datasets = pytest.importorskip("datasets")
    from test_trl import PREFERENCES

    results = []
    for line in (False, True):
        args = trl.DPOConfig(str(tmp_path), max_steps=2, per_device_train_batch_size=4, max_length=32, **COMMON)
        trainer = trl.DPOTrainer(model=build("llama"), ref_model=build("llama", seed=7), args=args,
                                 processing_class=tokenizer, train_dataset=datasets.Dataset.from_dict(PREFERENCES))
        if line:
            assert tigon_torch.use_in(trainer, linear=False).replaced["rope"] == 2
            calls.clear()
        results.append(losses_of(trainer))
    assert results[1] == pytest.approx(results[0], rel=2e-5)
    assert calls["rope"] >= 8 and "_compute_loss" in vars(trainer)  # two layers of two models in two steps


def made(kind, tokenizer, folder, **options):
    """A trainer of TRL whose loss tigon does not have, over the layers of a small model."""
    trl = pytest.importorskip("trl", minversion="1.16")
    datasets = pytest.importorskip("datasets")
    from test_trl import PREFERENCES

    usual = {**dict(max_steps=2, per_device_train_batch_size=4), **COMMON, **options}
    if kind == "RewardTrainer":
        config = CONFIGS["llama"]()
        config.num_labels = 1
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        return trl.RewardTrainer(model=model, args=trl.RewardConfig(str(folder), max_length=32, **usual),
                                 processing_class=tokenizer, train_dataset=datasets.Dataset.from_dict(PREFERENCES))
    args = trl.RLOOConfig(str(folder), num_generations=2, max_completion_length=6, beta=0.0, **usual)
    return trl.RLOOTrainer(model=build("llama"), args=args, processing_class=tokenizer,
                           reward_funcs=lambda completions, **_: [float(len(set(c))) for c in completions],
                           train_dataset=datasets.Dataset.from_dict({"prompt": PREFERENCES["prompt"]}))


@pytest.mark.parametrize("kind", ["RewardTrainer", "RLOOTrainer"])
def test_trainers_that_keep_their_loss(kind, tokenizer, tmp_path, calls):
    """Layers are patched, and the loss is TRL's."""
    results = []
    for line in (False, True):
        torch.manual_seed(3)
        trainer = made(kind, tokenizer, tmp_path)
        if line:
            report = tigon_torch.use_in(trainer, linear=False)
            assert f"the loss: that of {kind} is TRL's own" in report.left
            calls.clear()
        results.append(losses_of(trainer))
    assert results[1] == pytest.approx(results[0], rel=1e-4, abs=1e-6)
    assert calls["rope"] >= 4 and calls["swiglu"] >= 4


@pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not beside the tests")
@pytest.mark.parametrize("number", [0, 1])
def test_programs_of_the_documentation(number, tokenizer, tmp_path, monkeypatch, calls):
    build("llama").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    part = DOCS.read_text().partition("\n## Trainers\n")[2].partition("\n## ")[0]
    program = re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)[number]
    exec(compile(program, f"program {number} of docs/torch.md", "exec"), {"folder": str(tmp_path / "model")})
    assert calls["fused_linear_cross_entropy"] >= 4


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_accuracy_and_predicted_tokens(family, training):
    """With logits, in evaluation, and without, in training: what argmax says, of the tokens that have a label."""
    model = build(family)
    inputs = batch()
    with torch.no_grad():
        best = model.eval()(input_ids=inputs["input_ids"]).logits.argmax(-1)
    inputs["labels"][:, 1:] = torch.where(torch.rand(2, 23, generator=torch.Generator().manual_seed(3)) < 0.4,
                                          best[:, :-1], inputs["labels"][:, 1:])
    target = torch.nn.functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:]
    tigon_torch.apply(model, linear=False)
    out = model.train(training)(**inputs, return_token_accuracy=True, return_predicted_tokens=True)
    assert (out.logits is None) == training
    assert torch.equal(out.predicted_tokens, torch.where(target == -100, -1, best))
    share = (best == target)[target != -100].float().mean()
    assert 0.2 < share < 0.8 and abs(out.token_accuracy - share) <= 1e-6
    assert out.loss.requires_grad and model(**inputs).get("token_accuracy") is None
