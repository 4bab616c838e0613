"""Patched models against transformers itself: loss, every gradient, training, compiled, generation, files."""
import copy
import importlib.metadata
import math
import os
import subprocess
import sys
import time
import weakref

import pytest
import torch
from conftest import CONFIGS, LONG, OLD, VOCAB, WITHOUT, batch, build, error, gradients, rms_error, twin

import tigon_torch
from tigon_torch import ops
from tigon_torch.apply.head import more_than_its_head
from tigon_torch.compare import exactly

transformers = pytest.importorskip("transformers")


def patched(model, **switches):
    copied = twin(model)
    tigon_torch.apply(copied, **{"linear": True, **switches})
    return copied


def step(model, **inputs):
    """Loss and gradients of one batch."""
    model.zero_grad(set_to_none=True)
    loss = model(**(inputs or batch())).loss
    loss.backward()
    return loss.detach(), gradients(model)


def test_operators_are_called(family, calls):
    model = patched(build(family))
    calls.clear()  # of what was measured to patch it
    step(model)
    expected = {"rms_norm", "fused_add_rms_norm", "rope", "attention", "linear", "fused_linear_cross_entropy"}
    expected |= {"geglu"} if family.startswith("gemma") else {"swiglu"} if family != "mixtral" else set()
    expected |= {"moe"} if family in ("mixtral", "qwen2_moe", "qwen3_moe") else set()
    expected -= WITHOUT.get(family, set())
    assert set(calls) - {"swiglu"} == expected - {"swiglu"} and ("swiglu" in calls or "swiglu" not in expected)
    assert all(calls[name] == 2 for name in {"attention", "rope", "fused_add_rms_norm"} & expected)


def exactness(family, dtype, measure=error, prepare=lambda model: model, **changes):
    """Errors against f64 of loss and of each gradient: transformers' and tigon's, for weights that dtype holds.
    `prepare` makes ready what tigon's are measured of."""
    model = build(family, dtype, **changes)
    exact = exactly(twin(model))
    loss, expected = step(exact)
    results = []
    for candidate in (model, prepare(patched(model))):
        actual, grads = step(candidate)
        assert grads.keys() == expected.keys()
        assert all(grads[name].dtype == dtype for name in grads)
        results.append((abs(actual.double() - loss).item() / abs(loss).item(),
                        {name: measure(grads[name], expected[name]) for name in grads}))
    return results


def test_f64_is_f64(family):
    """The reference: its loss has the slope that its gradients say, to far more digits than f32 has."""
    model = exactly(build(family))
    _, grads = step(model)
    torch.manual_seed(4)
    along = {name: torch.randn_like(g) * g.pow(2).mean().sqrt() for name, g in grads.items()}
    along = {name: a + g for (name, a), g in zip(along.items(), grads.values())}
    length = sum(a.pow(2).sum() for a in along.values()).sqrt()
    sides = []
    with torch.no_grad():
        for move in (1e-5, -2e-5):
            for name, p in model.named_parameters():
                p.add_(along[name] / length, alpha=move)
            sides.append(model(**batch()).loss)
    slope = sum((grads[name] * along[name]).sum() for name in grads) / length
    assert abs((sides[0] - sides[1]) / 2e-5 / slope - 1) < 1e-7


def as_exact_as_eager_in_f32(family, **how):
    (loss_eager, eager), (loss, actual) = exactness(family, torch.float32, **how)
    # Sums of another order are as exact, not equal: twice the error, and a floor for what eager has by luck.
    assert loss <= 2 * loss_eager + 3e-7
    for name in actual:
        assert actual[name] <= 2 * eager[name] + 4e-6, name


def test_f32_loss_and_gradients(family):
    as_exact_as_eager_in_f32(family)


def sized_error(actual, expected):
    return rms_error(actual, expected), expected.numel()


def scatter(numbers: int) -> float:
    """By how much two root mean squares of so many roundings to 8 bits may differ that are made in other places: the
    ratio of the two scatters by 1 / sqrt(numbers), of which this allows four, and errors of a layer are correlated."""
    return 1.3 + 4 / numbers**0.5


def all_experts(family):
    """In bf16 all experts are chosen: a choice that flips by rounding has nothing to do with an operator's error."""
    return {"num_experts_per_tok": 4} if family in ("mixtral", "qwen2_moe", "qwen3_moe") else {}


def as_exact_as_eager_in_bf16(family, **how):
    (loss_eager, eager), (loss, actual) = exactness(family, torch.bfloat16, sized_error, **all_experts(family), **how)
    assert loss <= 1.3 * loss_eager + 2e-3
    for name, (value, numbers) in actual.items():
        assert value <= scatter(numbers) * eager[name][0] + 2e-3, name


def test_bf16_loss_and_gradients(family):
    as_exact_as_eager_in_bf16(family)


def compiled(model, backend="aot_eager"):
    """Compiled in place, so that the names of the parameters stay, and without a break of the graph."""
    torch._dynamo.reset()
    model.compile(backend=backend, fullgraph=True)
    return model


