"""Every type of models that apply() knows, small and random, patched and as transformers has it.

The types that test_models.py tests in every way are not repeated here. TIGON_TORCH_MODELS=1 adds twenty steps of
training in f32 and in bf16 and torch.compile for each type (.ci/models); without it there are three steps.
"""
import copy
import importlib.metadata
import inspect
import pathlib
import pickle
import re
import statistics

import pytest
import torch

transformers = pytest.importorskip("transformers")

from conftest import CONFIGS, LONG, OLD, error, gradients, randomised, rms_error  # noqa: E402
from small_models import IMAGES, TEXTS, WithoutHead, batch_of, of_type  # noqa: E402
from test_models import scatter  # noqa: E402

import tigon_torch  # noqa: E402
from tigon_torch.apply import equal, families  # noqa: E402
from tigon_torch.apply.attention import is_attention  # noqa: E402
from tigon_torch.compare import exactly  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch.md"
TRIED = "5.24."  # the transformers whose models the table of docs/torch.md has

KINDS = sorted({*TEXTS, *IMAGES})
# Text models without a head, and a vision tower: their loss is made of hidden states.
TOWERS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe", "muse_glimmer")
HEADLESS = {"pixtral", *(f"{kind}_text" for kind in TOWERS)}
TOKENS = [kind for kind in KINDS if kind != "pixtral"]
# States and not positions say which tokens came before, so that packed sequences are one sequence to transformers.
STATES = {kind for kind in KINDS if kind.startswith(("falcon_h1", "qwen3_next", "qwen3_5"))}


@pytest.fixture(autouse=True)
def _known(request):
    """A type that this transformers does not have yet is left out."""
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    if kind is not None:
        try:
            families.FAMILIES[kind].load()
        except ImportError as error:
            pytest.skip(str(error))
        if kind == "glm4v_moe_text" and OLD:
            pytest.skip("this transformers calls the type Glm4vMoe_text")


def with_loss(kind, model):
    return WithoutHead(model) if kind in HEADLESS else model


def patched(kind, model, **switches):
    made = copy.deepcopy(model)
    tigon_torch.apply(made, **{"linear": True, **switches})
    return with_loss(kind, made)


def reference(kind, model):
    return with_loss(kind, exactly(copy.deepcopy(model)))


def loss_of(model, inputs):
    dtype = next(model.parameters()).dtype
    given = {n: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x for n, x in inputs.items()}
    return model(**given).loss


def step(model, inputs):
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, inputs)
    loss.backward()
    return loss.detach(), gradients(model)


def skip_what_fails_by_itself(kind, model, inputs, change=lambda model: model):
    """Before 5 some models of transformers fail without tigon too. GLM's with images make three positions of a token,
    which they refuse where there is neither a mask nor a cache; reentrant checkpoints of Llama 4's tower lose
    gradients."""
    if not OLD:
        return
    plain, own = (with_loss(kind, copy.deepcopy(model)) for _ in range(2))
    try:
        _, actual = step(change(own), inputs)
    except RuntimeError as error:
        pytest.skip(f"transformers' own model refuses this: {error}")
    _, expected = step(plain, inputs)
    if expected.keys() != actual.keys():
        pytest.skip(f"transformers' own model has {len(actual)} of {len(expected)} gradients")


