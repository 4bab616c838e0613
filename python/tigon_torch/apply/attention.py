"""The attention "tigon" of transformers' registries: one function for the attention, one for its masks.

The mask says what the attention needs to know, because not every family hands its sliding window to the attention:
  [1, 1, 0, w]             position alone decides: causal, with a sliding window of w keys, or without one where w is 0.
                           No elements.
  [w, 0, l1, ..., keys]    int32: the same within packed sequences, and where each of them ends
  [1, 1, batch + 1, 2]     int32: [w, 0], then of each entry of a padded batch the first key and the one behind the last
  either with w = -1       not causal: every query sees every key of its sequence, or all that are no padding
  none                     every query sees every key, in attention that is not causal: that of a vision tower
  anything else            the boolean mask that "sdpa" would have; the call goes to transformers' own attention.
"""
from __future__ import annotations

import functools
import itertools
import sys

import torch

from .. import ops
from ..devices import autocast_type, has_kernel, runs
from . import versions
from .equal import is_of_transformers
from .patch import say_once
from .rebound import innermost, with_names

NAME = "tigon"
BEFORE = "_tigon_attention_before"  # the attribute of a patched model that has the names of its own attention, by configs
EAGER = "_tigon_attention_was_eager"  # the attribute of an attention whose own was transformers' eager one
EVERY = -1  # in the place of a window: positions decide nothing


def _has_a_number(window: int | None) -> bool:
    """Whether a mask can say this window. One below 1, in which a query sees no key, is left to transformers' mask."""
    return window is None or window >= 1


def _number_of(window: int | None) -> int:
    return 0 if window is None else window


def plain_mask(window: int | None, device) -> torch.Tensor:
    return torch.empty((1, 1, 0, _number_of(window)), dtype=torch.bool, device=device)


def _is_plain(mask) -> bool:
    return mask is not None and mask.dim() == 4 and mask.shape[2] == 0


def _is_packed(mask) -> bool:
    return mask is not None and mask.dim() == 1


def _is_padded(mask) -> bool:
    return mask is not None and mask.dim() == 4 and mask.dtype == torch.int32


def _number_in(mask) -> int | None:
    """What a mask of ours says of the window, or None where it is none of ours."""
    if _is_packed(mask):
        return int(mask[0])
    if _is_padded(mask):
        return int(mask[0, 0, 0, 0])
    return mask.shape[3] if _is_plain(mask) else None


def _visible(queries: int, keys: int, window: int | None, device) -> torch.Tensor:
    """The boolean mask [1, 1, queries, keys] that positions stand for."""
    if window == EVERY:
        return torch.ones((1, 1, queries, keys), dtype=torch.bool, device=device)
    position = torch.arange(queries, device=device)[:, None] + (keys - queries)
    key = torch.arange(keys, device=device)[None]
    mask = key <= position
    return (mask & (key > position - window) if window else mask)[None, None]


def _written_out(mask, queries: int, keys: int, device):
    """The mask as transformers' own attention takes it."""
    if _is_packed(mask):
        of = torch.searchsorted(mask[1:].long(), torch.arange(keys, device=device), right=True)
        return _visible(queries, keys, _number_in(mask), device) & (of[:, None] == of[None])
    if _is_padded(mask):
        key, (begins, ends) = torch.arange(keys, device=device), mask[0, 0, 1:].long().T[..., None, None, None]
        return _visible(queries, keys, _number_in(mask), device) & (begins <= key) & (key < ends)
    if _is_plain(mask):
        window = mask.shape[3]
        if queries in (1, keys) and not 0 < window < keys:
            return None
        return _visible(queries, keys, window, device)
    return mask


