"""Which kernels run an operator, and the choice of them. The library has kernels for several instruction sets, of which each
call takes the widest one that this CPU has, unless told otherwise; tensors on CUDA take those for CUDA."""
import dataclasses
import os

import torch

from . import devices, registration

_ops = torch.ops.tigon
_VARIABLE, _OF = "TIGON_BACKEND", "TIGON_BACKEND_OF_"
_CUDA = "cuda"
_wishes: dict[str | None, tuple[str, str]] = {}  # of an operator, or None of all: a set, and who named it


def _operators() -> list[str]:
    return sorted(name for name in registration.names if not name.endswith("_backward"))


def _sets() -> list[str]:
    return _ops.instruction_sets_of_library().split()


def _expect(backend: str, op: str | None, where: str) -> None:
    """Refuses a backend or an operator that is not there."""
    if op is not None and op not in _operators():
        raise ValueError(f"tigon: {where}: op is {op!r}; expected one of {', '.join(_operators())}")
    if backend not in (*_sets(), _CUDA):
        raise ValueError(f"tigon: {where}: no backend is called {backend!r}; there are {', '.join((*_sets(), _CUDA))}")
    if backend == _CUDA:
        why = devices.why_not() if op is None else devices.why_not_on_cuda(op)
        if why is not None:
            raise ValueError(f"tigon: {where}: backend is 'cuda', and {why}; expected one of {', '.join(_sets())}")
    elif backend not in _ops.instruction_sets_of_cpu().split():
        raise ValueError(f"tigon: {where}: backend is {backend!r}, which this CPU lacks; expected one of "
                         f"{', '.join(_ops.instruction_sets_of_cpu().split())}")


def _use(backend: str | None, op: str | None, where: str) -> None:
    if backend is not None:
        _expect(backend, op, where)
    if backend == _CUDA:  # what tensors on CUDA take in any case
        return
    _ops.use(backend or "", op or "")
    if backend is None:
        _wishes.pop(op, None)
    else:
        _wishes[op] = backend, where


def use(backend: str | None, op: str | None = None) -> None:
    """Has an operator, forward and backward, or without op all that are not named, run on these kernels: an instruction set of
    tigon_torch.backends(), or None for the choice that is made without this call. For tensors in f32 and bf16 on the
    CPU; f16 and f64 have one set. Where a set has no kernels of its own for f32, those of the widest one within it run.
    "cuda" is what tensors on CUDA take in any case: it is refused where it would not run, and changes nothing.

    TIGON_BACKEND and TIGON_BACKEND_OF_<op> in the environment do the same when tigon_torch is imported. Results of two
    sets may differ in their last bits. Calls that are under way end on the kernels that they began with.
    Raises ValueError for a name that is not there and a set that this CPU lacks.
    """
    for name, value in (("backend", backend), ("op", op)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"tigon: use: {name} is of {type(value).__name__}; expected a name or None")
    _use(backend, op, "use")


def read_environment() -> None:
    """What the environment wishes."""
    for name, backend in sorted(os.environ.items()):
        if backend and name == _VARIABLE:
            _use(backend, None, name)
        elif backend and name.startswith(_OF):
            _use(backend, name[len(_OF):], name)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Who runs an operator: an instruction set, or why there is none, on each type of device, and why it is that one."""
    op: str
    cpu: str
    why: str
    cuda: str | None
    why_not_cuda: str | None


class Backends(list):
    """A Choice for every operator."""

    def __str__(self) -> str:
        there = _ops.instruction_sets_of_cpu().split()
        lines = ["tigon_torch: instruction sets of the library: "
                 + ", ".join(s if s in there else f"{s} (this CPU lacks it)" for s in _sets()),
                 "CUDA: " + (devices.why_not() or "yes")]
        width = max(len(choice.op) for choice in self)
        lines += [f"{c.op:{width}}  {c.cpu} ({c.why})" + ("; cuda" if c.cuda else "") for c in self]
        return "\n".join(lines)

    __repr__ = __str__


def backends() -> Backends:
    """Which kernels run each operator on the CPU and on CUDA, and why. print() makes a table of it."""
    made = Backends()
    for op in _operators():
        named, by = _wishes.get(op, _wishes.get(None, (None, None)))
        if named is None:
            forced = os.environ.get("TIGON_INSTRUCTION_SET")
            named = _ops.instruction_set()
            by = "TIGON_INSTRUCTION_SET names it" if forced else "the widest one that this CPU has"
        else:
            by = f"{by} names it"
        why_not = devices.why_not_on_cuda(op)
        made.append(Choice(op, named, by, None if why_not else _CUDA, why_not))
    return made