def trained(model):
    """The losses of 20 steps of AdamW over four batches by turns, which it learns by heart."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for i in range(20):
        loss, _ = step(model, **batch(seed=i % 4))
        optimizer.step()
        losses.append(loss.double())
    return torch.stack(losses)


def test_training(family):
    """20 steps of AdamW, as they are and, at length, compiled: the losses stay as near to f64's as transformers' do."""
    model = build(family)
    runs = [patched(model), *([compiled(patched(model))] if LONG else [])]
    exact, eager = trained(exactly(twin(model))), trained(twin(model))
    assert exact[-1] < exact[0]
    for actual in map(trained, runs):
        assert (actual - exact).abs().max() <= 3 * (eager - exact).abs().max() + 1e-5


def test_training_in_bf16(family):
    """The same with weights of 8 bits, where an update may be lost in rounding: the root mean square of 20 losses."""
    model = build(family, torch.bfloat16, **all_experts(family))
    runs = [patched(model), *([compiled(patched(model))] if LONG else [])]
    exact, eager = trained(exactly(twin(model))), trained(twin(model))
    assert exact[-1] < exact[0]
    for actual in map(trained, runs):
        assert rms_error(actual, exact) <= 1.5 * rms_error(eager, exact) + 1e-3


@pytest.mark.parametrize("family", sorted(CONFIGS) if LONG else ["llama", "gemma2", "phi3", "qwen3_moe"])
def test_compiled(family):
    """Loss and gradients of the compiled model, in f32 and in bf16: of one of each kind of layer, at length of all."""
    if "moe" in WITHOUT.get(family, ()):
        pytest.skip("experts of this transformers cannot be compiled as a whole")
    as_exact_as_eager_in_f32(family, prepare=compiled)
    as_exact_as_eager_in_bf16(family, prepare=compiled)


@pytest.mark.skipif("TIGON_TORCH_INDUCTOR" not in os.environ, reason="minutes of g++: set TIGON_TORCH_INDUCTOR")
def test_compiled_by_inductor(family):
    """torch.compile as users call it."""
    as_exact_as_eager_in_f32(family, prepare=lambda model: compiled(model, "inductor"))
    as_exact_as_eager_in_bf16(family, prepare=lambda model: compiled(model, "inductor"))


@pytest.mark.parametrize("use_cache", [None, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen2_moe"])
def test_compiled_graph_holds_the_operators(family, use_cache):
    """Compiled, without a mask and positions, attention is tigon's: the mask is known without looking at values."""
    if "moe" in WITHOUT.get(family, ()) or OLD and family == "gemma2" and use_cache is None:
        pytest.skip("experts of this transformers cannot be compiled as a whole, nor are places in its caches known")
    model = patched(build(family))
    seen = []
    torch._dynamo.reset()

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    run = torch.compile(model, backend=backend, fullgraph=True)
    run(**batch(), use_cache=use_cache)
    names = {"attention", "rope", "rms_norm", "fused_add_rms_norm", "fused_linear_cross_entropy"}
    for name in names - WITHOUT.get(family, set()):
        assert any(node.startswith(f"tigon.{name}") for node in seen), name
    assert not any("scaled_dot_product" in name for name in seen)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, calls):
    """The graph has tigon's operators, and gives the logits."""
    model = patched(build("llama")).eval()
    ids = batch()["input_ids"]
    with torch.no_grad():
        exported = torch.export.export(model, (), {"input_ids": ids, "use_cache": False}, strict=strict)
        actual, expected = exported.module()(input_ids=ids, use_cache=False).logits, model(input_ids=ids).logits
    assert torch.equal(actual, expected)
    found = {str(node.target).split(".")[1] for node in exported.graph.nodes if str(node.target).startswith("tigon.")}
    assert found == {"rms_norm", "fused_add_rms_norm", "rope", "attention", "linear", "swiglu"}


def checkpointed(model, **how):
    model.gradient_checkpointing_enable(**how)
    return model


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(family, reentrant, calls):
    """Against transformers' own gradients, and the same bits as without."""
    how = {"gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    as_exact_as_eager_in_f32(family, prepare=lambda model: checkpointed(model, **how))
    assert calls.get("attention") == 4 or "attention" in WITHOUT.get(family, ())  # each layer again in backward
    for dtype in (torch.float32, torch.bfloat16):
        model = patched(build(family, dtype))
        loss, expected = step(model)
        again, actual = step(checkpointed(model, **how))
        assert again == loss
        for name in expected:
            assert torch.equal(actual[name], expected[name]), name


def test_recompute(family, monkeypatch):
    """Outputs of gates and of norms do not live until backward, and gradients have the same bits as if they did."""
    alive = []

    def watch(name):
        function = getattr(ops, name)

        def watched(*args, **kwargs):
            result = function(*args, **kwargs)
            alive.append(weakref.ref((result[0] if isinstance(result, tuple) else result).untyped_storage()))
            return result

        monkeypatch.setattr(ops, name, watched)

    model = build(family)
    results, living = [], []
    for name in ("swiglu", "geglu", "fused_add_rms_norm"):
        watch(name)
    for recompute in (False, True):
        copied = patched(model, recompute=recompute)
        alive.clear()
        loss = copied(**batch()).loss
        living.append(sum(ref() is not None for ref in alive))
        loss.backward()
        results.append(gradients(copied))
    # A gate and a fused norm in each layer; experts have no gate of their own.
    sparse = {"mixtral": 2, "qwen2_moe": 1, "qwen3_moe": 1}.get(family, 0)
    sparse += 2 * ("fused_add_rms_norm" in WITHOUT.get(family, ()))
    assert living[0] >= 4 - sparse and living[1] == 0
    for name in results[0]:
        assert torch.equal(results[0][name], results[1][name]), name


def test_recompute_of_what_was_changed():
    model = patched(build("llama"))
    loss = model(**batch()).loss
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight.add_(1)
    with pytest.raises(RuntimeError, match="an input of a norm or a gate was modified in place"):
        loss.backward()


def test_generate(family):
    model = build(family).eval()
    copied = patched(model)
    ids = batch()["input_ids"][:, :17]
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    expected, actual = (m.generate(ids, attention_mask=torch.ones_like(ids), **options) for m in (model, copied))
    assert torch.equal(actual, expected)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0  # padded on the left
    expected, actual = (m.generate(ids, attention_mask=mask, **options) for m in (model, copied))
    assert torch.equal(actual, expected)


def test_generate_in_bf16(family):
    """Two roundings may choose two tokens. Each one that is chosen is as good, by f64's logits, as logits are exact."""
    model = build(family, torch.bfloat16, **all_experts(family)).eval()
    exact, copied = exactly(twin(model)), patched(model)
    ids = batch()["input_ids"][:, :17]
    made = copied.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0,
                           eos_token_id=None)
    assert made.shape == (2, 29)
    with torch.no_grad():
        logits = exact(input_ids=made[:, :-1]).logits[:, 16:]
        rounded = model(input_ids=made[:, :-1]).logits[:, 16:]
    chosen = logits.gather(-1, made[:, 17:, None])[..., 0]
    assert (logits.amax(-1) - chosen).max() <= 2 * (rounded.double() - logits).abs().max()
    assert (logits.amax(-1) - chosen).max() < 0.2 * (logits.amax(-1) - logits.mean(-1)).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load(family, dtype, tmp_path):
    build(family).save_pretrained(tmp_path / "first")  # a loaded model has its tables of rotations in f32
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = patched(load(tmp_path / "first", dtype=dtype)).eval()
    model.save_pretrained(tmp_path / "again")
    assert "tigon" not in (tmp_path / "again" / "config.json").read_text()
    loaded = load(tmp_path / "again", dtype=dtype)
    state = loaded.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name
    inputs = {"input_ids": batch()["input_ids"]}
    tigon_torch.revert(model)
    assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)


