"""Optimizers over torch.ops.tigon."""
import torch
from torch.library import register_fake


@register_fake("tigon::adamw")
def _(parameters, gradients, first_moments, second_moments, learning_rate, beta1, beta2, eps, weight_decay, step,
      stochastic_rounding, seed):
    return None


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW in one pass over memory: weights, gradients and moments are read once, and written once.

    The same arguments, the same state (its state_dict() goes into torch.optim.AdamW and back), the same formula; sums and
    quotients are in f32 (f64 for f64), and each result is rounded once. Parameters in f32, bf16 and f64, of a group mixed
    as well. Not there, and refused: amsgrad, maximize, capturable, differentiable; f16, complex and sparse tensors.

    stochastic_rounding   parameters in bf16, and their moments, are rounded to either neighbour with the exact value as
                          the mean, by random numbers of `seed`. Rounded to nearest, a weight stays where it is when
                          a step is smaller than 1/512 of it, as most are; so does the second moment.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, stochastic_rounding=False,
                 seed=0):
        super().__init__(params, lr, betas, eps, weight_decay)
        self.stochastic_rounding, self.seed = stochastic_rounding, seed

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        calls = []  # everything is checked before the first one
        for group in self.param_groups:
            for option in ("amsgrad", "maximize", "capturable", "differentiable"):
                if group[option]:
                    raise ValueError(f"tigon: AdamW: {option} is set; expected an optimizer without it")
            parts = [[], [], [], [], []]
            self._init_group(group, parts[0], parts[1], parts[2], parts[3], [], parts[4])
            alike: dict = {}
            for p, g, m, v, age in zip(*parts):
                if p.dtype not in (torch.float32, torch.bfloat16, torch.float64):
                    raise TypeError(f"tigon: AdamW: a parameter is of {p.dtype}; expected float32, bfloat16 or float64")
                if p.device.type != "cpu":
                    raise ValueError(f"tigon: AdamW: a parameter is on {p.device}; expected the CPU")
                alike.setdefault((p.dtype, int(age.item()) + 1), []).append((p, g, m, v, age))
            calls += [(group, number, list(zip(*of))) for (_, number), of in alike.items()]
        for i, (group, number, (weights, gradients, first, second, ages)) in enumerate(calls):
            # What is not contiguous is updated in a copy.
            dense = [[t.contiguous() for t in of] for of in (weights, gradients, first, second)]
            torch.ops.tigon.adamw(*dense, float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"],
                                  number, self.stochastic_rounding, self.seed + i)
            for of, copies in zip((weights, first, second), (dense[0], dense[2], dense[3])):
                for t, copy in zip(of, copies):
                    if copy is not t:
                        t.copy_(copy)
                torch.autograd.graph.increment_version(of)  # backward of an older graph has to see that they changed
            for age in ages:
                age += 1
        return loss
