"""The package on a GPU, by hand: what a machine without one cannot say.

    python tests/gpu.py check     every case of test_ops.py whose operators have kernels for CUDA, in f32, bf16, f16 and
                                  f64 against f64 on the CPU; opcheck; captured in a CUDA graph; rows of real sizes; a
                                  small model of transformers before and after apply(); losses beside the CPU's, with
                                  labels that are wrong, and beside eager in f64
    python tests/gpu.py train     a training step with random weights and tokens, of each contender in one process:
      --model llama1b,llama8b,qwen3,gemma3   Llama of 1.24 G parameters; the layers of Llama 3 8B, 4 of them; those of
                                             Qwen3 1.7B and of Gemma 3 1B, 8 of them
      --contenders eager,compile,tigon,tigon_compile,tigon_graph,liger   graph: graphed_step
      --layers 16 --batch 4 --seq 2048 --steps 10 --profile FOLDER --keep
    python tests/gpu.py losses    forward and backward of the losses of hidden states, beside Liger's: time and memory
      --losses dpo,kto --batch 4 --seq 2048 --hidden 4096 --vocab 128256 --steps 10

Needs transformers 4.57 or later; of train and losses liger_kernel where it is compared. Ends with 1 where something is wrong.
"""
import argparse
import contextlib
import gc
import os
import pathlib
import re
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

import tigon_torch  # noqa: E402
from tigon_torch import ops  # noqa: E402

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


class Failures:
    def __init__(self):
        self.passed, self.failed = 0, []

    @contextlib.contextmanager
    def of(self, name):
        try:
            yield
            self.passed += 1
        except Exception as error:  # without a kernel, or this element type in this build, there is nothing to check
            if not re.search("expected tensors on the CPU|library for CUDA was built without", str(error)):
                self.say(name, error)

    def say(self, name, error):
        self.failed.append(name)
        print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        if os.environ.get("TRACE"):
            traceback.print_exc()


def move_constants(*modules):
    """Tensors that the cases read by name."""
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.cuda())


def relative(actual, reference):
    """The 2-norm of the difference, relative to that of the reference."""
    actual, reference = actual.detach().double().cpu(), reference.detach().double().cpu()
    return ((actual - reference).norm() / reference.norm().clamp_min(1e-300)).item()


# ---- check

def references(test_ops):
    """Of every case and type, in f64 on the CPU: results and gradients, for upstream gradients that are kept with them."""
    made = {}
    for name, case in test_ops.CASES.items():
        for dtype in (f32, f64) if name in test_ops.ROUNDED_BETWEEN else (f32, bf16, f16, f64):
            exact = [t.detach().to(f64).requires_grad_() for t in case.inputs(dtype)]
            try:
                upstream = test_ops.upstream_of(dtype, test_ops.as_tuple(case.formula(*exact)))
                made[name, dtype] = (upstream, *test_ops.run(case.formula, exact, upstream))
            except Exception:  # a case whose formula does not take every type
                continue
    return made


def on_gpu(case, dtype):
    return [t.detach().cuda().requires_grad_() for t in case.inputs(dtype)]


def ours_of(case):
    """The function of a case, whose own tensors are on the GPU, too."""
    def ours(*inputs):
        with torch.device("cuda"):
            return case.ours(*inputs)
    return ours


def check_formula(test_ops, name, case, dtype, reference):
    upstream, results, gradients = reference
    inputs = on_gpu(case, dtype)
    ours, our_gradients = test_ops.run(ours_of(case), inputs, [g.cuda() for g in upstream])
    for kind, factor, actual, wanted in (("result", case.factor, ours, results),
                                         ("gradient", case.gradients, our_gradients, gradients)):
        for i, (a, w) in enumerate(zip(actual, wanted)):
            assert a.device == inputs[0].device, f"{kind} {i} is on {a.device}"
            bound = factor * max(test_ops.roundoff(a.dtype), 4 * test_ops.roundoff(f32) * (dtype != f64))
            error = test_ops.error(a.cpu(), w)
            assert error <= bound, f"{kind} {i} of {dtype}: {error:.2e}; at most {bound:.2e}"


def check_opcheck(test_ops, case):
    with test_ops.Calls() as calls:
        test_ops.run(ours_of(case), on_gpu(case, f32), upstream_on_gpu(test_ops, case))
    for func, args, _ in calls.calls:
        args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        torch.library.opcheck(func, args, test_utils=("test_schema", "test_faketensor"))


