"""What differs between the versions of transformers that the patches are for, from OLDEST on. The newest that was tried is
in docs/torch.md."""
from __future__ import annotations

import importlib.metadata
import re

import torch

OLDEST = (4, 57)


def installed() -> str:
    """The version of transformers. Raises ImportError for one that is older than what the patches were tried with."""
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError("tigon_torch: transformers is not installed; `pip install transformers`, or tigon_torch with its "
                          "extra: tigon_torch[transformers]") from error
    if tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", version).groups()) < OLDEST:
        raise ImportError(f"tigon_torch: transformers {version} is older than {OLDEST[0]}.{OLDEST[1]}, with which the patches "
                          "were not tried; upgrade it")
    return version


def queries_of(q_length, q_offset, kv_length: int, kv_offset: int, kwargs: dict):
    """Of a call for a mask: the arguments that say which tokens ask, as sdpa_mask takes them; how many they are, the place
    of the first one, and the device. The place is None where it is not known without waiting for a GPU or a compiler.

    Up to some 5.x they come as a tensor of places, cache_position, which is taken out of the keywords.
    """
    place = kwargs.pop("cache_position", None)
    if place is None:
        return ({"q_length": q_length, "q_offset": q_offset}, q_length, q_offset, kwargs.get("device", "cpu"))
    count = place.shape[0]
    if count == kv_length and kv_offset == 0:
        first = 0
    else:
        first = None if torch.compiler.is_compiling() or not place.is_cpu else int(place[0])
    return {"cache_position": place}, count, first, place.device
