"""What the families of operators share."""
import torch

from ..arguments import refuse
from ..declared import type_of_sums as _sums
from ..devices import autocast_type

_ops = torch.ops.tigon
_CASTING = {"llama": 0, "gemma": 1, "none": 2}
_REDUCTION = {"mean": 0, "sum": 1, "none": 2}
_HAS_F16 = _ops.has_f16()
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _half(x):
    """Whether an operator that is not compiled for f16 has to be called in f32."""
    return x.dtype == torch.float16


def _unknown_half(x):
    """The same of an operator that is, on a GPU or a CPU with f16."""
    return x.dtype == torch.float16 and not _HAS_F16 and not x.is_cuda


def _wide(t):
    return None if t is None else t.float() if t.dtype == torch.float16 else t


def _rows(x):
    return x.numel() // x.shape[-1] if x.shape[-1] != 0 else 0


def _made(x):
    return x.new_empty(x.shape)


def _gradient(parameter, wanted, like):
    return like.new_empty((parameter.numel() if wanted else 0,), dtype=parameter.dtype) if parameter is not None \
        else like.new_empty((0,), dtype=_sums(like))


def _or_none(gradient, wanted):
    return gradient if wanted else None


def _without_columns(x):
    return x.shape[-1:] == (0,)


def _of_no_columns(x, *parameters):
    """A norm of rows without columns, which depends on what a norm depends on."""
    y = x.clone()
    for parameter in parameters:
        y = y if parameter is None else y * parameter.to(x.dtype)
    return y


def _promoted(a, b):
    """Both in one type, as torch's own functions of two tensors promote them."""
    if a.dtype == b.dtype or not (a.dtype in _TYPES and b.dtype in _TYPES):
        return a, b
    to = torch.promote_types(a.dtype, b.dtype)
    return a.to(to), b.to(to)


def _autocast(*tensors):
    """The tensors in autocast's type where it is on for the first one's device, as torch's own matrix products are
    called."""
    to = autocast_type(tensors[0])
    if to is None:
        return tensors
    return tuple(t if t is None or t.dtype == torch.float64 or not t.is_floating_point() else t.to(to) for t in tensors)


def _joint(a, b):
    """Both in the wider of their types where autocast is on, as torch's own functions of two tensors take them there;
    elsewhere operators refuse mixed types."""
    return (a, b) if a.dtype == b.dtype or autocast_type(a) is None else _promoted(a, b)


def _in_type_of(x, op, **weights):
    """The weights in the type of x; integers and numbers of 8 bits, which have a scale beside them, are none."""
    for name, w in weights.items():
        if w is not None and w.dtype not in _TYPES:
            refuse(op, name, f"of {str(w.dtype)[6:]}", "f32, bf16, f16 or f64")
    return tuple(None if w is None else w.to(x.dtype) for w in weights.values())


def _empty_or(like, shape, wanted):
    return like.new_empty(shape if wanted else (0,))


def _wanted(*tensors):
    """Which gradients a fused loss has to make in forward."""
    on = torch.is_grad_enabled()
    return [on and t is not None and t.requires_grad for t in tensors]


def _layer_gradients(x, weight, bias, need_dx, need_dw, need_db):
    need_db = need_db and bias is not None
    return (_empty_or(x, x.shape, need_dx), _empty_or(x, weight.shape, need_dw),
            x.new_empty((weight.shape[0] if need_db else 0,), dtype=x.dtype if bias is None else bias.dtype))
