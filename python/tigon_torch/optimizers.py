"""Optimizers over torch.ops.tigon."""
import torch

from .arguments import flag, number, refuse, whole
from .devices import runs
from .registration import fake

fake("adamw", lambda *_: None)

# What torch.optim.AdamW does not have: with these in its groups, it does what it does without.
_OPTIONS = {"stochastic_rounding": False, "seed": 0}
_NUMBERS = ("lr", "eps", "weight_decay")


def _value(name, value) -> float:
    return value.item() if isinstance(value, torch.Tensor) else float(number("AdamW", name, value))


def _expect(group: dict) -> None:
    """Refuses the options of a group that are not there. foreach, fused and capturable change no result."""
    for option in ("amsgrad", "maximize", "differentiable"):
        if group.get(option):
            refuse("AdamW", option, "set", "an optimizer without it")
    for name in _NUMBERS:
        _value(name, group.get(name, 0.0))
    flag("AdamW", "stochastic_rounding", group.get("stochastic_rounding", False))
    whole("AdamW", "seed", group.get("seed", 0), 0)


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW in one pass over memory: weights, gradients and moments are read once, and written once.

    The same arguments, the same state (its state_dict() goes into torch.optim.AdamW and back), the same formula; sums and
    quotients are in f32 (f64 for f64), and each result is rounded once. Parameters in f32, bf16 and f64, of a group mixed
    as well. Not there, and refused, in a state that is loaded too: amsgrad, maximize, differentiable; f16, complex and
    sparse tensors. foreach, fused and capturable say how PyTorch computes a step, and change nothing here.

    stochastic_rounding   parameters in bf16, and their moments, are rounded to either neighbour with the exact value as
                          the mean, by random numbers of `seed`. Rounded to nearest, a weight stays where it is when
                          a step is smaller than 1/512 of it, as most are; so does the second moment.

    Both are options of a group, as lr is. A state without them leaves those of the optimizer as they are.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *,
                 maximize=False, foreach=None, capturable=False, differentiable=False, fused=None,
                 stochastic_rounding=False, seed=0):
        own = {"stochastic_rounding": stochastic_rounding, "seed": seed}
        _expect({"lr": lr, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize,
                 "differentiable": differentiable, **own})
        super().__init__(params, lr, betas, eps, weight_decay)
        self.defaults.update(own)
        self._complete()

    def _complete(self) -> None:
        for name, value in _OPTIONS.items():
            self.defaults.setdefault(name, value)
            for group in self.param_groups:
                group.setdefault(name, self.defaults[name])

    def __setstate__(self, state):
        """Of copies, files and load_state_dict."""
        for group in state.get("param_groups", ()):
            _expect(group)
        before = getattr(self, "param_groups", [])
        super().__setstate__(state)
        for group, old in zip(self.param_groups, before):
            for name in _OPTIONS:
                group.setdefault(name, old[name])
        self._complete()

    def add_param_group(self, param_group):
        if isinstance(param_group, dict):
            _expect(param_group)
        super().add_param_group(param_group)

    def _calls(self) -> list:
        """Options and tensors of each call, all of which are checked before the first one."""
        calls = []
        for group in self.param_groups:
            _expect(group)
            options = [_value("betas", beta) for beta in group["betas"]]
            lr, eps, weight_decay = (_value(name, group[name]) for name in _NUMBERS)
            parts = [[], [], [], [], []]
            self._init_group(group, parts[0], parts[1], parts[2], parts[3], [], parts[4])
            alike: dict = {}
            for p, g, m, v, age in zip(*parts):
                if not runs("adamw", p):
                    expected = "the CPU (tigon_torch has no kernel for CUDA)" if p.is_cuda else "the CPU or CUDA"
                    refuse("AdamW", "a parameter", f"on {p.device}", expected)
                if p.dtype not in (torch.float32, torch.bfloat16, torch.float64):
                    raise TypeError(f"tigon: AdamW: a parameter is of {p.dtype}; expected float32, bfloat16 or float64")
                for name, t in (("a parameter", p), ("a gradient", g), ("exp_avg", m), ("exp_avg_sq", v)):
                    if t.device != p.device:
                        refuse("AdamW", name, f"on {t.device}", f"{p.device}, as its parameter")
                    if t.shape != p.shape or t.dtype != p.dtype:
                        refuse("AdamW", name, f"{list(t.shape)} of {t.dtype}",
                               f"{list(p.shape)} of {p.dtype}, as its parameter")
                alike.setdefault((p.device, p.dtype, int(age.item()) + 1), []).append((p, g, m, v, age))
            for (*_, number_of_step), of in alike.items():
                seed = (group["seed"] + len(calls)) % 2**63
                calls.append(((lr, *options, eps, weight_decay, number_of_step, group["stochastic_rounding"], seed),
                              list(zip(*of))))
        if len(calls) > 1:  # a single call checks its options before it writes
            for options, (weights, *_) in calls:
                torch.ops.tigon.adamw(*[[weights[0].new_empty(0)] for _ in range(4)], *options)
        return calls

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for options, (weights, gradients, first, second, ages) in self._calls():
            # What is not contiguous is updated in a copy.
            dense = [[t.contiguous() for t in of] for of in (weights, gradients, first, second)]
            torch.ops.tigon.adamw(*dense, *options)
            for of, copies in zip((weights, first, second), (dense[0], dense[2], dense[3])):
                for t, copy in zip(of, copies):
                    if copy is not t:
                        t.copy_(copy)
                torch.autograd.graph.increment_version(of)  # backward of an older graph has to see that they changed
            for age in ages:
                age += 1
        return loss