def test_revert(family):
    model = build(family)
    loss, expected = step(model)
    attention = model.config._attn_implementation
    tigon_torch.apply(model, linear=True)
    assert any("forward" in vars(m) for m in model.modules())
    tigon_torch.revert(model)
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in model.modules())
    assert model.config._attn_implementation == attention and not hasattr(model, "_loss_function")
    again, actual = step(model)
    assert again == loss and all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize("copied", [lambda model: model, copy.deepcopy], ids=["itself", "copy"])
def test_what_a_config_was_told_meanwhile_stays(copied):
    """A patched model has a config of its own, which is the model's after revert, too."""
    model = build("gemma2")
    config = model.config
    first = copied(patched(model))
    first.resize_token_embeddings(VOCAB + 8)
    first.config.use_cache = False
    loss, _ = step(first)
    assert first.config is not config and config.vocab_size == VOCAB
    tigon_torch.revert(first)
    assert (first.config.vocab_size, first.config.use_cache) == (VOCAB + 8, False)
    assert first.config._attn_implementation == config._attn_implementation
    assert all(m.config is first.config for m in first.modules() if hasattr(m, "config"))
    assert abs(step(first)[0] - loss) <= 1e-5 * loss


def test_revert_of_a_layer():
    """The rest of the model stays patched, and takes the layer as it is."""
    model = build("llama")
    loss, _ = step(model)
    model = patched(model)
    tigon_torch.revert(model.model.layers[0])
    assert not is_patched(model.model.layers[0]) and is_patched(model.model.layers[1])
    assert abs(step(model)[0] - loss) <= 1e-6 * loss


def is_patched(model) -> bool:
    return any("forward" in vars(m) for m in model.modules())


def test_copies_have_patches_of_their_own(family):
    """A deep copy is patched as its model is; revert and apply change the one that they are given."""
    model = build(family)
    plain, _ = step(model)
    first = patched(model)
    loss, expected = step(first)
    second = copy.deepcopy(first)
    again, actual = step(second)
    assert again == loss and all(torch.equal(actual[name], expected[name]) for name in expected)
    tigon_torch.revert(second)
    assert not is_patched(second) and second.config._attn_implementation == model.config._attn_implementation
    assert step(second)[0] == plain
    again, actual = step(first)
    assert again == loss and all(torch.equal(actual[name], expected[name]) for name in expected)
    third = copy.deepcopy(first)
    report = tigon_torch.apply(third, rope=False, attention=False, linear=False)
    assert report.replaced.keys().isdisjoint({"rope", "attention", "linear"})
    assert not report.left or family in WITHOUT
    assert third.config._attn_implementation == model.config._attn_implementation
    assert first.config._attn_implementation == "tigon"
    tigon_torch.revert(first)
    assert not is_patched(first) and is_patched(third)
    tigon_torch.revert(third)
    assert not is_patched(third) and step(third)[0] == plain


def prepared(model, of):
    """What accelerate makes of it for mixed precision, and for its hooks."""
    accelerate = pytest.importorskip("accelerate")
    if of == "hooks":
        accelerate.hooks.add_hook_to_module(model, accelerate.hooks.ModelHook())
        return model
    return accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)


@pytest.mark.parametrize("of", ["precision", "hooks"])
def test_a_copy_of_what_accelerate_wrapped_has_weights_of_its_own(of):
    model = prepared(patched(build("llama")), of)
    before = model(**batch()).loss
    second = copy.deepcopy(model)
    with torch.no_grad():
        for p in second.parameters():
            p.zero_()
    assert abs(second(**batch()).loss - math.log(VOCAB)) <= 1e-3
    assert model(**batch()).loss == before
    if of == "precision":
        accelerate = pytest.importorskip("accelerate")
        inner = accelerate.Accelerator(cpu=True).unwrap_model(second, keep_fp32_wrapper=False)
        assert abs(inner(**batch()).loss - math.log(VOCAB)) <= 1e-5


