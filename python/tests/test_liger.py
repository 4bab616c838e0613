"""tigon as an implementation inside Liger-Kernel (tigon_torch.liger), where that is installed. Liger's own tests with
it: .ci/liger."""
import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

pytest.importorskip("liger_kernel")
try:
    import tigon_torch.liger as shim
except ImportError as error:
    if "expected one of" not in str(error):  # a version that the shim does not know
        raise
    pytest.skip(str(error), allow_module_level=True)

import liger_kernel.functional
from liger_kernel import chunked_loss, ops
from liger_kernel.backends import available_impls, dispatch
from tigon_torch.liger import functions

import tigon_torch


def originals():
    """The arguments of Liger's own classes, from a process without tigon."""
    code = ("import inspect, json, torch, liger_kernel.ops as o, liger_kernel.chunked_loss.functional as c\n"
            "from liger_kernel.chunked_loss import fused_linear_ppo as p\n"
            "print(json.dumps({n: [(a.name, repr(a.default)) for a in inspect.signature(\n"
            "    getattr(v, 'forward', v.apply) if issubclass(v, torch.autograd.Function) else v.apply)\n"
            "    .parameters.values()]\n"
            "    for m in (o, c, p) for n, v in vars(m).items() if isinstance(v, type) and hasattr(v, 'apply')\n"
            "    for n in [n if m is o else 'chunked_loss.' + n]}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_arguments_are_those_of_liger():
    """Every class that takes tensors to a kernel is replaced, by a function with the same arguments in their order."""
    theirs = originals()
    for name, (function, _) in functions.FUNCTIONS.items():
        expected = [(a, d) for a, d in theirs[name] if a != "ctx"]
        ours = [(a.name, repr(a.default)) for a in inspect.signature(function).parameters.values()]
        assert [a for a, _ in ours] == [a for a, _ in expected], name
        if name != "LigerFusedLinearCrossEntropyFunction":  # whose last default is a constant of Liger's kernel
            assert [d for _, d in ours] == [d for _, d in expected], name
    # What is left runs PyTorch's code around what the caller hands on.
    left = {n for n in theirs if n not in functions.FUNCTIONS and not n.endswith("Base") and not n.startswith("_")}
    assert {n.split(".")[-1] for n in left} == {"LigerTiledMLPFunction"}


def test_every_dispatched_operator_has_tigon_first():
    from liger_kernel.backends import registry

    primitives = {"jsd_loss_and_grad", "cross_entropy_loss_and_grad", "kl_loss_and_grad"}  # inside Triton's composites
    assert set(registry._DISCOVERY_MAP) - primitives == set(functions.IMPLEMENTATIONS)
    for name in functions.IMPLEMENTATIONS:
        assert available_impls(name)[0] == "cpu-tigon"


def test_dispatch_runs_tigon():
    x, w = torch.randn(3, 8), torch.randn(8)
    expected = tigon_torch.ops.rms_norm(x, w)
    assert torch.equal(liger_kernel.functional.rms_norm(x, w), expected)
    assert torch.equal(dispatch("rms_norm", x, w, 1e-6, 0.0, "llama", impl="cpu-tigon"), expected)
    with pytest.raises(ValueError, match="tigon: rms_norm: mode is 'persistent'; expected None or 'default'"):
        liger_kernel.functional.rms_norm(x, w, mode="persistent")


def test_who_imported_a_class_before_has_the_new_one():
    from liger_kernel.chunked_loss.functional import liger_fused_linear_dpo
    from liger_kernel.transformers.rms_norm import LigerRMSNormFunction

    assert LigerRMSNormFunction is ops.LigerRMSNormFunction
    assert not issubclass(LigerRMSNormFunction, torch.autograd.Function)
    x = torch.randn(4, 3, 8)
    loss, beside = liger_fused_linear_dpo(x, torch.randn(16, 8), torch.randint(0, 16, (4, 3)), None, None, None, None,
                                          -100, 0.1, False, True, False)
    assert loss.shape == () and len(beside) == 7


def test_compiles_without_a_break():
    @torch.compile(backend="eager", fullgraph=True)
    def f(x, w):
        return ops.LigerRMSNormFunction.apply(x, w, 1e-6)

    x, w = torch.randn(3, 8), torch.randn(8)
    assert torch.equal(f(x, w), tigon_torch.ops.rms_norm(x, w))


def test_products_of_bytes_and_two_bits():
    """Liger packs in place, rows by quarters as tigon does; the product takes both."""
    from liger_kernel.ops.experimental.mm_int8int2 import matmul, pack_weights, unpack_weights

    torch.manual_seed(0)
    a, weight = torch.randint(-128, 128, (5, 24), dtype=torch.int8), torch.randint(-1, 3, (24, 7), dtype=torch.int8)
    packed = pack_weights(weight.clone())
    assert torch.equal(packed, tigon_torch.ops.pack_weights(weight))
    assert torch.equal(unpack_weights(packed), tigon_torch.ops.unpack_weights(packed).int())
    expected = (a.long() @ weight.long()).int()
    assert torch.equal(matmul(a, packed), expected) and torch.equal(matmul(a=a, b=packed), expected)


def test_another_device_goes_to_liger():
    x = torch.randn(3, 8, device="meta")
    called = []
    run = shim._or_liger(lambda *a: "tigon", ("rms_norm",), lambda *a: called.append(a) or "liger")
    assert run(x, 1) == "liger" and run(torch.randn(2), 1) == "tigon" and len(called) == 1
    again = shim._or_liger(lambda *a: NotImplemented, ("rms_norm",), lambda *a: "liger")
    assert again(torch.randn(2)) == "liger"


def test_another_version_is_refused():
    code = ("import importlib.metadata as m; m.version = lambda name: '9.9.9'\n"
            "import tigon_torch.liger")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "tigon_torch.liger: liger-kernel is 9.9.9; expected one of 0.8.5" in done.stderr


def test_means_of_logits():
    """What Liger returns beside a preference loss, which tigon's losses do not make."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(6, 5, 8), torch.randn(16, 8), torch.randn(16)
    logits = (x.double() @ weight.double().T + bias.double()).mean((1, 2))
    loss = chunked_loss.LigerFusedLinearCPOLoss()
    _, beside = loss(weight, x, torch.randint(0, 16, (6, 5)), bias)
    assert beside[2].item() == pytest.approx(logits[:3].mean().item(), rel=1e-5)
    assert beside[3].item() == pytest.approx(logits[3:].mean().item(), rel=1e-5)


PROGRAM = """
import copy, sys
import torch, transformers
import tigon_torch.liger
from liger_kernel.transformers import apply_liger_kernel_to_llama
from conftest import batch, build
from test_trainers import COMMON, losses_of, rows

def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        loss = model(**batch(seed=step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()

def trainer(model, flag):
    args = transformers.TrainingArguments(sys.argv[1], max_steps=3, per_device_train_batch_size=2,
                                          use_liger_kernel=flag, **COMMON)
    return losses_of(transformers.Trainer(model=model, args=args, train_dataset=rows()))

def sft(model, flag):
    from test_trainers import sft
    from test_trl import make_tokenizer
    return losses_of(sft(model, make_tokenizer(), sys.argv[1], use_liger_kernel=flag))

def equal(actual, expected):
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=2e-5, atol=0)

expected = [list(train(build("llama"))), trainer(build("llama"), False), sft(build("llama"), False)]
called = []
own = tigon_torch.ops.fused_linear_cross_entropy
tigon_torch.ops.fused_linear_cross_entropy = lambda *a, **k: called.append(0) or own(*a, **k)
equal(trainer(build("llama"), True), expected[1])
assert len(called) == 3, len(called)
equal(sft(build("llama"), True), expected[2])
model = build("llama")
apply_liger_kernel_to_llama(model=model, rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=True)
equal(list(train(model)), expected[0])
"""


def test_models_and_trainers(tmp_path):
    """A model that Liger patches, Trainer and SFTTrainer with use_liger_kernel, beside those without. In a process of its
    own, because Liger's patch of a type stays."""
    pytest.importorskip("trl", minversion="1.16")  # for which test_trl.py is
    folder = pathlib.Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True,
                          env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
