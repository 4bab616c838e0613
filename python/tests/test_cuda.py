"""What the package does for tensors on CUDA, as far as a machine without a GPU can say: gpu.py is for one that has it.

_library_model.so, which setup.py makes with TIGON_TORCH_CUDA_MODEL=1, is the library for CUDA over a model of a GPU whose
memory is the host's. With TIGON_TORCH_MODEL in the environment conftest.py loads it, and its kernels take the place of
the CPU's."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tigon_torch
from tigon_torch import devices, ops, registration

FOLDER = pathlib.Path(tigon_torch.__file__).parent
MODEL = FOLDER / "_library_model.so"
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch_cuda.md"
without_gpu = pytest.mark.skipif(devices.why_not() is None, reason="there is a GPU")


def on_cuda(op, *arguments):
    """Calls the kernel that tensors on CUDA have, whatever these are on."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *arguments)


def test_every_operator_has_a_kernel_or_a_refusal():
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in registration.names:
        assert kernel(f"tigon::{op}", "CPU") and kernel(f"tigon::{op}", "CUDA"), op
        assert devices.has_kernel(op, "cpu") and not devices.has_kernel(op, "xpu"), op
        assert devices.why_not() is None or not devices.has_kernel(op, "cuda"), op


@without_gpu
def test_the_sentence_of_an_operator_without_a_kernel():
    x, w = torch.randn(3, 5), torch.ones(5)
    for op, arguments in ((torch.ops.tigon.rms_norm.default, (x, w, 1e-6, 0.0, 0)),
                          (torch.ops.tigon.softmax.default, (x, 1.0))):
        name = op.name().partition("::")[2]
        with pytest.raises(NotImplementedError,
                           match=f"^tigon: {name}: tensors are on CUDA, and .*; expected tensors on the CPU$"):
            on_cuda(op, *arguments)


def test_results_are_where_the_tensors_are():
    with FakeTensorMode():
        x, w = torch.empty(2, 3, 64, device="cuda", dtype=torch.bfloat16), torch.empty(64, device="cuda")
        q, table = torch.empty(2, 4, 3, 16, device="cuda"), torch.empty(3, 16, device="cuda")
        results = [ops.rms_norm(x, w), *ops.fused_add_rms_norm(x, x, w), ops.layer_norm(x, w, w), ops.softmax(x),
                   ops.swiglu(x, x), ops.dyt(x, w[:1], w, w), *ops.rope(q, q, table, table),
                   torch.ops.tigon.swiglu_backward(x, x, x, 1.0, 1.0, 1.0, 1.0, 0.0, True, True)[0],
                   ops.fused_linear_cross_entropy(x, x[0].new_empty(9, 64), torch.zeros(2, 3, device="cuda").long())]
        head, ids = x.new_empty(9, 64), torch.zeros(2, 3, device="cuda").long()
        results += [ops.logprobs(x, head, ids), ops.fused_linear_jsd(x, head, x, head), ops.fused_linear_dpo(x, head, ids),
                    ops.fused_linear_kto(x, head, ids, ids[:, 0]), ops.fused_linear_grpo(x, head, ids, w[:2])]
        assert all(y.device == torch.device("cuda:0") for y in results)
        half = torch.empty(2, 64, device="cuda", dtype=torch.float16)  # for which a GPU has kernels
        assert ops.rms_norm(half, w).dtype == torch.float16


def test_tensors_are_on_one_device():
    with FakeTensorMode():
        x, w = torch.empty(3, 64, device="cuda"), torch.empty(64)
        with pytest.raises(ValueError, match=r"^tigon: rms_norm: weight is on cpu; expected cuda:0, as x$"):
            ops.rms_norm(x, w)
        with pytest.raises(ValueError, match=r"^tigon: rms_norm: weight is on cuda:1; expected cuda:0, as x$"):
            ops.rms_norm(x, torch.empty(64, device="cuda:1"))
        with pytest.raises(ValueError, match=r"^tigon: rms_norm: x is on xpu:0; expected the CPU or CUDA$"):
            ops.rms_norm(torch.empty(3, 64, device="xpu"))