def test_a_shallow_copy_shares_modules_as_any():
    model = build("llama")
    plain, _ = step(model)
    model = patched(model)
    loss, _ = step(model)
    shallow = copy.copy(model)
    assert step(shallow)[0] == loss
    tigon_torch.revert(shallow)
    tigon_torch.revert(model)
    assert not is_patched(shallow) and not is_patched(model)
    assert step(model)[0] == step(shallow)[0] == plain


LOADED = """
import sys
import torch
import tigon_torch
model, inputs = torch.load(sys.argv[1], weights_only=False)
with torch.no_grad():
    losses = [model(**inputs).loss]
    names = model.generate(inputs["input_ids"], max_new_tokens=2, do_sample=False).shape  # reads the names of arguments
    tigon_torch.revert(model)
    losses.append(model(**inputs).loss)
attention = model.config._attn_implementation
torch.save((losses, list(model.state_dict()), attention, str(tigon_torch.apply(model))), sys.argv[1])
"""


def test_pickle(family, tmp_path):
    """torch.save and torch.load of a patched model, here and, for one of each kind of layer, in a fresh process."""
    model = build(family)
    plain, _ = step(model)
    model = patched(model)
    keys = list(model.state_dict())
    loss, expected = step(model)
    model.zero_grad(set_to_none=True)
    torch.save((model, batch()), tmp_path / "model.pt")
    loaded, _ = torch.load(tmp_path / "model.pt", weights_only=False)
    again, actual = step(loaded)
    assert again == loss and all(torch.equal(actual[name], expected[name]) for name in expected)
    tigon_torch.revert(loaded)
    assert not is_patched(loaded) and step(loaded)[0] == plain and is_patched(model)
    if family not in ("gemma2", "phi3", "qwen3_moe"):
        return
    done = subprocess.run([sys.executable, "-c", LOADED, str(tmp_path / "model.pt")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    losses, names, attention, report = torch.load(tmp_path / "model.pt")
    assert [value.item() for value in losses] == pytest.approx([loss.item(), plain.item()], rel=1e-6)
    assert names == keys and attention != "tigon" and "fused_linear_cross_entropy (1)" in report


def test_pickle_of_lora():
    peft = pytest.importorskip("peft")
    model = build("llama")
    tigon_torch.apply(model, linear=True)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    loss, _ = step(wrapped)
    wrapped.zero_grad(set_to_none=True)
    loaded = copy.deepcopy(wrapped)
    assert step(loaded)[0] == loss
    tigon_torch.revert(loaded)
    assert not is_patched(loaded) and is_patched(wrapped)


def test_logits_that_are_more_than_head_times_hidden_states(calls, monkeypatch):
    """Then the loss is the model's own, and the report says so. A multiple of them is not more: hidden states are
    multiplied instead."""
    llama = transformers.LlamaForCausalLM
    own = llama.forward

    def changed(change):
        def forward(self, *args, labels=None, **kwargs):
            out = own(self, *args, **kwargs)
            out.logits = change(out.logits)
            out.loss = None if labels is None else self.loss_function(out.logits, labels, vocab_size=VOCAB)
            return out

        return forward

    with monkeypatch.context() as patch:
        patch.setattr(llama, "forward", changed(lambda logits: logits * 0.7))
        same(build("llama"), patched(build("llama"), linear=False))
    assert calls.pop("fused_linear_cross_entropy") == 1 and "cross_entropy" not in calls
    with monkeypatch.context() as patch:
        patch.setattr(llama, "forward", changed(lambda logits: logits.clamp(max=20)))
        for dtype in (torch.float32, torch.bfloat16):
            model = build("llama", dtype)
            copied = twin(model)
            report = tigon_torch.apply(copied, linear=False)
            assert "fused_linear_cross_entropy" not in report.replaced
            assert any("more than a multiple of its head's" in line for line in report.left), dtype
        same(build("llama"), patched(build("llama"), linear=False))
    assert calls["cross_entropy"] == 1 and "fused_linear_cross_entropy" not in calls

    class LlamaForCausalLM(llama):
        pass

    model = LlamaForCausalLM(CONFIGS["llama"]())
    report = tigon_torch.apply(model, linear=False)
    assert "cross_entropy" not in report.replaced and any("a class of its own" in line for line in report.left)
    # A field of the config that Llama does not know is no soft cap.
    model = build("llama", final_logit_softcapping=0.5)
    same(model, patched(model))
    assert calls["fused_linear_cross_entropy"] == 1


def test_logits_of_a_model_without_weights():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(CONFIGS["llama"]())
    report = tigon_torch.apply(model, linear=False)
    assert report.replaced["fused_linear_cross_entropy"] == 1 and any("no weights yet" in line for line in report.left)


@pytest.mark.parametrize("change, says", [
    (lambda model: None, None),
    (lambda model: model.lm_head.weight.zero_(), None),
    (lambda model: model.lm_head.weight.fill_(float("nan")), None),
    (lambda model: setattr(model.lm_head, "bias", torch.nn.Parameter(torch.ones(VOCAB))), None),
    (lambda model: setattr(model.config, "final_logit_softcapping", None), "more than head times"),
    (lambda model: model.lm_head.register_forward_pre_hook(lambda m, args: (2 * args[0],)), "no plain linear layer"),
    (lambda model: setattr(model, "lm_head", torch.nn.Sequential(model.lm_head)), "no plain linear layer (Sequential)"),
    (lambda model: model.model.register_forward_hook(lambda m, args, out: out), None),
    (lambda model: setattr(model.model.embed_tokens, "weight", None), "cannot be compared")])
def test_more_than_its_head(change, says):
    model = build("gemma2")
    with torch.no_grad():
        change(model)
    why = more_than_its_head(model, softcap=3.0)
    assert why is None if says is None else says in why


def test_comparing_logits_leaves_nothing_behind():
    model = build("phi3", resid_pdrop=0.1)
    model.model.norm.eval()
    model.register_buffer("seen", torch.zeros(3))
    model.lengths = None

    def count(module, args, kwargs):
        module.seen += 1
        module.lengths = kwargs["input_ids"].shape
        torch.rand(1)

    model.register_forward_pre_hook(count, with_kwargs=True)
    before = {name: (m.training, dict(vars(m))) for name, m in model.named_modules()}
    state = torch.get_rng_state()
    assert more_than_its_head(model) is None
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(model.seen, torch.zeros(3))
    for name, m in model.named_modules():
        training, attributes = before[name]
        assert m.training == training and vars(m) == attributes and not m._forward_hooks
    assert model.lengths is None and not model.model.norm.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("switch", ["rope", "rms_norm", "fused_add_rms_norm", "swiglu", "attention", "cross_entropy",
                                    "fused_linear_cross_entropy", "linear"])
def test_each_switch_alone(switch, calls):
    model = build("llama")
    loss, expected = step(model)
    copied = twin(model)
    off = {name: False for name in tigon_torch.SWITCHES}
    report = tigon_torch.apply(copied, **{**off, switch: True})
    assert set(report.replaced) == {switch}
    calls.clear()
    again, actual = step(copied)
    assert set(calls) == {switch}
    assert abs(again - loss) <= 1e-6 * abs(loss)
    for name in expected:
        assert error(actual[name], expected[name]) <= 2e-5, name


def same(model, copied, tolerance=2e-5, **inputs):
    loss, expected = step(model, **inputs)
    again, actual = step(copied, **inputs)
    assert abs(again - loss) <= 1e-6 * abs(loss)
    for name in expected:
        assert error(actual[name], expected[name]) <= tolerance, name


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen2_moe"])
@pytest.mark.parametrize("side", ["left", "right", "both", "between", "none"])
def test_padding(family, side, calls):
    """A mask with padding on either side of a sequence is tigon's attention's. One that hides what is between two tokens
    goes to transformers', and so does padding on the left with a soft cap."""
    model = build(family)
    inputs = batch()
    mask = torch.ones_like(inputs["input_ids"])
    hidden = {"left": [slice(0, 7)], "right": [slice(-7, None)], "both": [slice(0, 3), slice(-4, None)],
              "between": [slice(5, 8)], "none": []}
    for where in hidden[side]:
        mask[0, where] = 0
        inputs["labels"][0, where] = -100
    copied = patched(model)
    calls.clear()
    same(model, copied, attention_mask=mask, **inputs)
    other = side == "between" or family == "gemma2" and side in ("left", "both")
    assert ("attention" in calls) == (not other and "attention" not in WITHOUT.get(family, ()))


def test_padding_of_an_eager_model(calls):
    """Eager attention gives queries in the padding on the left the mean of all values, which a loss may see."""
    model = build("llama", _attn_implementation="eager")
    inputs = batch()
    mask = torch.ones_like(inputs["input_ids"])
    copied = patched(model)
    for where, ours in ((slice(0, 7), False), (slice(-7, None), True)):
        padded = {**inputs, "attention_mask": mask.clone()}
        padded["attention_mask"][0, where] = 0
        calls.clear()
        same(model, copied, **padded)
        assert ("attention" in calls) == ours


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen2_moe"])
@pytest.mark.parametrize("rows", [1, 2])
def test_packed_sequences(family, rows, calls):
    """Positions that start again: each sequence for itself, by cumulative lengths; unequal rows by a mask."""
    model = build(family)
    copied = patched(model)
    positions = torch.cat([torch.arange(n) for n in (5, 18, 1, 8)])[None].repeat(rows, 1)
    same(model, copied, position_ids=positions, use_cache=False, **batch(rows=rows, seq=32))
    assert calls.get("attention", 0) == (0 if "attention" in WITHOUT.get(family, ()) else 2)
    if rows == 2:
        positions[1] = torch.cat([torch.arange(20), torch.arange(12)])
        calls.clear()
        same(model, copied, position_ids=positions, use_cache=False, **batch(rows=rows, seq=32))
        assert "attention" not in calls


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_window_without_keys(family, packed, calls):
    """To transformers a sliding window of 0 is a window in which a query sees nothing, and None is none."""
    inputs = batch()
    if packed:
        inputs["position_ids"] = torch.cat([torch.arange(n) for n in (5, 19)])[None].repeat(2, 1)
    model = build(family, sliding_window=0)
    copied = patched(model)
    same(model, copied, use_cache=False, **inputs)
    assert calls.get("attention", 0) == (family == "gemma2")  # of whose two layers one has no window
    loss, expected = step(model, use_cache=False, **inputs)
    again, actual = step(compiled(copied), use_cache=False, **inputs)
    assert abs(again - loss) <= 1e-6 * abs(loss)
    assert all(error(actual[name], expected[name]) <= 2e-5 for name in expected)


def test_mask_of_ones_own(calls):
    model = build("llama")
    copied = patched(model)
    seq = batch()["input_ids"].shape[1]
    mask = torch.rand(2, 1, seq, seq, generator=torch.Generator().manual_seed(3)) > 0.3
    mask |= torch.eye(seq, dtype=torch.bool)
    same(model, copied, attention_mask=mask, **batch())
    assert "attention" not in calls


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_dropout_of_attention_is_transformers_own(family, calls):
    model = build(family, attention_dropout=0.25)
    copied = patched(model)
    results = []
    for m in (model, copied):
        torch.manual_seed(5)
        results.append(step(m))
    assert "attention" not in calls
    # eager and sdpa draw the same numbers only where both are the same function
    if family == "llama":
        assert abs(results[0][0] - results[1][0]) <= 1e-6 * abs(results[0][0])


def test_dropout_of_residuals_leaves_the_layer(calls):
    model = build("phi3", resid_pdrop=0.1)
    report = tigon_torch.apply(model, linear=False)
    assert "fused_add_rms_norm" not in report.replaced and any("residuals" in line for line in report.left)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_attention_weights_on_request(family):
    """transformers' own attention, with the mask written out that tigon's has no need of."""
    model = build(family, attn_implementation="eager").eval()
    model.set_attn_implementation("eager")
    copied = patched(model)
    inputs = {"input_ids": batch()["input_ids"], "output_attentions": True}
    expected, actual = model(**inputs).attentions, copied(**inputs).attentions
    assert len(actual) == 2 and all(error(a, e) <= 1e-5 for a, e in zip(actual, expected))


def test_hidden_states_on_request():
    model = build("llama").eval()
    inputs = {"input_ids": batch()["input_ids"], "output_hidden_states": True}
    expected, actual = model(**inputs).hidden_states, patched(model)(**inputs).hidden_states
    assert len(actual) == len(expected) == 3
    assert all(error(a, e) <= 1e-5 for a, e in zip(actual, expected))


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_what_the_loss_is_given(family, calls):
    model = build(family)
    copied = patched(model)
    calls.clear()
    inputs = batch()
    for more in (dict(num_items_in_batch=17), dict(num_items_in_batch=torch.tensor(17)),
                 dict(shift_labels=inputs["labels"].roll(-1, -1))):
        same(model, copied, **inputs, **more)
    same(model, copied, **batch(ignored=False), ignore_index=int(inputs["input_ids"][0, 3]))
    assert calls["fused_linear_cross_entropy"] == 4 and "cross_entropy" not in calls
    # The last positions only: transformers shifts the labels that it is given.
    kept = {"input_ids": inputs["input_ids"], "labels": inputs["labels"][:, -9:], "logits_to_keep": 9}
    same(model, copied, **kept)


def test_all_labels_ignored():
    model = patched(build("llama"))
    inputs = batch()
    inputs["labels"].fill_(-100)
    loss, grads = step(model, num_items_in_batch=5, **inputs)
    assert loss == 0 and all(g.abs().max() == 0 for g in grads.values())


def test_when_logits_are_made(calls):
    model = build("llama")
    copied = patched(model)
    inputs = batch()
    assert copied(**inputs).logits is None
    assert copied(**inputs, skip_logits=False).logits.shape == (2, 24, VOCAB)
    assert copied(input_ids=inputs["input_ids"]).logits.shape == (2, 24, VOCAB)
    assert isinstance(copied(**inputs, skip_logits=False, return_dict=False), tuple)
    copied.eval()
    assert copied(**inputs, skip_logits=True).logits is None
    calls.clear()
    actual, expected = copied(**inputs), model.eval()(**inputs)
    assert calls["cross_entropy"] == 1
    assert error(actual.logits, expected.logits) <= 1e-5 and abs(actual.loss - expected.loss) <= 1e-6 * expected.loss
    tigon_torch.apply(copied, skip_logits=True)
    assert copied(**inputs).logits is None


def test_a_loss_function_of_ones_own_is_kept(calls):
    model = build("llama")
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.float().pow(2).mean()
    copied = patched(model)
    same(model, copied, **batch())
    assert "cross_entropy" not in calls and "fused_linear_cross_entropy" not in calls


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_balance_of_experts(family):
    model = build(family, output_router_logits=True, router_aux_loss_coef=0.3)
    model.router_aux_loss_coef = 0.3
    copied = patched(model)
    same(model, copied, **batch())
    mask = torch.ones_like(batch()["input_ids"])
    mask[0, :7] = 0  # what is padded is not balanced
    same(model, copied, attention_mask=mask, **batch())
    out = copied(**batch())
    assert out.aux_loss is not None and len(out.router_logits) >= 1


def test_frozen_parameters():
    model = build("llama")
    for name, p in model.named_parameters():
        p.requires_grad_("layers.1" in name and "norm" not in name)
    copied = patched(model)
    same(model, copied, **batch())
    assert copied.model.layers[0].mlp.up_proj.weight.grad is None
    assert copied.model.norm.weight.grad is None


def test_lora():
    peft = pytest.importorskip("peft")
    model = build("llama")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
                             lora_dropout=0.0)
    torch.manual_seed(3)
    wrapped = peft.get_peft_model(model, config)
    loss, expected = step(wrapped)
    report = tigon_torch.apply(wrapped, linear=True)
    assert report.replaced["linear"] >= 15
    again, actual = step(wrapped)
    assert expected.keys() == actual.keys() and all("lora" in name for name in expected)
    assert abs(again - loss) <= 1e-6 * abs(loss)
    for name in expected:
        assert error(actual[name], expected[name]) <= 2e-5, name


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_autocast(family, calls):
    """f32 weights, products in bf16: the operators that are called without it, and as exact as transformers."""
    model = build(family, **all_experts(family))
    exact, expected = step(exactly(twin(model)))
    copied, errors = patched(model), []
    calls.clear()
    copied(**batch())
    counts = dict(calls)
    for m in (model, copied):
        m.zero_grad(set_to_none=True)
        calls.clear()
        with autocast():
            loss = m(**batch()).loss
        assert calls == (counts if m is copied else {})
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in m.parameters())
        grads = {name: sized_error(g, expected[name]) for name, g in gradients(m).items()}
        errors.append((abs(loss.double() - exact) / exact, grads))
    (loss_eager, eager), (loss, actual) = errors
    assert loss <= 1.3 * loss_eager + 2e-3
    for name, (value, numbers) in actual.items():
        assert value <= scatter(numbers) * eager[name][0] + 2e-3, name


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "qwen3_moe"])
def test_types_under_autocast(family):
    """What each module gives is of the type that it has in transformers."""
    model, seen = build(family), []
    for m in (model, patched(model)):
        types = {}
        for name, module in list(m.named_modules())[1:]:
            if name.endswith("layernorm") or name == "model":
                continue  # with a hook, it would not be fused with the sum before it
            module.register_forward_hook(lambda _, inputs, output, name=name: types.update(
                {name: (output[0] if isinstance(output, tuple) else output).dtype}))
        with autocast(), torch.no_grad():
            m(input_ids=batch()["input_ids"])
        seen.append(types)
    assert seen[1].items() <= seen[0].items() and len(seen[1]) > 20