def no_worse(kind, dtype, measure, allowed, **options):
    """Errors against f64 of loss and gradients: tigon's, divided by allowed(name, numbers, transformers', usual) of the
    same batch, have a geometric mean of at most 1. From batch to batch errors scatter by a fifth in a vision tower, all
    its parameters together, and by a half in gemma4, in eager too, so that medians of a few batches say little. A
    gradient that is zero, as that of a bias of keys, is left out."""
    model = of_type(kind, dtype, **options)
    exact, models = reference(kind, model), [with_loss(kind, model), patched(kind, model)]
    found = {}
    for seed in range(1, 8):
        inputs = batch_of(kind, seed)
        loss, expected = step(exact, inputs)
        largest = max(g.abs().max() for g in expected.values())
        names = [n for n, g in expected.items() if g.abs().max() > 1e-9 * largest]
        (loss_eager, eager), (loss_actual, actual) = (step(candidate, inputs) for candidate in models)
        for grads in (eager, actual):
            assert grads.keys() == expected.keys() and all(grads[n].dtype == dtype for n in names)
        errors = {n: (measure(eager[n], expected[n]), measure(actual[n], expected[n])) for n in names}
        usual = statistics.median(of_eager for of_eager, _ in errors.values())
        errors["loss"] = [((x.double() - loss).abs() / loss.abs()).item() for x in (loss_eager, loss_actual)]
        for n, (of_eager, ours) in errors.items():
            numbers = expected[n].numel() if n in expected else 1
            found.setdefault(n, []).append(max(0.1, ours / allowed(n, numbers, of_eager, usual)))  # 0 would be luck
    for n, quotients in found.items():
        assert statistics.geometric_mean(quotients) <= 1, n


def documented():
    """The operators that docs/torch.md says of each type, or nothing where the file is not beside the tests."""
    if not DOCS.exists():
        return {}
    rows = re.findall(r"^\| (`[a-z0-9_`, ]+`) \| ([a-z_, ]*) \|", DOCS.read_text(), re.M)
    return {kind: set(cell.split(", ")) for kinds, cell in rows for kind in re.findall(r"`(\w+)`", kinds)}


def test_every_type_has_a_model_here():
    assert set(families.FAMILIES) == {*KINDS, *CONFIGS}
    assert all(callable(getattr(tigon_torch, f"apply_to_{kind}")) for kind in families.FAMILIES)


def test_a_type_that_this_transformers_lacks(monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "olmo2", families.Family("olmo_of_tomorrow"))
    for call in (lambda: tigon_torch.apply(of_type("olmo2")), tigon_torch.apply_to_olmo2):
        with pytest.raises(ImportError, match="transformers .* has no models of olmo_of_tomorrow; upgrade it"):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_replaced(kind, calls):
    """Each operator that the report names is called, and the documentation names the same."""
    if OLD:
        pytest.skip("the table is of a newer transformers")
    made = of_type(kind)
    report = tigon_torch.apply(made, linear=False)
    calls.clear()
    step(with_loss(kind, made), batch_of(kind))
    replaced = set(report.replaced)
    if any(name.startswith("fused_linear") for name in replaced):  # not PaliGemma's, which has no cap in older versions
        replaced -= {"cross_entropy"}
    assert set(calls) == replaced
    assert not any("somebody else" in line or "compared" in line for line in report.left)
    if importlib.metadata.version("transformers").startswith(TRIED) and documented():
        assert documented()[kind] == {"loss" if name.startswith("fused_linear") else name for name in replaced}


# Of these the attention of the tower does not say that it is not causal; Mllama's has a mask of pairs of tokens, too.
OWN_TOWER = {"llama4", "mllama"}
# Tokens of an image see each other there, so that the mask of the text is no causal one.
OWN_MASK = {"gemma3", "paligemma"}


@pytest.mark.parametrize("kind", sorted(set(IMAGES) - OWN_TOWER))
def test_attention_of_a_tower(kind, calls):
    """It is tigon's, beside that of the language model."""
    if OLD:
        pytest.skip("the towers of an older transformers have other attention")
    model = of_type(kind)
    attention = [m for m in model.modules() if is_attention(m)]
    of_tower = sum(type(m.config) is not type(model.config.get_text_config()) for m in attention)
    of_text = 0 if kind in OWN_MASK else sum("linear" not in type(m).__name__.lower() for m in attention) - of_tower
    tigon_torch.apply(model, linear=False)
    calls.clear()
    step(with_loss(kind, model), batch_of(kind))
    assert of_tower > 0 and calls["attention"] >= of_tower + of_text


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_weights_of_the_attention_of_a_tower(how, calls):
    """Who requests them gets transformers' own attention, which is not causal there."""
    model = of_type("llava")
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = how
    copied, pixels = patched("llava", model), batch_of("llava")["pixel_values"]
    outputs = []
    for of in model, copied:
        tower = of.model.vision_tower
        made = tower(pixels, output_attentions=True) if how == "eager" else tower(pixels)
        outputs.append(made.last_hidden_state)
    torch.testing.assert_close(*outputs, rtol=2e-5, atol=2e-5)
    assert ("attention" in calls) == (how == "sdpa")