def test_autocast_is_that_of_the_device():
    with FakeTensorMode():
        x, w = torch.empty(3, 8, device="cuda"), torch.empty(5, 8, device="cuda")
        before = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)  # torch.autocast does nothing without a GPU
        try:
            assert ops.linear(x, w).dtype == torch.bfloat16
        finally:
            torch.set_autocast_dtype("cuda", before[0])
            torch.set_autocast_enabled("cuda", before[1])
        with torch.autocast("cpu", torch.bfloat16):
            assert ops.linear(x, w).dtype == torch.float32


def test_a_gradient_on_a_gpu_is_not_looked_at():
    """Whether an upstream gradient is 1: to read it is to wait, and cannot be captured in a graph."""
    from tigon_torch.declared import Made, is_one

    assert is_one(torch.ones(()))
    with FakeTensorMode():
        assert not is_one(torch.ones((), device="cuda"))
        kept = torch.empty(4, device="cuda", dtype=torch.bfloat16)
        made, = Made((kept,)).take(torch.empty((), device="cuda"))
    assert made is kept


class TestApply:
    @pytest.fixture
    def model(self):
        transformers = pytest.importorskip("transformers")
        with FakeTensorMode():
            config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                              num_attention_heads=4, num_key_value_heads=2)
            with torch.device("cuda"):
                made = transformers.LlamaForCausalLM(config)
        return made

    def test_takes_what_has_a_kernel(self, model, monkeypatch):
        there = {"rms_norm", "swiglu", "rope"}
        monkeypatch.setattr(devices, "_without_cuda", set(registration.names) - there)
        report = tigon_torch.apply(model)
        assert report.replaced == {"rms_norm": 5, "swiglu": 2, "rope": 2}
        for operator in ("attention", "linear", "fused_add_rms_norm", "cross_entropy", "fused_linear_cross_entropy"):
            assert f"{operator}: PyTorch's own on CUDA" in report.left, report
        assert model.config._attn_implementation == "tigon"  # whose masks let PyTorch's attention know that it is causal
        tigon_torch.revert(model)
        assert model.config._attn_implementation == "sdpa"

    def test_takes_nothing_without_kernels(self, model, monkeypatch):
        monkeypatch.setattr(devices, "_without_cuda", set(registration.names))
        assert tigon_torch.apply(model, rope=False).replaced == {}

    def test_refuses_two_kinds_of_devices(self, model):
        model.model.norm.weight = torch.nn.Parameter(torch.empty(64, device="cpu"))
        with pytest.raises(ValueError, match="^tigon_torch.apply: the model is on cpu and cuda; expected the CPU or CUDA$"):
            tigon_torch.apply(model)

    def test_attention_without_a_mask_is_causal(self, monkeypatch):
        """What PyTorch's attention is called with on CUDA, where tigon has none: no mask, and grouped heads."""
        pytest.importorskip("transformers")
        from transformers.integrations import sdpa_attention

        from tigon_torch.apply import attention

        seen = []
        monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", lambda *args, **kwargs: seen.append(args[4]))
        monkeypatch.setattr(devices, "_without_cuda", {"attention"})
        with FakeTensorMode():
            q, k = (torch.empty(2, heads, 8, 16, device="cuda") for heads in (4, 2))
            for window in (None, 8, 3):
                attention.attention_forward(torch.nn.Module(), q, k, k, attention.plain_mask(window, "cuda"))
        assert seen[:2] == [None, None] and tuple(seen[2].shape) == (1, 1, 8, 8)


def libraries():
    return [file for file in sorted(FOLDER.glob("*.so"))]


@pytest.mark.skipif(shutil.which("nm") is None or not sys.platform.startswith("linux"), reason="no nm")
@pytest.mark.parametrize("file", libraries(), ids=lambda file: file.stem)
def test_symbols_are_of_the_stable_abi(file):
    """Of PyTorch functions of C alone."""
    said = subprocess.run(["nm", "-D", "-C", "--undefined-only", str(file)], capture_output=True, text=True,
                          check=True).stdout
    names = [line.split(maxsplit=1)[-1] for line in said.splitlines()]
    assert any(name.startswith("aoti_torch_") for name in names)
    assert not [name for name in names if re.search(r"\b(at|c10|torch|caffe2)::", name)]