def test_linear_is_measured_under_autocast(calls):
    """In autocast's type, at the first call, wherever that is; f32's measurement is another."""
    from tigon_torch.apply import measure

    model = build("llama")
    copied = patched(model, linear="auto")
    layers = [m for m in copied.modules() if type(m) is torch.nn.Linear]
    measure._times.cache_clear()
    copied.gradient_checkpointing_enable({"use_reentrant": False})
    losses = []
    for m in (model, copied):
        with autocast():
            loss = m(**batch()).loss
        loss.backward()  # which calls them once more, as often
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=2e-3, atol=0)
    sizes = {m.weight.shape for m in layers} - {model.lm_head.weight.shape}
    assert measure._times.cache_info().currsize == len(sizes)
    tigons = sum(measure.linear_is_faster(m.in_features, m.out_features, torch.bfloat16) for m in layers[:-1])
    calls.clear()
    with autocast(), torch.no_grad():
        copied.model(input_ids=batch()["input_ids"])
    assert calls.get("linear", 0) == tigons


def test_other_heads():
    """A model without a language head has no loss to replace; the rest is."""
    config = CONFIGS["llama"]()
    config.num_labels = 3
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    copied = twin(model)
    report = tigon_torch.apply(copied, linear=True)
    assert "cross_entropy" not in report.replaced and report.replaced["rope"] == 2
    inputs = {"input_ids": batch()["input_ids"], "labels": torch.tensor([0, 2])}
    same(model, copied, **inputs)


