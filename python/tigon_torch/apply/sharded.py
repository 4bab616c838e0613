"""Modules whose weights FSDP2 (fully_shard) keeps in parts and gathers in the module's own forward."""
import contextlib

from torch import nn

try:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
except ImportError:  # PyTorch without torch.distributed
    class FSDPModule:
        pass

    FullyShardedDataParallel = FSDPModule


def is_sharded(module) -> bool:
    """Whether the module is one that fully_shard() was called for."""
    return isinstance(module, FSDPModule)


def class_of(module) -> type:
    """The class of a module, behind the one that fully_shard() makes of it."""
    return type(module).__mro__[2] if is_sharded(module) else type(module)


def has_hooks(module: nn.Module) -> bool:
    """Whether a forward has hooks other than those that gather its weights."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(not (getattr(hook, "__module__", None) or "").startswith("torch.distributed.fsdp.") for hook in hooks)


@contextlib.contextmanager
def _in_place_of_forward(module, function):
    own = vars(module).get("forward")
    module.forward = function
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def run_inside(module, function, *args):
    """function(*args) where the module's weights are whole: inside its call if they are gathered for that. Their
    gradients are then reduced and scattered as those of its own forward."""
    if not is_sharded(module):
        return function(*args)
    with _in_place_of_forward(module, function):
        return module(*args)


def refuse_parts(model) -> None:
    """Of a model whose weights are in parts when it is patched."""
    if any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in model.modules()):
        raise ValueError("tigon_torch.apply: the model is sharded already; patch first, then shard: apply(model) before "
                         "fully_shard(model)")
    refuse_partitioned(*model.parameters())


def refuse_partitioned(*weights) -> None:
    """Of DeepSpeed ZeRO-3, whose weights are there in their own modules' forwards alone: layers of tigon read those of
    others."""
    if any(hasattr(weight, "ds_id") for weight in weights):
        raise ValueError("tigon_torch.apply: the weights are partitioned by DeepSpeed ZeRO-3; expected whole ones, or "
                         "those of FSDP2 (fully_shard)")