def _original(module, query, key, value, mask, dropout, scaling, softcap, sinks, **kwargs):
    """transformers' own attention with an explicit mask: sdpa, or eager where sdpa lacks something and where the model was
    built with it. Sinks are eager's, which takes them from the module."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    queries, keys = query.shape[2], key.shape[2]
    mask = _written_out(mask, queries, keys, query.device)
    if not (softcap is not None or sinks is not None or EAGER in vars(module) or kwargs.get("output_attentions")):
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)
    if mask is None and queries > 1 and _is_causal_call(module, kwargs):
        mask = _visible(queries, keys, None, query.device)
    if mask is not None and mask.dtype == torch.bool:
        low = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, low)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    extra = {} if softcap is None else {"softcap": softcap}
    return eager(module, query, key, value, mask, dropout=dropout, scaling=scaling, **extra, **kwargs)


def _is_causal_call(module, kwargs) -> bool:
    causal = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if causal is None else causal)


def _why_not(module, query, key, value, mask, dropout, softcap, sinks, kwargs) -> str | None:
    """Why a call is not for tigon's attention, or None."""
    if dropout > 0:
        return "attention with dropout is transformers' own"
    causal, number = _is_causal_call(module, kwargs), _number_in(mask)
    if not causal:
        if mask is not None and number != EVERY:
            return "attention that is not causal is transformers' own where it has another mask than packed or padded"
    elif number is None or number == EVERY:
        return "attention with another mask than causal, sliding, packed or padded is transformers' own"
    # Queries that see no key: sdpa makes them 0, and so does tigon; eager gives them the mean of all values.
    eager = sinks is None and (softcap is not None or EAGER in vars(module))
    if eager and _is_padded(mask):
        begins, ends = mask[0, 0, 1:].T
        if bool(((begins > 0) if causal else (begins >= ends)).any()):
            return "eager attention of queries in the padding, which see no key, is transformers' own"
    if kwargs.get("output_attentions"):
        return "attention whose weights are requested is transformers' own"
    if any(kwargs.get(name) is not None for name in ("position_bias", "head_mask")):
        return "attention with a bias or a mask of heads is transformers' own"
    if not runs("attention", query):
        return f"attention on {query.device.type} is transformers' own"
    if not query.dtype == key.dtype == value.dtype and autocast_type(query) is None:  # which gives them its own
        return "attention of mixed types is transformers' own"
    return None


def attention_forward(module, query, key, value, attention_mask, dropout: float = 0.0, scaling: float | None = None,
                      softcap: float | None = None, s_aux: torch.Tensor | None = None, **kwargs):
    """As transformers calls it: query [batch, heads, queries, d] -> ([batch, queries, heads, d], None)."""
    if query.is_cuda and not runs("attention", query):
        return _original(module, query, key, value, attention_mask, dropout, scaling, softcap, s_aux, **kwargs)
    why = _why_not(module, query, key, value, attention_mask, dropout, softcap, s_aux, kwargs)
    if why is not None:
        say_once(f"tigon_torch: {why}")
        return _original(module, query, key, value, attention_mask, dropout, scaling, softcap, s_aux, **kwargs)
    lengths = begins = ends = None
    causal, window = _is_causal_call(module, kwargs), _number_in(attention_mask)
    if _is_packed(attention_mask):
        lengths = attention_mask[1:]
    elif _is_padded(attention_mask):
        begins, ends = attention_mask[0, 0, 1:].T
    out = ops.attention(query, key, value, scale=scaling, causal=causal, window=window if causal and window else None,
                        softcap=softcap, sinks=s_aux, cu_seqlens=lengths,
                        q_offset=key.shape[2] - query.shape[2] if causal else 0, key_begins=begins, key_ends=ends)
    return out.transpose(1, 2), None


def _captured(function, name: str) -> dict:
    """The variables that one of transformers' mask functions has captured, if it is the one of this name."""
    if getattr(function, "__qualname__", "").partition(".")[0] != name or function.__closure__ is None:
        return {}
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))


def _causal():
    from transformers.masking_utils import causal_mask_function

    return causal_mask_function


def _bidirectional():
    from transformers import masking_utils

    return getattr(masking_utils, "bidirectional_mask_function", None)


def _is_causal(function, window: int | None) -> bool:
    """Whether a mask function of transformers is the causal one, with this sliding window if there is one."""
    if window is None:
        return function is _causal()
    parts = _captured(function, "and_masks").get("mask_functions", ())
    if len(parts) != 2 or parts[1] is not _causal():
        return False
    return _captured(parts[0], "sliding_window_overlay").get("sliding_window") == window


def _size_of_chunks(function) -> int | None:
    """That of the chunks of keys, if the mask is causal within chunks of one length and no more."""
    parts = _captured(function, "and_masks").get("mask_functions", ())
    if len(parts) != 2 or parts[1] is not _causal():
        return None
    return _captured(parts[0], "chunked_overlay").get("chunk_size")