def upstream_on_gpu(test_ops, case):
    with torch.no_grad():
        return [g.cuda() for g in test_ops.upstream_of(f32, test_ops.as_tuple(ours_of(case)(*on_gpu(case, f32))))]


def captured(step):
    """The results of a step that is replayed from a CUDA graph, and those without one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            plain = [t.clone() for t in step()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for t in results:
        t.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return results, plain


def check_graph(test_ops, case):
    inputs, upstream = on_gpu(case, f32), upstream_on_gpu(test_ops, case)
    results, plain = captured(lambda: [t for part in test_ops.run(ours_of(case), inputs, upstream) for t in part])
    for a, b in zip(results, plain):
        assert torch.equal(a, b), "a replayed graph gives other bits"


def rows_of_real_sizes():
    """Name, function, formula in f64, shapes."""
    def rms(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    for rows, cols in ((512, 4096), (333, 2048), (64, 14336), (8, 40000), (100, 1000), (77, 4099)):
        shape = rows, cols
        yield "rms_norm", lambda x, w: ops.rms_norm(x, w), rms, (shape, (cols,))
        yield "fused_add_rms_norm", lambda x, r, w: ops.fused_add_rms_norm(x, r, w), \
            lambda x, r, w: (rms((x + r).to(bf16).to(f64), w), x + r), (shape, shape, (cols,))
        yield "layer_norm", lambda x, w, b: ops.layer_norm(x, w, b), \
            lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (shape, (cols,), (cols,))
        yield "softmax", ops.softmax, lambda x: x.softmax(-1), (shape,)
        yield "swiglu", ops.swiglu, lambda g, u: F.silu(g) * u, (shape, shape)
        yield "geglu", ops.geglu, lambda g, u: F.gelu(g, approximate="tanh") * u, (shape, shape)
        yield "relu_squared", ops.relu_squared, lambda x: x.relu().square(), (shape,)


def check_rows(function, formula, shapes):
    inputs = [torch.randn(s, device="cuda").to(bf16).requires_grad_() for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    results, wanted = function(*inputs), formula(*exact)
    results, wanted = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (results, wanted))
    upstream = [torch.randn_like(y) for y in results]
    gradients = torch.autograd.grad(results, inputs, upstream)
    exact_gradients = torch.autograd.grad(wanted, exact, [g.double() for g in upstream])
    for a, w in zip([*results, *gradients], [*wanted, *exact_gradients]):
        assert relative(a, w) < 6e-3, f"{tuple(a.shape)} is off by {relative(a, w):.1e}"


def check_streams_and_refusals():
    x = torch.randn(64, 4096, device="cuda")
    w = torch.ones(4096, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):  # behind work that takes long: on another stream it would not see y
        torch.cuda._sleep(200_000_000)
        y = x * 2
        z = ops.rms_norm(y, w)
    torch.cuda.synchronize()
    assert torch.equal(z, ops.rms_norm(y, w))
    try:
        ops.rms_norm(x, w.cpu())
        raise AssertionError("a weight on the CPU was taken")
    except ValueError as error:
        assert "expected cuda:0" in str(error), error
    try:
        torch.ops.tigon.rms_norm(x, w.cpu(), 1e-6, 0.0, 0)
        raise AssertionError("a weight on the CPU was taken")
    except RuntimeError as error:
        assert "w is on the CPU; expected CUDA" in str(error), error


def check_model(dtype):
    import transformers

    config = transformers.LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                                      num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    exact = transformers.LlamaForCausalLM(config).train()
    exact.load_state_dict(model.state_dict())
    exact.to("cuda", f64).load_state_dict({n: t.to(dtype).to(f64) for n, t in model.state_dict().items()})
    model = model.to("cuda", dtype)
    ids = torch.randint(0, 1000, (2, 64), device="cuda")

    def gradients(m):
        m.zero_grad()
        out = m(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
        return [out.loss.detach(), *(p.grad.clone() for p in m.parameters())]

    wanted, eager = gradients(exact), gradients(model)
    report = tigon_torch.apply(model)
    print(report)
    ours = gradients(model)
    errors = [[relative(a, w) for a, w in zip(some, wanted)] for some in (eager, ours)]
    print(f"   {dtype}: errors of loss {errors[0][0]:.1e} (eager) {errors[1][0]:.1e}, the largest of gradients "
          f"{max(errors[0][1:]):.1e} {max(errors[1][1:]):.1e}", flush=True)
    for e, o in zip(*errors):
        assert o <= 1.3 * e + (1e-6 if dtype == f32 else 2e-3), (e, o)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=False)
    compiled_ones = gradients(compiled)
    for a, w in zip(compiled_ones, wanted):
        assert relative(a, w) <= 1.3 * max(errors[0]) + 2e-3, "compiled"
    if "rms_norm" in report.replaced and dtype == bf16:
        results, plain = captured(lambda: gradients_kept(model, ids))
        for a, b in zip(results, plain):  # cuBLAS may choose another product
            assert relative(a, b) <= 1e-2, "a replayed graph of the model gives other gradients"


def gradients_kept(model, ids):
    """A step whose gradients stay where they are, as a graph needs it."""
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def check_losses(failures):
    import gpu_losses
    import losses_on_both

    with failures.of("losses beside those of the CPU"):
        far = losses_on_both.far(losses_on_both.results("cuda"), losses_on_both.results("cpu"))
        bad = {key: value for key, value in far.items() if not value <= 1e-4}
        assert not bad, bad
    with failures.of("losses in bf16 beside those of the CPU"):
        far = losses_on_both.far(losses_on_both.results("cuda", bf16), losses_on_both.results("cpu", bf16))
        bad = {key: value for key, value in far.items() if not value <= 8e-2}
        assert not bad, bad
    for dtype in (f32, bf16):
        with failures.of(f"wrong labels in {dtype}"):
            bad = losses_on_both.wrong_labels("cuda", dtype)
            assert not bad, bad
    gpu_losses.check(failures)


def check():
    import cases_of_layers
    import cases_of_losses
    import cases_of_rows
    import test_ops

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(tigon_torch.backends() if hasattr(tigon_torch, "backends") else "")
    failures = Failures()
    exact = references(test_ops)
    move_constants(test_ops, cases_of_rows, cases_of_layers, cases_of_losses)
    ran = set()
    for (name, dtype), reference in exact.items():
        case, before = test_ops.CASES[name], failures.passed
        with failures.of(f"{name} {dtype}"):
            check_formula(test_ops, name, case, dtype, reference)
        if failures.passed > before:
            ran.add(name)
    for name in sorted(ran):
        with failures.of(f"opcheck of {name}"):
            check_opcheck(test_ops, test_ops.CASES[name])
        with failures.of(f"graph of {name}"):
            check_graph(test_ops, test_ops.CASES[name])
    for name, *what in rows_of_real_sizes():
        with failures.of(f"{name} of {what[-1]}"):
            check_rows(*what)
    check_losses(failures)
    with failures.of("streams and refusals"):
        check_streams_and_refusals()
    for dtype in (f32, bf16):
        with failures.of(f"a model in {dtype}"):
            check_model(dtype)
    print(f"cases that ran: {' '.join(sorted(ran))}")
    print(f"{failures.passed} passed, {len(failures.failed)} failed")
    return 1 if failures.failed or not ran else 0


# ---- train

def _llama(**sizes):
    import transformers

    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**{
        "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, **sizes})


def _qwen3(**sizes):
    import transformers

    return transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**{
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True, **sizes})


def _gemma3(**sizes):
    import transformers

    return transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(**{
        "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "query_pre_attn_scalar": 256, "tie_word_embeddings": True, **sizes})


# Of each model the class, the config, and the name of Liger's patch.
MODELS = {
    "llama1b": (lambda **sizes: _llama(**{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                                          "tie_word_embeddings": True, **sizes}), "llama"),
    "llama8b": (lambda **sizes: _llama(**{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4,
                                          "tie_word_embeddings": False, **sizes}), "llama"),
    "qwen3": (_qwen3, "qwen3"),
    "gemma3": (_gemma3, "gemma3_text"),
}


def made(name, arguments):
    sizes = {"max_position_embeddings": arguments.seq, "use_cache": False}
    if arguments.layers:
        sizes["num_hidden_layers"] = arguments.layers
    cls, config = MODELS[name][0](**sizes)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = cls._from_config(config, dtype=bf16)
    return model.train()


@contextlib.contextmanager
def liger(name, model):
    """The model patched by Liger-Kernel, whose changes of transformers' module are undone afterwards."""
    import liger_kernel.transformers

    module = sys.modules[type(model).__module__]
    before, forward = dict(vars(module)), type(model).forward
    try:
        getattr(liger_kernel.transformers, f"apply_liger_kernel_to_{MODELS[name][1]}")(model=model)
        yield
    finally:
        vars(module).update(before)
        type(model).forward = forward


