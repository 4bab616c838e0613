"""tigon as an implementation inside Liger-Kernel:

    import tigon_torch.liger
    from liger_kernel.transformers import apply_liger_kernel_to_llama

The operators that Liger dispatches get an implementation "cpu-tigon", and "nvidia-tigon" where this package has them on
a GPU; both come first by rank, and are chosen by LIGER_KERNEL_IMPL, set_impl() and impl= as any other. The classes of
autograd.Function of the rest, and those of its chunked losses, are replaced wherever they were imported; what is called
with tensors of another device than tigon's goes to Liger's own.
"""
import importlib
import importlib.metadata
import sys

import torch

KNOWN = ("0.8.5",)  # the versions whose registry and classes these are


def _version() -> str:
    try:
        return importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if _version() not in KNOWN:
    raise ImportError(f"tigon_torch.liger: liger-kernel is {_version()}; expected one of {', '.join(KNOWN)} "
                      f"(pip install liger-kernel=={KNOWN[-1]} triton)")

from liger_kernel.backends import Capability, register_impl  # noqa: E402

from .. import devices  # noqa: E402
from . import chunked  # noqa: E402, F401
from .functions import FUNCTIONS, IMPLEMENTATIONS, log_probs_of_ids, matmul_of_int2  # noqa: E402

# Who imports classes by name; all of them are loaded, so that none is left with Liger's.
_HOLDERS = ("liger_kernel.functional", "liger_kernel.transformers", "liger_kernel.transformers.functional",
            "liger_kernel.transformers.grpo_loss", "liger_kernel.transformers.experimental.embedding",
            "liger_kernel.transformers.vocab_parallel_cross_entropy", "liger_kernel.chunked_loss",
            "liger_kernel.chunked_loss.functional", "liger_kernel.megatron")


def on_gpu(operators) -> bool:
    """Whether this package has these operators for NVIDIA's GPUs."""
    return torch.cuda.is_available() and all(devices.has_kernel(name, "cuda") for name in operators)


class _On(Capability):
    """Whether the tensors of a call are on this kind of device; Liger asks with that of the first one on a GPU."""

    def __init__(self, kind):
        super().__init__()
        object.__setattr__(self, "kind", kind)

    def _evaluate(self, device=None):
        kind = "cpu" if device is None else torch.device(device).type
        return kind == self.kind, None if kind == self.kind else f"tensors are on '{kind}', not on '{self.kind}'"


def _implementation(name, function):
    def run(*args, mode=None, **kwargs):
        if mode not in (None, "default"):
            raise ValueError(f"tigon: {name}: mode is {mode!r}; expected None or 'default'")
        return function(*args, **kwargs)

    return run


def _register() -> None:
    for name, (function, operators) in IMPLEMENTATIONS.items():
        for kind, impl in (("cpu", "cpu-tigon"), ("cuda", "nvidia-tigon")):
            if kind == "cpu" or on_gpu(operators):
                register_impl(name, impl_name=impl, capability=_On(kind), modes=("default",), default_mode="default",
                              preference_rank=1)(_implementation(name, function))


def _or_liger(function, operators, theirs):
    """The function on devices where tigon has its operators, and Liger's own on others."""
    gpu = on_gpu(operators)

    def run(*args, **kwargs):
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and not (value.is_cpu or gpu and value.is_cuda):
                return theirs(*args, **kwargs)
        result = function(*args, **kwargs)
        return theirs(*args, **kwargs) if result is NotImplemented else result

    return run


def _replacements() -> dict:
    """By the identity of Liger's object: what takes its place."""
    from liger_kernel import ops
    from liger_kernel.chunked_loss import functional as chunked_functional
    from liger_kernel.chunked_loss import fused_linear_ppo
    from liger_kernel.ops import grpo_loss
    from liger_kernel.ops.experimental import mm_int8int2

    made = {}
    for name, (function, operators) in FUNCTIONS.items():
        where, _, short = name.rpartition(".")
        theirs = getattr(ops if not where else fused_linear_ppo if short[0] == "_" else chunked_functional, short)
        run = _or_liger(function, operators, theirs.apply)
        as_theirs = {name: getattr(theirs, name) for name in ("__doc__", "__module__")}  # pickle finds it by its module
        made[id(theirs)] = theirs, type(short, (), {**as_theirs, "apply": staticmethod(run)})
        for alias, value in vars(chunked_functional).items():
            if alias.startswith("liger_") and getattr(value, "__self__", None) is theirs:
                made[id(value)] = value, run
    for theirs, function, operator in (
            (grpo_loss.fused_selective_log_softmax, log_probs_of_ids, "selective_log_softmax"),
            (mm_int8int2.matmul, matmul_of_int2, "matmul_int8_int2")):
        made[id(theirs)] = theirs, _or_liger(function, (operator,), theirs)
    return made


def _rebind(made: dict) -> None:
    """In every module that holds one of Liger's objects."""
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", None)
        for name, value in list(space.items()) if isinstance(space, dict) else ():
            found = made.get(id(value))
            if found is not None and found[0] is value:
                space[name] = found[1]


for _name in _HOLDERS:
    importlib.import_module(_name)
_register()
_rebind(_replacements())