def test_classes(calls):
    """Without an instance: every model that is built from now on."""
    before = build("llama")
    loss, expected = step(before)
    tigon_torch.apply_to_llama(linear=True)
    try:
        after = build("llama")
        other = build("qwen2")
        calls.clear()
        again, actual = step(after)
        assert calls["rope"] == 2 and calls["fused_linear_cross_entropy"] == 1
        assert abs(again - loss) <= 1e-6 * abs(loss)
        for name in expected:
            assert error(actual[name], expected[name]) <= 2e-5, name
        assert not any("forward" in vars(m) for m in [*before.modules(), *other.modules()])
    finally:
        tigon_torch.revert()
    assert not any("forward" in vars(m) for m in build("llama").modules())


def test_classes_load_files(tmp_path):
    build("mistral").save_pretrained(tmp_path)
    tigon_torch.apply_to_mistral(linear=True)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).train()
    finally:
        tigon_torch.revert()
    assert "forward" in vars(model) and model.config._attn_implementation == "tigon"
    same(transformers.AutoModelForCausalLM.from_pretrained(tmp_path).train(), model, **batch())


def test_twice_is_once():
    model = build("llama")
    copied = patched(model)
    first = str(tigon_torch.apply(copied, linear=True))
    assert str(tigon_torch.apply(copied, linear=True)) == first and "somebody else" not in first
    same(model, copied, **batch())
    tigon_torch.revert(copied)
    assert not any("forward" in vars(m) for m in copied.modules())