@contextlib.contextmanager
def contender(of, name, arguments):
    """A model and an optimizer."""
    model = made(of, arguments)
    with contextlib.ExitStack() as stack:
        if "liger" in name:
            stack.enter_context(liger(of, model))
        if "tigon" in name:
            print(tigon_torch.apply(model, recompute=not arguments.keep), flush=True)
        own = "tigon" in name and torch._C._dispatch_has_kernel_for_dispatch_key("tigon::adamw", "CUDA") \
            and tigon_torch.devices.has_kernel("adamw", "cuda")
        make = tigon_torch.AdamW if own else torch.optim.AdamW
        optimizer = make(model.parameters(), lr=1e-5, **({} if own else {"fused": True}))
        yield torch.compile(model) if "compile" in name else model, optimizer


def batches(arguments, vocab):
    generator = torch.Generator(device="cuda").manual_seed(1)
    while True:
        yield torch.randint(0, vocab, (arguments.batch, arguments.seq), generator=generator, device="cuda")


def profiled(step, folder, name):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    table = profile.key_averages().table(sort_by="device_time_total", row_limit=60, max_name_column_width=90)
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    pathlib.Path(folder, f"{name}.txt").write_text(table)
    rows = sorted(profile.key_averages(), key=lambda e: -e.device_time_total)
    print(f"   {name}: {sum(e.device_time_total for e in rows) / 1e3:.1f} ms in kernels", flush=True)
    for e in rows[:14]:
        print(f"   {e.device_time_total / 1e3:8.2f} ms {e.count:5d} x {e.key[:110]}", flush=True)


