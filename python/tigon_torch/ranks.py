"""The communicator of C++ operators over torch.distributed: all_gather and all_to_all of bytes, of which they make the rest.

Bytes are the host's. A group of NCCL alone, which takes none of the host, has them by way of this rank's GPU. Operators on
CUDA gather bytes of the GPU, in the order of its current stream.
"""
import ctypes
import logging

import torch
import torch.distributed as dist

from . import devices

_log = logging.getLogger("tigon_torch")
_groups: list = []  # by their numbers in the calls of operators


def _memory(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)


class _Bytes:
    """Memory of a GPU, as torch.as_tensor takes it."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _memory_of_gpu(address: int, size: int) -> torch.Tensor:
    return torch.as_tensor(_Bytes(address, size), device="cuda")


def _of_the_host(group) -> bool:
    """Whether a group exchanges what the host has."""
    return any(device.type == "cpu" for device in group._device_types)


def _exchange(name: str, run, every_rank_gets_all: bool, memory=_memory):
    """A function of C that run(all, mine, group) is called by, of bytes in such memory."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    def exchange(number, mine, size, everyone):
        try:
            if size == 0:
                return 0
            group = _groups[number]
            sent, received = memory(mine, size), memory(everyone, size * (group.size() if every_rank_gets_all else 1))
            if sent.is_cuda or _of_the_host(group):
                run(received, sent, group)
            else:
                on_gpu = torch.empty(received.shape, dtype=torch.uint8, device="cuda")
                run(on_gpu, sent.cuda(), group)
                received.copy_(on_gpu)
            return 0
        except Exception:  # which cannot pass through C++
            _log.exception("%s of torch.distributed", name)
            return 1

    return exchange


# Kept for as long as the library may call them.
_all_gather = _exchange("all_gather", lambda everyone, mine, group: dist.all_gather(
    list(everyone.chunk(group.size())), mine, group), True)
_all_to_all = _exchange("all_to_all", lambda received, sent, group: dist.all_to_all_single(received, sent, group=group),
                        False)
_all_gather_on_gpu = _exchange("all_gather", dist.all_gather_into_tensor, True, _memory_of_gpu)


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


torch.ops.tigon.set_communicator(address_of(_all_gather), address_of(_all_to_all))
if devices.why_not() is None:
    torch.ops.tigon.set_communicator_on_cuda(address_of(_all_gather_on_gpu))


def of_group(group) -> tuple[int, int, int]:
    """The group's number, this rank in it and its size; None is this rank alone."""
    if group is None:
        return -1, 0, 1
    number = next((i for i, known in enumerate(_groups) if known is group), None)
    if number is None:
        number = len(_groups)
        _groups.append(group)
    return number, group.rank(), group.size()