def test_models_of_one_config_do_not_mix():
    config = CONFIGS["llama"]()
    first, second = (transformers.LlamaForCausalLM(config) for _ in range(2))
    tigon_torch.apply(first, linear=False)
    assert second.config._attn_implementation == "sdpa" and first.config._attn_implementation == "tigon"


def test_an_older_transformers_is_refused(monkeypatch):
    model = build("llama")
    for version, refused in (("4.56.2", True), ("4.57.1", False), ("5.24.dev0", False), ("6.0", False)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, of=version: of)
        if refused:
            with pytest.raises(ImportError, match=f"transformers {version} is older than 4.57"):
                tigon_torch.apply(model)
            with pytest.raises(ImportError, match="is older than 4.57"):
                tigon_torch.apply_to_llama()
        else:
            tigon_torch.apply(model, linear=False)


@pytest.mark.skipif(not OLD, reason="newer ones have no sdpa that leaves out a soft cap")
def test_sdpa_that_leaves_out_a_soft_cap(calls):
    """Results are those of before: without it, where the model was built so."""
    model = build("gemma2")
    model.config._attn_implementation = "sdpa"
    copied = twin(model)
    assert any("leaves out the soft cap" in line for line in tigon_torch.apply(copied, linear=True).left)
    same(model, copied, **batch())
    assert "attention" not in calls