def padded_images(side: str):
    """A batch of gemma4 in which both images have padding: 16 and 8 of 20 patches are some, in front, behind, or in the
    middle of the others."""
    inputs = batch_of("gemma4")
    places, pixels = inputs["image_position_ids"], inputs["pixel_values"]
    padded, filled = places.new_full((2, 20, 2), -1), pixels.new_zeros(2, 20, pixels.shape[2])
    for row, count in enumerate((16, 8)):
        where = {"left": range(20 - count, 20), "right": range(count),
                 "middle": [*range(count // 2), *range(20 - count // 2, 20)]}[side]
        padded[row, list(where)], filled[row, list(where)] = places[row, :count], pixels[row, :count]
    inputs["input_ids"][1, 4:6], inputs["mm_token_type_ids"][1, 4:6] = 7, 0  # four and two tokens of images
    return {**inputs, "pixel_values": filled, "image_position_ids": padded}


def close_to_the_exact(kind, model, inputs, copied):
    """Loss and gradients of `copied`, in f32: within what gemma4's rounding makes of them, in eager too."""
    expected, exact = step(reference(kind, model), inputs)
    loss, actual = step(copied, inputs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6) and actual.keys() == exact.keys()
    largest = max(g.abs().max().item() for g in exact.values())
    for name, g in exact.items():
        assert error(actual[name], g) <= 2e-4 or g.abs().max() < 1e-9 * largest, name


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_attention_of_a_padded_tower(side, calls):
    """Tokens of an image see those that are no padding. Padding between them is left to transformers' attention."""
    if OLD:
        pytest.skip("this transformers has no gemma4")
    model, inputs = of_type("gemma4"), padded_images(side)
    copied = patched("gemma4", model, linear=False)
    calls.clear()
    close_to_the_exact("gemma4", model, inputs, copied)
    assert calls["attention"] == (2 if side == "middle" else 4)


def pixtral_and_llama():
    """llava with the tower of the type pixtral, whose images have sizes of their own."""
    import small_models

    config = transformers.LlavaConfig(
        text_config=small_models.config_of("llama").to_dict(),
        vision_config={**small_models.TEXTS["pixtral"][1], "model_type": "pixtral"}, image_token_index=small_models.IMAGE,
        vision_feature_layer=-1, vision_feature_select_strategy="full")
    torch.manual_seed(0)
    return randomised(transformers.AutoModelForImageTextToText.from_config(config), torch.float32)


def test_attention_of_packed_images(calls):
    """Each image sees itself: by the places where they end, and not by a mask of all pairs of patches."""
    model, inputs = of_type("pixtral"), batch_of("pixtral", rows=2)
    tower = patched("pixtral", model, linear=False)
    calls.clear()
    close_to_the_exact("pixtral", model, inputs, tower)
    assert calls["attention"] == 2
    alone = [tower.model(pixel_values=x[None], image_sizes=s[None]).last_hidden_state
             for x, s in zip(inputs["pixel_values"], inputs["image_sizes"])]
    together = tower.model(**inputs).last_hidden_state
    torch.testing.assert_close(together, torch.cat(alone, 1), rtol=1e-5, atol=1e-5)
    whole = tower.model(pixel_values=inputs["pixel_values"][:1]).last_hidden_state
    torch.testing.assert_close(whole, alone[0], rtol=1e-5, atol=1e-5)


def test_packed_images_inside_another_model(calls):
    model = pixtral_and_llama()
    inputs = {**batch_of("llava"), "image_sizes": torch.tensor([[16, 16], [16, 16]])}
    copied = patched("llava", model, linear=False)
    again = pickle.loads(pickle.dumps(copied))
    calls.clear()
    close_to_the_exact("llava", model, inputs, copied)
    assert calls["attention"] == 4
    calls.clear()
    assert step(again, inputs)[0] == step(copied, inputs)[0] and calls["attention"] == 8
    tigon_torch.revert(copied)
    calls.clear()
    step(copied, inputs)
    assert not calls


def test_packed_images_where_the_attention_is_transformers(calls):
    """Its weights, another implementation, and torch.compile: with transformers' mask of all pairs."""
    model, inputs = of_type("pixtral"), batch_of("pixtral")
    expected = model(**inputs).last_hidden_state
    tower = patched("pixtral", model, linear=False).model
    model.set_attn_implementation("eager")
    torch._dynamo.reset()
    compiled = torch.compile(tower, backend="aot_eager")
    torch.testing.assert_close(compiled(**inputs).last_hidden_state, expected, rtol=2e-5, atol=2e-5)
    if not OLD:  # which does not tell the attention that its weights are requested
        made = [of(**inputs, output_attentions=True) for of in (model, tower)]
        torch.testing.assert_close(made[1].last_hidden_state, made[0].last_hidden_state, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(made[1].attentions, made[0].attentions, rtol=2e-5, atol=2e-5)
        assert made[1].attentions[0][0, 0, 0, -1] == 0
    tower.set_attn_implementation("sdpa")
    torch.testing.assert_close(tower(**inputs).last_hidden_state, expected, rtol=2e-5, atol=2e-5)
    assert "attention" not in calls


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "glm4v", "glm4v_moe"])
def test_rotations_by_time_height_and_width(kind, calls):
    """Of the language model and the tower, whether the angles are joined before the layers or, as before 5, in each."""
    model = patched(kind, of_type(kind))
    calls.clear()
    step(model, batch_of(kind))
    assert calls["rope"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_f32_loss_and_gradients(kind):
    """As test_models.py has it: twice eager's error, and a floor for what eager has by luck."""
    def allowed(name, numbers, of_eager, usual):
        return 2 * of_eager + (3e-7 if name == "loss" else 4e-6)

    no_worse(kind, torch.float32, error, allowed)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "glm4v_moe_text"])
def test_groups_of_experts(kind, calls, monkeypatch):
    """Routers that choose among the best groups alone."""
    if OLD and kind != "glm4v_moe_text":
        pytest.skip("the router of an older transformers is no module of its own")
    config, fields = TEXTS[kind]
    groups = dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5)
    if "topk_method" in fields:
        groups["topk_method"] = "group_limited_greedy"
    monkeypatch.setitem(TEXTS, kind, (config, {**fields, **groups}))
    test_f32_loss_and_gradients(kind)
    assert calls["moe_router"] > 0
    router, *_ = routers_of(kind)
    assert (router.groups, router.kept_groups, router.scale) == (4, 2, 2.5)
    assert router.group_score == ("largest" if kind == "deepseek_v2" else "two_largest")