class TestBackends:
    @pytest.fixture(autouse=True)
    def as_before(self):
        yield
        for op in [None, *(choice.op for choice in tigon_torch.backends())]:
            tigon_torch.use(None, op)

    def choice(self, op):
        return next(c for c in tigon_torch.backends() if c.op == op)

    def test_every_set_gives_what_it_gives_alone(self):
        """An operator that is told to use a set gives the bits of a process that has this set alone."""
        script = ("import torch, tigon_torch; from tigon_torch import ops; torch.manual_seed(0); "
                  "x = torch.randn(33, 77); z = ops.softmax(ops.rms_norm(x.bfloat16()).float() + ops.layer_norm(x)); "
                  "print(z.view(torch.int32).sum().item(), z.view(torch.int32)[7, 5].item())")
        sets = torch.ops.tigon.instruction_sets_of_cpu().split()
        assert tigon_torch.instruction_set() in sets
        for name in sets:
            said = [subprocess.run([sys.executable, "-c", script], env=os.environ | environment, capture_output=True,
                                   text=True, check=True).stdout
                    for environment in ({"TIGON_INSTRUCTION_SET": name}, {"TIGON_BACKEND": name},
                                        {f"TIGON_BACKEND_OF_{op}": name for op in ("softmax", "rms_norm", "layer_norm")})]
            assert len(set(said)) == 1, (name, said)

    def test_use_is_for_one_operator(self):
        name = torch.ops.tigon.instruction_sets_of_cpu().split()[-1]
        before = self.choice("rope")
        x = torch.randn(3, 64, requires_grad=True)
        tigon_torch.use(name, "rms_norm")
        assert self.choice("rms_norm").cpu == name and self.choice("rms_norm").why == "use names it"
        assert self.choice("rope") == before
        ops.rms_norm(x).sum().backward()
        tigon_torch.use(name)
        assert self.choice("rope").cpu == name
        tigon_torch.use(None)
        assert self.choice("rope") == before and self.choice("rms_norm").cpu == name
        assert f"rms_norm  " in str(tigon_torch.backends())

    def test_names_that_are_not_there(self):
        sets = ", ".join(torch.ops.tigon.instruction_sets_of_library().split())
        with pytest.raises(ValueError, match=f"^tigon: use: no backend is called 'avx9'; there are {sets}, cuda$"):
            tigon_torch.use("avx9")
        with pytest.raises(ValueError, match="^tigon: use: op is 'conv'; expected one of adamw, .*"):
            tigon_torch.use(tigon_torch.instruction_set(), "conv")
        with pytest.raises(ValueError, match="^tigon: use: backend is of int; expected a name or None$"):
            tigon_torch.use(3)
        for variable, value in (("TIGON_BACKEND", "avx9"), ("TIGON_BACKEND_OF_conv", tigon_torch.instruction_set())):
            done = subprocess.run([sys.executable, "-c", "import tigon_torch"], env=os.environ | {variable: value},
                                  capture_output=True, text=True)
            assert done.returncode != 0 and f"ValueError: tigon: {variable}: " in done.stderr, done.stderr

    @without_gpu
    def test_cuda_without_a_gpu(self):
        with pytest.raises(ValueError, match="^tigon: use: backend is 'cuda', and .*; expected one of .*$"):
            tigon_torch.use("cuda")
        assert self.choice("rms_norm").cuda is None and self.choice("rms_norm").why_not_cuda == devices.why_not()

    def test_a_set_that_the_cpu_lacks(self, monkeypatch):
        from tigon_torch import backends  # the function; its module is hidden by it
        module = sys.modules["tigon_torch.backends"]
        assert backends is module.backends
        monkeypatch.setattr(module, "_sets", lambda: ["avx2048", *torch.ops.tigon.instruction_sets_of_library().split()])
        with pytest.raises(ValueError, match="^tigon: use: backend is 'avx2048', which this CPU lacks; expected one of .*"):
            tigon_torch.use("avx2048")