def test_refusals():
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(ValueError, match="does not know models of type 'gpt2'; it knows llama, "):
        tigon_torch.apply(gpt)
    with pytest.raises(TypeError, match="expected a model of transformers"):
        tigon_torch.apply(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="no switch rmsnorm; there are rope, "):
        tigon_torch.apply(build("llama"), rmsnorm=True)
    with pytest.raises(ValueError, match="linear is True, False or 'auto'"):
        tigon_torch.apply(build("llama"), linear="yes")
    with pytest.raises(ValueError, match="the model is of type 'llama', not 'qwen3'"):
        tigon_torch.apply_to_qwen3(model=build("llama"))
    assert tigon_torch.apply_to_gemma3(model=build("gemma3_text"), linear=False).replaced["attention"] == 2
    llama = build("llama")
    llama.model.layers[0].mlp.up_proj.weight.ds_id = 7
    with pytest.raises(ValueError, match="partitioned by DeepSpeed ZeRO-3; expected whole ones"):
        tigon_torch.apply(llama)
    relu = build("llama", hidden_act="relu")
    report = tigon_torch.apply(relu, linear=False)
    assert "swiglu" not in report.replaced and any("'relu'" in line for line in report.left)


def test_weights_that_are_partitioned_afterwards():
    """DeepSpeed ZeRO-3 gathers weights in their own modules' calls alone, and tigon's layers read those of others."""
    for place in ("model.layers.1.post_attention_layernorm", "lm_head"):
        model = patched(build("llama", tie_word_embeddings=False))
        model.get_submodule(place).weight.ds_id = 7
        with pytest.raises(ValueError, match="partitioned by DeepSpeed ZeRO-3; expected whole ones"):
            model(**batch())


@pytest.fixture
def group():
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["DataParallel", "DistributedDataParallel", "compiled"])
def test_wrapped_models(kind, group):
    model = build("llama")
    wrapped = torch.compile(model) if kind == "compiled" else getattr(torch.nn.parallel, kind)(model)
    assert tigon_torch.apply(wrapped, linear=False).replaced["rope"] == 2
    assert is_patched(model)
    tigon_torch.revert(wrapped)
    assert not is_patched(model)


def test_a_model_that_is_sharded_already(group):
    from torch.distributed.fsdp import fully_shard

    model = build("llama")
    fully_shard(model.model.layers[0], mesh=group.device_mesh.init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="patch first, then shard"):
        tigon_torch.apply(model)


def test_without_transformers(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=r"transformers is not installed; .* tigon_torch\[transformers\]"):
        tigon_torch.apply_to_llama()


def test_linear_is_measured():
    from tigon_torch.apply import measure

    model = build("llama")
    report = tigon_torch.apply(model)
    faster = sum(measure.linear_is_faster(m.in_features, m.out_features, torch.float32)
                 for m in model.modules() if type(m) is torch.nn.Linear)
    assert report.replaced.get("linear", 0) == faster


@pytest.mark.parametrize("least, faster, tigons", [(1, True, [1, 3, 20]), (2, True, [3, 20]), (16, True, [20]),
                                                   (1, False, [1, 3]), (2, False, [3]), (16, False, [])])
def test_linear_of_few_rows(monkeypatch, calls, least, faster, tigons):
    """Numbers of rows at which layers are tigon's, by what was measured: of fewer than 16 rows, and of more."""
    apply = sys.modules["tigon_torch.apply"]
    monkeypatch.setattr(apply, "least_rows", lambda *shape: least)
    monkeypatch.setattr(apply, "linear_is_faster", lambda *shape: faster)
    model = build("llama").eval()
    copied = patched(model, linear="auto")
    layers = sum(type(m) is torch.nn.Linear for m in copied.modules())
    for rows in (1, 3, 20):
        calls.clear()
        ids = torch.arange(rows)[None]
        with torch.no_grad():
            expected, actual = model(input_ids=ids).logits, copied(input_ids=ids).logits
        assert calls.get("linear", 0) == (layers if rows in tigons else 0)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    left = str(tigon_torch.apply(copied).left)
    assert ("not faster here" in left) == (not faster) and ("but with fewer" in left) == (not faster and least < 16)


def test_few_rows_are_measured(monkeypatch):
    """A row alone first, then some."""
    from tigon_torch.apply import measure

    rows, slow = [], set()

    def linear(x, weight):
        if x.shape[0] not in rows[-1:]:
            rows.append(x.shape[0])
        time.sleep(2 * measure.CLEAR_SECONDS if x.shape[0] in slow else 0)
        return torch.zeros(x.shape[0], weight.shape[0])

    monkeypatch.setattr(measure, "WEIGHTS", 0)
    monkeypatch.setattr(measure.F, "linear", linear)
    monkeypatch.setattr(measure.ops, "linear", lambda x, weight: time.sleep(0.001))
    for slow, expected, measured in (({1}, 1, [1]), ({4}, 2, [1, 4]), (set(), 16, [1, 4])):
        rows.clear(), measure._times_of_few.cache_clear()
        assert measure.least_rows(40, 24, torch.float32) == expected and rows == measured
    measure._times_of_few.cache_clear()
    assert measure.least_rows(40, 24, torch.float64) == 16


def test_linear_is_measured_once_where_the_difference_is_clear(monkeypatch):
    """A product without instructions for its type takes seconds."""
    from tigon_torch.apply import measure

    rows = []

    plain = torch.nn.functional.linear

    def slow(x, weight):
        rows.append(x.shape[0])
        time.sleep(2 * measure.CLEAR_SECONDS)
        return plain(x, weight)

    monkeypatch.setattr(measure.F, "linear", slow)
    measure._times.cache_clear()
    try:
        assert measure.linear_is_faster(40, 24, torch.float32)
    finally:
        measure._times.cache_clear()
    assert rows == [16]
