"""Linear layers on a GPU (apply/products.py), on the model of a GPU, whose memory is the host's: TIGON_TORCH_MODEL, as
test_cuda.py sets it. Without it the kernels that these need are not there."""
import copy
import itertools
import os
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tigon_torch
from tigon_torch.apply.equal import Gate

package = sys.modules["tigon_torch.apply"]  # which the function of its name hides
products = package._products

pytestmark = pytest.mark.skipif("TIGON_TORCH_MODEL" not in os.environ, reason="needs the model of a GPU")


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(products, "on_gpu", lambda x: True)
    monkeypatch.setattr(package, "_device_of", lambda model: "cuda")
    # Of f32 alone the model was built.
    monkeypatch.setattr(package._equal.same, "__kwdefaults__", {"of_sums": False, "dtypes": (torch.float32,)})
    monkeypatch.setattr(package, "has_kernel", lambda op, device: op not in ("linear", "attention", "moe"))


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


def gradients(y, of, create_graph=False):
    torch.manual_seed(1)
    return torch.autograd.grad(sum((t * torch.randn_like(t)).sum() for t in y), of, create_graph=create_graph)


def expect_equal(actual, wanted):
    for a, w in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=1e-4, atol=1e-5)


def test_layers_of_one_input():
    torch.manual_seed(0)
    x = torch.randn(2, 7, 16, requires_grad=True)
    layers = linear(16, 8), linear(16, 24, bias=True), linear(16, 8)
    of = [x, *(p for layer in layers for p in layer.parameters())]
    ours, theirs = products.of_one_input(x, *layers), [layer(x) for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    expect_equal(gradients(ours, of), gradients(theirs, of))
    expect_equal(gradients(products.of_one_input(x, *layers)[1:], [x]),
                 gradients([layer(x) for layer in layers[1:]], [x]))  # one has no use
    again = [torch.autograd.grad(gradients(y, [x], create_graph=True)[0].square().sum(), layers[1].weight)
             for y in (products.of_one_input(x, *layers), [layer(x) for layer in layers])]
    expect_equal(*again)
    layers[0].weight.requires_grad_(False)
    of = [x, layers[1].weight]
    expect_equal(gradients(products.of_one_input(x, *layers), of), gradients([layer(x) for layer in layers], of))


@pytest.mark.parametrize("gate", [Gate("silu"), Gate("silu", 0.75, 1.5), Gate("tanh"), Gate("none")], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_behind_a_gate(gate, packed):
    torch.manual_seed(0)
    both = torch.randn(3, 5, 2, 24, requires_grad=True) * 2
    a, b = both.flatten(2).chunk(2, -1) if packed else both.unbind(2)
    layer = linear(24, 8, bias=True)
    of = [a, b, *layer.parameters()]
    ours, theirs = products.behind_gate(gate, a, b, layer), layer(gate(a, b))
    assert torch.equal(ours, theirs)
    expect_equal(gradients([ours], of), gradients([theirs], of))
    expect_equal(gradients([products.behind_gate(gate, a, b, layer)], [b, layer.bias]),
                 gradients([layer(gate(a, b))], [b, layer.bias]))
    layer.weight.requires_grad_(False)
    expect_equal(gradients([products.behind_gate(gate, a, b, layer)], [a]), gradients([layer(gate(a, b))], [a]))
    g, = gradients([products.behind_gate(gate, a, b, layer)], [a], create_graph=True)
    with pytest.raises(RuntimeError, match="a gradient of its gradient is wanted"):
        g.sum().backward()


def test_layers_that_are_called():
    """Where the layers are more than their products, or autograd records nothing."""
    x, layers = torch.randn(3, 16), (linear(16, 8), linear(16, 8))
    x.requires_grad_()
    assert products.of_one_input(x, *layers) is not None
    with torch.no_grad():
        assert products.of_one_input(x, *layers) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert products.of_one_input(x, *layers) is None
    assert products.of_one_input(x.double(), *layers) is None
    hook = layers[1].register_forward_hook(lambda *_: None)
    assert products.of_one_input(x, *layers) is None
    hook.remove()
    layers[1].weight.ds_id = 7  # of DeepSpeed ZeRO-3: it is there in the layer's own call alone
    assert products.of_one_input(x, *layers) is None
    del layers[1].weight.ds_id
    layers[0].forward = lambda x: x
    assert products.of_one_input(x, *layers) is None


def test_layers_beside_one_another():
    x, other = torch.randn(3, 16, requires_grad=True), torch.randn(3, 16, requires_grad=True)
    layers = [linear(16, 8) for _ in range(3)]
    beside, wanted = products.Beside(*layers), [F.linear(x, layer.weight) for layer in layers]
    for order in ((0, 1, 2), (2, 0, 1)):
        found = {i: beside(layers[i], x) for i in order}
        assert all(torch.equal(found[i], wanted[i]) for i in order) and not beside.ready and beside.joint
    assert found[0].grad_fn is found[1].grad_fn  # one operator made them
    beside(layers[0], x)
    assert torch.equal(beside(layers[1], other), F.linear(other, layers[1].weight))  # an input of its own
    assert not beside.joint and not beside.ready
    assert torch.equal(beside(layers[2], x), wanted[2])


@pytest.fixture
def model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).train()


def step(model):
    ids = torch.arange(66).view(2, 33) * 7 % 64
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def test_a_model(model):
    wanted = [t.clone() for t in step(model)]
    names = []
    with pytest.MonkeyPatch.context() as patch:
        for function in (products._OfOneInput, products._BehindGate):
            backward = function.backward
            patch.setattr(function, "backward", staticmethod(
                lambda ctx, *g, _of=function.__name__, _backward=backward: names.append(_of) or _backward(ctx, *g)))
        tigon_torch.apply(model)
        expect_equal(step(model), wanted)
    assert sorted(names) == ["_BehindGate"] * 2 + ["_OfOneInput"] * 4  # q, k and v, gate and up of two layers
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        beside = vars(copied.model.layers[0].self_attn.k_proj)[products.BESIDE]
        assert beside.layers[1] is copied.model.layers[0].self_attn.k_proj
        expect_equal(step(copied), wanted)
    tigon_torch.revert(model)
    assert products.BESIDE not in vars(model.model.layers[0].self_attn.q_proj)
    expect_equal(step(model), wanted)


@pytest.mark.parametrize("recompute", [True, False])
def test_the_norm_before_the_next_layer_comes_with_the_sum(model, recompute, monkeypatch):
    """One operator for the sum at the end of a layer and the norm at the begin of what follows."""
    wanted, calls = [t.clone() for t in step(model)], []
    tigon_torch.apply(model, recompute=recompute)
    for name in ("rms_norm", "fused_add_rms_norm"):
        made = getattr(package._modules.ops, name)
        monkeypatch.setattr(package._modules.ops, name,
                            lambda *args, _name=name, _made=made: calls.append(_name) or _made(*args))
    with torch.no_grad():
        hidden = model.model(input_ids=torch.arange(5)[None], use_cache=False).last_hidden_state
        assert not hasattr(hidden, "_tigon_normed")
    assert calls == ["rms_norm"] + ["fused_add_rms_norm"] * 4
    expect_equal(step(model), wanted)
    calls.clear()
    seen = []
    hook = model.model.layers[1].input_layernorm.register_forward_hook(lambda *_: seen.append(1))
    expect_equal(step(model), wanted)  # who looks at the norm sees it called
    assert calls.count("fused_add_rms_norm") == 3 and seen == [1]
    hook.remove()
    norm = model.model.layers[1].input_layernorm
    for name, value in (("ds_id", 7), ("is_sharded", None)):  # weights that are gathered where their modules are called
        calls.clear()
        with pytest.MonkeyPatch.context() as patch:
            if value is None:
                patch.setattr(package._modules, name, lambda module: module is model.model.layers[1])
            else:
                patch.setattr(norm.weight, name, value, raising=False)
            expect_equal(step(model), wanted)
        assert calls.count("fused_add_rms_norm") == 3, name
    first = model.model.layers[0]
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.clear()
        expect_equal(step(copied), wanted)
        assert calls.count("fused_add_rms_norm") == 2  # those inside the layers
    assert vars(copy.deepcopy(first))[package._modules.NEXT].of(first) == ()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    calls.clear()
    expect_equal(step(model), wanted)
    assert calls.count("fused_add_rms_norm") == 4  # two layers, forward and again: the layers keep their inputs alone


def test_times_upstream():
    """The gradients of a loss that were made in forward, multiplied in place; where the number is 1 they are left alone.
    f16 may be computed in f32."""
    for shape, dtype in itertools.product(((3, 8), (7,), (5, 513)), (torch.float32, torch.float16)):
        g = torch.randn(shape).to(dtype)
        kept = g.clone()
        for number in (1.0, -0.375):
            torch.ops.tigon.times_upstream(torch.tensor(number), g)
            kept *= number
            assert torch.equal(g, kept)


@pytest.mark.parametrize("name, numbers", [("times_upstream", None), ("geglu_backward_with_output", [True]),
                                           ("swiglu_backward_with_output", [1.0, 1.0, float("inf"), 1.0, 0.0])])
def test_opcheck(name, numbers):
    """What they write is in their schemas."""
    x = torch.randn(3, 8)
    args = (torch.tensor(0.5), x) if numbers is None else (x, x + 1, x - 1, *numbers)
    torch.library.opcheck(getattr(torch.ops.tigon, name).default, args, test_utils=("test_schema", "test_faketensor"))