def run_contender(of, name, arguments):
    """Milliseconds of a step, the peak of memory, the losses."""
    gc.collect()
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    losses, events = [], []
    with contender(of, name, arguments) as (model, optimizer):
        data = batches(arguments, model.config.vocab_size)
        shown = next(data)

        def one():
            loss = model(input_ids=shown, labels=shown).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        begin = time.time()
        for _ in range(3):
            losses.append(one())
        step = one
        if "graph" in name:
            batch = {"input_ids": shown, "labels": shown}
            graphed = tigon_torch.graphed_step(model, optimizer, batch)
            step = lambda: graphed(batch)  # noqa: E731
        torch.cuda.synchronize()
        first = time.time() - begin
        torch.cuda.reset_peak_memory_stats()
        for _ in range(arguments.steps):
            shown.copy_(next(data))
            events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            events[-1][0].record()
            losses.append(step())
            events[-1][1].record()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        if arguments.profile:
            profiled(step, arguments.profile, f"{of}_{name}")
    times = [a.elapsed_time(b) for a, b in events]
    losses = [loss.item() for loss in losses]
    ms = statistics.median(times)
    tokens = arguments.batch * arguments.seq / ms * 1e3
    print(f"{name:16s} {ms:8.2f} ms  {min(times):.2f} to {max(times):.2f}  {tokens:8.0f} tokens/s  {peak / 2**20:8.0f} MiB  "
          f"loss {losses[0]:.5f} {losses[-1]:.5f}  first steps {first:.0f} s", flush=True)
    return ms


def train(arguments):
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    bad = 0
    for of in arguments.model.split(","):
        print(of, flush=True)
        for name in arguments.contenders.split(","):
            try:
                run_contender(of, name, arguments)
            except Exception as error:  # one that does not run here is left out
                bad |= "tigon" in name
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                if os.environ.get("TRACE"):
                    traceback.print_exc()
    return int(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "train", "losses"])
    parser.add_argument("--contenders", default="eager,compile,tigon,tigon_compile,liger")
    parser.add_argument("--profile")
    parser.add_argument("--keep", action="store_true", help="apply(model, recompute=False)")
    parser.add_argument("--model", default="llama1b", help=", ".join(MODELS))
    parser.add_argument("--losses", default="", help="names, of gpu_losses.py; without it all")
    sizes = dict(layers=0, batch=4, seq=2048, steps=10, hidden=4096, vocab=128256)  # 0: as many as the model has
    for name, value in sizes.items():
        parser.add_argument("--" + name, type=int, default=value)
    arguments = parser.parse_args()
    if arguments.what == "losses":
        import gpu_losses

        sys.exit(gpu_losses.time(arguments))
    sys.exit(check() if arguments.what == "check" else train(arguments))


if __name__ == "__main__":
    main()