def routers_of(kind):
    """What equal.py says of the routers of a model."""
    return [found for m in of_type(kind).modules() if (found := equal.topk_router(m)) is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_loss_and_gradients(kind):
    """As test_models.py has it. Of a parameter of few numbers (a gate, a decay) eager's error says little: its scale is
    the median of all parameters, where that is larger. All experts are chosen, as there."""
    def allowed(name, numbers, of_eager, usual):
        if name == "loss":
            return 1.3 * of_eager + 2e-3
        return scatter(numbers) * (max(of_eager, usual) if numbers < 64 else of_eager) + 2e-3

    no_worse(kind, torch.bfloat16, rms_error, allowed, experts=4)


def trained(kind, model, steps: int):
    """The losses of so many steps of AdamW over four batches, which it learns by heart."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for i in range(steps):
        loss, _ = step(model, batch_of(kind, seed=i % 4))
        optimizer.step()
        losses.append(loss.double())
    return torch.stack(losses)


@pytest.mark.parametrize("kind", KINDS)
def test_training(kind):
    """The losses stay as near to f64's as transformers' do."""
    steps = 20 if LONG else 3
    model = of_type(kind)
    exact = trained(kind, reference(kind, model), steps)
    eager, actual = (trained(kind, m, steps) for m in (with_loss(kind, copy.deepcopy(model)), patched(kind, model)))
    assert not LONG or exact[-1] < exact[0]
    assert (actual - exact).abs().max() <= 3 * (eager - exact).abs().max() + 1e-5


@pytest.mark.skipif(not LONG, reason="minutes: set TIGON_TORCH_MODELS")
@pytest.mark.parametrize("kind", KINDS)
def test_training_in_bf16(kind):
    model = of_type(kind, torch.bfloat16, experts=4)
    exact = trained(kind, reference(kind, model), 20)
    eager, actual = (trained(kind, m, 20) for m in (with_loss(kind, copy.deepcopy(model)), patched(kind, model)))
    assert exact[-1] < exact[0]
    assert rms_error(actual, exact) <= 1.5 * rms_error(eager, exact) + 1e-3


# Without images, so that no number of an image stops the graph.
COMPILED = ["ministral", "qwen3_vl_text"]


@pytest.mark.parametrize("kind", TOKENS if LONG else COMPILED)
def test_compiled(kind):
    """Loss and gradients as without torch.compile; those of transformers' own that break the graph may do so."""
    inputs = {**batch_of(kind), "use_cache": False}  # with which masks are known without looking at numbers
    skip_what_fails_by_itself(kind, of_type(kind), inputs)
    model = patched(kind, of_type(kind))
    loss, expected = step(model, inputs)
    torch._dynamo.reset()
    model.compile(backend="aot_eager", fullgraph=kind in COMPILED)
    again, actual = step(model, inputs)
    assert abs(again - loss) <= 1e-6 * abs(loss)
    for name in expected:
        assert error(actual[name], expected[name]) <= 2e-5 or expected[name].abs().max() < 1e-6, name


def same(kind, model, copied, **inputs):
    """Loss and gradients as near as two orders of sums; gradients that are noise around zero are left out."""
    (loss, expected), (again, actual) = step(model, inputs), step(copied, inputs)
    assert abs(again - loss) <= 1e-6 * abs(loss)
    largest = max(g.abs().max() for g in expected.values())
    for name, g in expected.items():
        assert error(actual[name], g) <= 1e-3 or g.abs().max() < 1e-6 * largest, name


@pytest.mark.parametrize("how", [None, {"use_reentrant": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing(kind, how):
    """The same bits as without. The second time with a mask, with which all versions of transformers run."""
    def checkpointed(made):
        (made.model if kind in HEADLESS else made).gradient_checkpointing_enable(how)
        return made

    model, inputs = of_type(kind), batch_of(kind)
    if not model.supports_gradient_checkpointing:
        pytest.skip("transformers does not checkpoint it")
    if how is None:
        skip_what_fails_by_itself(kind, model, inputs, checkpointed)
    elif kind in TOKENS:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    first, again = patched(kind, model), checkpointed(patched(kind, model))
    (loss, expected), (other, actual) = (step(m, inputs) for m in (first, again))
    assert other == loss and actual.keys() == expected.keys()
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name


@pytest.mark.parametrize("kind", TOKENS)
def test_padding(kind):
    """On the right and on the left."""
    model = of_type(kind)
    plain, copied = with_loss(kind, model), patched(kind, model)
    for where in (slice(-7, None), slice(0, 7)):
        inputs = batch_of(kind)
        if kind in IMAGES and where.start == 0:
            where = slice(0, 2)  # before the image
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, where] = 0
        inputs["labels"][0, where] = -100
        same(kind, plain, copied, **inputs)


def packed(kind, *lengths):
    """A batch whose positions start again after so many tokens."""
    positions = torch.cat([torch.arange(n) for n in lengths])[None].repeat(2, 1)
    return dict(position_ids=positions, use_cache=False, **batch_of(kind))


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind not in STATES | set(IMAGES)])
def test_packed_sequences(kind):
    model, inputs = of_type(kind), packed(kind, 5, 11, 8)
    skip_what_fails_by_itself(kind, model, inputs)
    same(kind, with_loss(kind, model), patched(kind, model), **inputs)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("v_head_dim", [8, 40])
def test_values_of_another_width_than_keys(kind, v_head_dim, calls, monkeypatch):
    """Of latent attention, narrower and wider: tigon's, also in packed sequences."""
    config, fields = TEXTS[kind]
    monkeypatch.setitem(TEXTS, kind, (config, {**fields, "v_head_dim": v_head_dim}))
    model = of_type(kind)
    for inputs in (batch_of(kind), packed(kind, 5, 11, 8)):
        skip_what_fails_by_itself(kind, model, inputs)
        copied = patched(kind, model)
        calls.clear()
        same(kind, model, copied, **inputs)
        assert calls["attention"] == 2


def test_chunks_of_packed_sequences(calls):
    """Attention of Llama 4 in chunks of 16 tokens, which some versions count from the beginning of a sequence and some
    from that of the row, is tigon's."""
    model = of_type("llama4_text")
    for lengths in ((24,), (3, 19, 2), (20, 4)):
        copied = patched("llama4_text", model)
        calls.clear()
        same("llama4_text", model, copied, **packed("llama4_text", *lengths))
        assert calls["attention"] == 2


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind not in HEADLESS | {"llama4"}])
def test_generate(kind):
    """The tokens of transformers, from a prompt with an image where the type takes one."""
    model = of_type(kind).eval()
    takes = inspect.signature(model.forward).parameters  # generate refuses the others; older transformers take fewer
    inputs = {name: value for name, value in batch_of(kind).items() if name in takes}
    labels = inputs.pop("labels")
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    expected, actual = (m.generate(**inputs, **options) for m in (model, patched(kind, model)))
    assert labels.shape[1] + 6 == expected.shape[1] and torch.equal(actual, expected)


