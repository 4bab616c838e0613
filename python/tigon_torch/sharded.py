"""DTensors in operators: what is split over the rows of an operator stays split, and a vocabulary that is split over
ranks goes to the operators of such a vocabulary. Loaded with the first DTensor (dtensors.py)."""
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .arguments import refuse


def _distributed(t: Tensor, mesh) -> DTensor:
    """A plain tensor is one that all ranks have."""
    return t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _mesh_of(op: str, named: dict):
    """That of all DTensors."""
    found = {name: value.device_mesh for name, value in named.items() if isinstance(value, DTensor)}
    first, mesh = next(iter(found.items()))
    for name, other in found.items():
        if other != mesh:
            refuse(op, name, f"on the mesh {other}", f"{mesh}, as {first}")
    return mesh


def _whole(t, mesh, gradient):
    """The tensor as all ranks have it, whose gradients on the ranks are parts of a sum, or the same."""
    return _distributed(t, mesh).redistribute(mesh, [Replicate()] * mesh.ndim).to_local(grad_placements=gradient)


def _contiguous(shape) -> tuple:
    stride, step = [], 1
    for n in reversed(shape):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))


def by_parts(function, op, rows, columns, named):
    """The function on this rank's part of the rows."""
    mesh = _mesh_of(op, named)
    of = _distributed(named[rows[0]], mesh)
    last = of.dim() - 1

    def stays(placement):
        return isinstance(placement, Shard) and (columns or placement.dim % (last + 1) != last)

    placements = [p if stays(p) else Replicate() for p in of.placements]
    sums = [Partial() if isinstance(p, Shard) else Replicate() for p in placements]
    local = {}
    for name, value in named.items():
        if name in rows and isinstance(value, Tensor):
            value = _distributed(value, mesh).redistribute(mesh, placements).to_local()
        elif isinstance(value, Tensor):
            value = _whole(value, mesh, sums)
        local[name] = value

    def made(y):
        return DTensor.from_local(y, mesh, placements, run_check=False, shape=of.shape, stride=_contiguous(of.shape))

    result = function(**local)
    return tuple(map(made, result)) if isinstance(result, tuple) else made(result)


def _shard_of(op, name, t, axis):
    """(the part on this rank, its group, (first class, classes)) of a DTensor that is split along this axis alone."""
    split = [i for i, p in enumerate(t.placements) if isinstance(p, Shard)]
    if len(split) != 1 or t.placements[split[0]].dim % t.dim() != axis or any(
            isinstance(p, Partial) for p in t.placements):
        refuse(op, name, f"placed as {tuple(t.placements)}", f"one Shard({axis}), of the vocabulary")
    mesh, at, classes = t.device_mesh, split[0], t.shape[axis]
    part = -(-classes // mesh.size(at))  # as torch.chunk
    return t.to_local(), mesh.get_group(at), (min(mesh.get_local_rank(at) * part, classes), classes)


def of_split_vocabulary(function, op, first, split, axis, parallel, named):
    """The loss of a `split` whose axis, the vocabulary, may be split over ranks, and of everything else as all ranks have
    it, gathered where they do not. The same on all ranks."""
    mesh, t = _mesh_of(op, named), named[split]
    same = [Replicate()] * mesh.ndim
    if not isinstance(named[first], DTensor):
        refuse(op, first, "a plain tensor", f"a DTensor, as {split} (a weight of FSDP2 is whole in its own module's "
                                            "forward alone)")
    run, parts = function, {}
    if isinstance(t, DTensor) and any(isinstance(p, Shard) and (p.dim - axis) % t.dim() == 0 for p in t.placements):
        local, group, shard = _shard_of(op, split, t, axis % t.dim())
        run, parts = parallel, {split: local, "group": group, "shard": shard}
        bias = named.get("bias")
        if bias is not None:
            parts["bias"] = _shard_of(op, "bias", _distributed(bias, mesh), 0)[0]
    whole = {name: _whole(value, mesh, same) if isinstance(value, Tensor) and name not in parts else value
             for name, value in named.items()}
    result = run(**{**whole, **parts})

    def made(y):
        return y if y is None else DTensor.from_local(y, mesh, same, run_check=False)

    if not isinstance(result, tuple):
        return made(result)
    return type(result)(*map(made, result)) if hasattr(result, "_fields") else tuple(map(made, result))
