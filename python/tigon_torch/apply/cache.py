"""The keys and values of earlier tokens, which transformers' forwards take and return as `cache`; in older releases as
`past_key_values`."""
from __future__ import annotations

import functools
import inspect


def name() -> str:
    """What this release of transformers calls it."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    return "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


def takes_cache(forward):
    """`forward`, whose parameter is `cache`, as this release calls it."""
    if name() == "cache":
        from transformers.utils.deprecation import deprecate_kwarg

        return deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")(forward)

    @functools.wraps(forward)
    def renamed(self, *args, **kwargs):
        if "past_key_values" in kwargs:
            kwargs["cache"] = kwargs.pop("past_key_values")
        return forward(self, *args, **kwargs)

    # generate() looks for the parameter by its name.
    signature = inspect.signature(forward)
    renamed.__signature__ = signature.replace(parameters=[
        p.replace(name="past_key_values") if p.name == "cache" else p for p in signature.parameters.values()])
    return renamed