@pytest.mark.parametrize("kind", ["qwen2_vl", "gpt_oss", "deepseek_v4", "qwen3_5", "llava"])
def test_types_load_files(kind, tmp_path):
    """apply_to_<type>() patches what from_pretrained builds, before there are weights; the loss is transformers'."""
    of_type(kind).save_pretrained(tmp_path)
    load = type(of_type(kind)).from_pretrained
    plain = load(tmp_path).train()
    getattr(tigon_torch, f"apply_to_{kind}")(linear=False)
    try:
        model = load(tmp_path).train()
        other = of_type("olmo2")
    finally:
        tigon_torch.revert()
    assert "forward" in vars(model) and not any("forward" in vars(m) for m in [*plain.modules(), *other.modules()])
    assert not any("forward" in vars(m) for m in load(tmp_path).modules())
    same(kind, plain, model, **batch_of(kind))


def test_a_type_with_images_and_its_text_type():
    """The type with images has its text type with it; the text type can be told otherwise, whichever is told first."""
    def text(**switches):
        tigon_torch.apply_to_qwen2_vl_text(linear=False, **switches)

    def both():
        tigon_torch.apply_to_qwen2_vl(linear=False)

    def rotations(kind):
        attentions = [m for m in of_type(kind).modules() if "Attention" in type(m).__name__]
        return sum("forward" in vars(m) for m in attentions)

    try:
        both()
        assert rotations("qwen2_vl_text") == 2 and rotations("qwen2_vl") == 4
        text(rope=False)
        assert rotations("qwen2_vl_text") == 0 and rotations("qwen2_vl") == 4
    finally:
        tigon_torch.revert()
    assert rotations("qwen2_vl_text") == rotations("qwen2_vl") == 0


def test_revert(calls):
    """Everything, in the language model, the tower and both configs; a copy stays patched."""
    model = of_type("qwen2_vl")
    loss, expected = step(model, batch_of("qwen2_vl"))
    tigon_torch.apply(model, linear=True)
    second = copy.deepcopy(model)
    tigon_torch.revert(model)
    assert not any("forward" in vars(m) for m in model.modules())
    assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")} == {"sdpa"}
    calls.clear()
    again, actual = step(model, batch_of("qwen2_vl"))
    assert not calls and again == loss and all(torch.equal(actual[name], expected[name]) for name in expected)
    step(second, batch_of("qwen2_vl"))
    assert calls["attention"] == 6 and calls["rope"] == 4
