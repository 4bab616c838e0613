"""A case of the table of operators."""
import torch


class Case:
    """An operator, the same by PyTorch, and the shapes of its inputs.

    factor: how many roundings of the result's type, of |reference| + its root mean square, a result may be off, and its
    gradients. What is computed between is in f32 whatever the type: there a rounding counts as four, in which attention
    is within the 2e-6, and 4e-6 for gradients, that its contract states.
    """

    def __init__(self, ours, formula, *shapes, factor=4, gradients=8):
        self.ours, self.formula, self.shapes = ours, formula, shapes
        self.factor, self.gradients = factor, gradients

    def inputs(self, dtype, seed=0):
        generator = torch.Generator().manual_seed(seed)
        made = []
        for shape in self.shapes:
            t = torch.randn(*shape, generator=generator, dtype=torch.float64)
            made.append(t.to(dtype).requires_grad_())
        return made