@pytest.mark.skipif(not MODEL.exists() or "TIGON_TORCH_MODEL" in os.environ, reason="built without TIGON_TORCH_CUDA_MODEL=1")
class TestModelOfAGpu:
    """The code between PyTorch and the kernels, run: strides, types, workspace, gradients that are not wanted."""

    # What has no kernel for CUDA, what the model was not built for, and sums whose order goes by the alignment of rows.
    OTHERS = "f16 or attention or tiled or moe or expert or test_strides_change and (qk_norm or mhc_post or mhc_apply)"

    def run(self, *arguments):
        path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"TIGON_TORCH_MODEL": str(MODEL), "PYTHONPATH": path}
        return subprocess.run([sys.executable, *arguments], env=environment, cwd=pathlib.Path(__file__).parent,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_operators(self):
        tests = "test_formula or test_strides_change or test_frozen_gradients or test_opcheck"
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ops.py", "-k",
                        f"({tests}) and not ({self.OTHERS})")
        assert done.returncode == 0, done.stdout[-3000:]
        passed = re.search(r"\b(\d+) passed", done.stdout)
        assert passed and int(passed[1]) > 290, done.stdout

    def test_losses_beside_those_of_the_cpu(self, tmp_path):
        """Values and gradients, sequences without a token, labels out of range: of the kernels for CUDA and of the CPU's."""
        import losses_on_both

        done = self.run("losses_on_both.py", str(tmp_path / "model"))
        assert done.returncode == 0, done.stdout[-3000:]
        results, bad = torch.load(tmp_path / "model")
        assert not bad, bad
        far = losses_on_both.far(results, losses_on_both.results("cpu"))
        assert not {key: value for key, value in far.items() if not value <= 2e-5}

    @pytest.mark.parametrize("tests", [
        ("test_optimizers.py", "state_goes or not_contiguous or closure"),
        ("test_models.py", "test_f32_loss_and_gradients and llama"),
        ("test_products.py", "test"),
        ("test_losses.py", "not promote and not linear_grpo"),  # which call ours in f64
        ("test_ranks.py", "test"),
        ("test_trl.py", "test_trl_dpo and sigmoid or trl_kto or trl_orpo or trl_grpo and dapo or trl_gkd and 0.3 "
                        "or trl_distillation and 0.4"),
    ], ids=lambda tests: tests[0])
    def test_an_optimizer_a_model_and_losses(self, tests):
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests[0], "-k", tests[1])
        if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and " skipped" in done.stdout:
            pytest.skip(f"{tests[0]} is skipped as a whole: it needs a package that is not there")
        assert done.returncode == 0, done.stdout[-3000:]

    @pytest.mark.skipif(not DOCS.exists(), reason="away from the repository")
    def test_docs_say_which_functions_have_kernels(self):
        """The table of docs/torch_cuda.md, beside the operators that the cases of test_ops.py call and those of the
        library."""
        import test_integers
        import test_ops

        rows = re.findall(r"^\| (a kernel|NotImplementedError) \| (.*) \|$", DOCS.read_text(), re.M)
        said = {name: has == "a kernel" for has, names in rows for name in re.findall(r"`(\w+)`", names)}
        functions = {name for name in ops.__all__ if not isinstance(getattr(ops, name), type)}  # without results' types
        assert said.keys() == functions, said.keys() ^ functions
        done = self.run("-c", "import conftest, torch; print('operators:', torch.ops.tigon.operators_on_cuda())")
        there = set(re.search("operators: (.*)", done.stdout)[1].split())
        needs = {name: set() for name in functions}
        for name, case in test_ops.CASES.items():
            with test_ops.Calls() as calls:
                test_ops.run(case.ours, case.inputs(torch.float32))
            function = max((f for f in functions if name.startswith(f)), key=len)
            needs[function] |= {func.name().partition("::")[2] for func, _, _ in calls.calls}
        needs |= {name: {name} for name in test_integers.OPERATORS}
        needs["mhc_apply"] = needs["mhc_pre"] | needs["mhc_post_res"]
        needs["mhc_forward"] = needs["mhc_apply"] | needs["mhc_coeffs"]
        assert all(needs.values()), needs
        ours = {"run_kernel", "once"}  # of the package itself
        has = {name: used - ours <= there for name, used in needs.items()}
        assert {name for name in functions if has[name] != said[name]} == set()

    def test_its_kernels_are_called(self):
        """f64, for which the model was not built, is refused by it."""
        done = self.run("-c", "import conftest, torch; from tigon_torch import ops\n"
                              "ops.rms_norm(torch.ones(3, 5))\nops.rms_norm(torch.ones(3, 5).double())")
        assert "rms_norm: the library for CUDA was built without" in done.stdout, done.stdout