def _packed(function, window: int | None) -> tuple[torch.Tensor | None, int | None]:
    """The number of the packed sequence of each key [batch, keys], or of its chunk of one, if the mask is causal within
    them and no more, and the window."""
    parts = _captured(function, "and_masks").get("mask_functions", ())
    if len(parts) != 2:
        return None, None
    number = _captured(parts[1], "packed_sequence_mask_function").get("packed_sequence_mask")
    # Positions within a sequence are of no consequence to what is causal; some versions have them so, some do not.
    remapped = _captured(parts[0], "remap_positions_for_packed_sequence")
    within = remapped.get("mask_function", parts[0])
    if number is None or _is_causal(within, window):
        return number, window
    size = _size_of_chunks(within)
    if size is None:
        return None, None
    place = remapped.get("position_ids", torch.arange(number.shape[-1], device=number.device))
    chunk = place.div(size, rounding_mode="floor")
    return number * (chunk.max() + 1) + chunk, None


def _lengths(window: int | None, ends) -> torch.Tensor:
    return torch.cat([ends.new_tensor([_number_of(window), 0]), ends]).to(torch.int32)


def _padded(padding: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """The mask of a padded batch; padding [batch, keys] is False where a key is padding. None where that is between two
    others."""
    keys, seen = padding.shape[1], padding.to(torch.int32)
    count = seen.sum(1)
    begins = torch.where(count > 0, seen.argmax(1), 0)
    ends = torch.where(count > 0, keys - seen.flip(1).argmax(1), 0)
    if not bool((ends - begins == count).all()):
        return None
    window_and_none = begins.new_tensor([[_number_of(window), 0]])
    return torch.cat([window_and_none, torch.stack([begins, ends], 1)]).to(torch.int32)[None, None]


def attention_mask(batch_size, q_length=None, kv_length=None, q_offset=0, kv_offset=0, mask_function=None,
                   attention_mask=None, local_size=None, allow_is_causal_skip=True, allow_is_bidirectional_skip=False,
                   **kwargs):
    """As transformers calls it; what it returns is said at the top of this file."""
    from transformers.masking_utils import prepare_padding_mask, sdpa_mask

    queries, q_length, q_offset, device = versions.queries_of(q_length, q_offset, kv_length, kv_offset, kwargs)
    compiling = torch.compiler.is_compiling()
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None and padding.shape[-1] > kv_length:
        padding = padding[:, kv_offset : kv_offset + kv_length]
    padded = padding is not None and (compiling or not bool(padding.all()))
    aligned = isinstance(q_offset, int) and kv_offset + kv_length == q_offset + q_length
    aligned = aligned and _has_a_number(local_size)
    if compiling and padding is None and aligned and allow_is_causal_skip:
        # What the mask is made of cannot be looked at here. These are the two that transformers lets sdpa leave out.
        if local_size in (None, getattr(kwargs.get("config"), "sliding_window", None)):
            return plain_mask(local_size, device)
    if aligned and not compiling:
        chunk = _size_of_chunks(mask_function) if kv_offset == 0 else None
        causal = _is_causal(mask_function, local_size)
        by_position = causal or (chunk is not None and kv_length <= chunk)
        window = local_size if causal else None
        if by_position and not padded:
            return plain_mask(window, device)
        if padded and (by_position or mask_function is _bidirectional() and kv_offset == 0 and local_size is None):
            number = window if by_position else EVERY
            mask = _padded(padding, number) if has_kernel("attention", torch.device(device).type) else None
            if mask is not None:
                return mask
        elif not padded and q_length == kv_length:
            if chunk is not None:
                return _lengths(None, torch.tensor([*range(chunk, kv_length, chunk), kv_length], device=device))
            packed, window = _packed(mask_function, local_size)
            if packed is not None and bool((packed == packed[:1]).all()):
                starts = torch.nonzero(packed[0].diff(prepend=packed[0, :1] - 1)).flatten()
                return _lengths(window, torch.cat([starts[1:], starts.new_tensor([kv_length])]))
    allow_is_bidirectional_skip = allow_is_bidirectional_skip and mask_function is _bidirectional()
    return sdpa_mask(batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=mask_function,
                     attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=False,
                     allow_is_bidirectional_skip=allow_is_bidirectional_skip, **queries, **kwargs)


def plain_positions(masks: str | None, cls: type):
    """The forward of a model without a head, for torch.compile and CUDA. Without a cache transformers looks for packed
    sequences, for which it waits for a GPU; compiled, and in a CUDA graph, it makes a mask for them in any case. Where
    the caller gave neither mask nor positions, there are none. `masks`: how the family keeps them (families.py): None,
    one, "config", one with the config's window if it has one, or "layers", one for each type of layers."""

    def types_of_layers(config):
        return getattr(config, "layer_types", None)  # which older versions of some types do not have

    def window_of(config):
        """That of the layers that have one; a config may have a window, or 0, for layers that it does not have."""
        used = masks == "config" or (masks == "layers" and "sliding_attention" in (types_of_layers(config) or ()))
        return getattr(config, "sliding_window", None) if used else None

    def is_plain(model, args, kwargs):
        names = ("attention_mask", "position_ids", "cache", "past_key_values")
        given = any(kwargs.get(name) is not None for name in names)
        config, use_cache = model.config, kwargs.get("use_cache")
        use_cache = getattr(config, "use_cache", False) if use_cache is None else use_cache
        if given or len(args) > 1 or use_cache:
            return False
        if not torch.compiler.is_compiling() and model.device.type != "cuda":
            return False
        if config._attn_implementation != NAME or not getattr(config, "is_causal", True):
            return False
        if not _has_a_number(window_of(config)) or (masks == "layers" and types_of_layers(config) is None):
            return False
        return not getattr(config, "use_bidirectional_attention", False)

    @functools.wraps(cls.forward)
    def forward(self, *args, **kwargs):
        if is_plain(self, args, kwargs):
            device, window = self.device, window_of(self.config)
            if masks == "layers":
                mask = {"full_attention": plain_mask(None, device), "sliding_attention": plain_mask(window, device)}
            else:
                mask = plain_mask(window, device)
            kwargs = {**kwargs, "attention_mask": mask}
        return cls.forward(self, *args, **kwargs)

    return forward


_OF_IMAGES = "generate_block_attention_mask"  # the function of transformers that makes Pixtral's mask


@functools.cache
def _makes_blocks(function) -> bool:
    """Whether it makes a mask in which each of several images, one behind the other, sees itself alone."""
    low = torch.finfo(torch.float32).min
    expected = torch.tensor([[0, 0, low], [0, 0, low], [low, low, 0]])
    try:
        return torch.equal(function([2, 1], torch.zeros(1, 3, 4)), expected[None, None])
    except (AttributeError, RuntimeError, TypeError):
        return False


def packs_images(module) -> bool:
    """Whether its class's forward makes such a mask."""
    if not is_of_transformers(module):
        return False
    forward = innermost(type(module).forward)
    return _OF_IMAGES in forward.__code__.co_names and _makes_blocks(forward.__globals__.get(_OF_IMAGES))


def _ends_of_images(lengths, tensor) -> torch.Tensor:
    return _lengths(EVERY, torch.tensor([*itertools.accumulate(lengths)], device=tensor.device))


def packed_images(cls: type):
    """The forward of a vision tower that packs its images, with the places where they end instead of a mask of all pairs.
    Compiled it is transformers' own, because a graph would wait for those places."""
    ours = with_names(cls.forward, {_OF_IMAGES: _ends_of_images})

    @functools.wraps(cls.forward)
    def forward(self, *args, **kwargs):
        own = torch.compiler.is_compiling() or self.config._attn_implementation != NAME
        return (cls.forward if own else ours)(self, *args, **kwargs)

    return forward


def register() -> None:
    """Makes attn_implementation="tigon" known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def is_attention(module) -> bool:
    """Whether its class's forward takes its attention from transformers' registry."""
    return is_of_transformers(module) and "ALL_ATTENTION_FUNCTIONS" in innermost(type(module).forward).__code__.co_names


def is_of_tower(module) -> bool:
    """Whether that attention is of a vision tower, or the like, in which all queries see all keys."""
    return is_attention(module) and getattr(module, "is_causal", True) is False and hasattr(module, "config")


def restore(model) -> None:
    """Gives the configs of a patched model the names of their own attention again."""
    before = vars(model)[BEFORE]
    for module in model.modules():
        config = getattr(module, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else None
        for of in config, text:
            if getattr(of, "_attn_implementation", None) == NAME:
                of._attn_implementation = before[type(of)]
