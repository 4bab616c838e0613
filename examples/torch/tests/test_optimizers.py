"""AdamW against PyTorch's: results, state, groups, refusals."""
import copy

import pytest
import torch

import tigon_torch

SIZES = [(), (0,), (1,), (33, 17), (70000,)]  # the last one is more than four tasks


def parameters(dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, generator=g, dtype=torch.float64).to(dtype)) for size in SIZES]


def set_gradients(all_of_them, step):
    g = torch.Generator().manual_seed(100 + step)
    for p in all_of_them:
        p.grad = (torch.randn(p.shape, generator=g, dtype=torch.float64) * 10 ** (step % 3 - 1)).to(p.dtype)


def train(optimizer, all_of_them, steps, first=0):
    for step in range(first, first + steps):
        set_gradients(all_of_them, step)
        optimizer.step()


def error(actual, expected):
    return max([(a.double() - e).abs().max().item() for a, e in zip(actual, expected) if e.numel()])


OPTIONS = dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)


@pytest.mark.parametrize("threads", [1, 3])
def test_f64_is_the_formula(threads):
    torch.set_num_threads(threads)
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    train(tigon_torch.AdamW(ours, **OPTIONS), ours, 6)
    train(torch.optim.AdamW(theirs, **OPTIONS), theirs, 6)
    assert error(ours, theirs) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_at_least_as_exact_as_pytorchs(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    exact = [torch.nn.Parameter(p.detach().double()) for p in ours]
    mine, other, f64 = (tigon_torch.AdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS),
                        torch.optim.AdamW(exact, **OPTIONS))
    for step in range(6):
        set_gradients(ours, step)
        for p, q, r in zip(ours, theirs, exact):
            q.grad, r.grad = p.grad.clone(), p.grad.double()
        for optimizer in (mine, other, f64):
            optimizer.step()
    rms = [sum((p.double() - r).square().sum().item() for p, r in zip(of, exact)) for of in (ours, theirs)]
    assert 0 < rms[0] <= rms[1]


def test_state_goes_to_pytorchs_and_back():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    mine, other = tigon_torch.AdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    train(mine, ours, 3), train(other, theirs, 3)
    swapped = copy.deepcopy(mine.state_dict()), copy.deepcopy(other.state_dict())
    assert swapped[0]["state"][3].keys() == swapped[1]["state"][3].keys()
    other.load_state_dict(swapped[0]), mine.load_state_dict(swapped[1])
    train(mine, ours, 3, first=3), train(other, theirs, 3, first=3)
    assert error(ours, theirs) < 1e-5
    assert mine.state_dict()["state"][3]["step"] == 6


def test_groups_schedules_missing_gradients_and_types_side_by_side():
    def run(kind):
        ps = parameters(torch.float32) + parameters(torch.float64, 1)
        optimizer = kind([{"params": ps[:4]}, {"params": ps[4:], "weight_decay": 0.0, "lr": 0.1}], **OPTIONS)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(5):
            set_gradients(ps, step)
            if step < 2:
                ps[3].grad = ps[7].grad = None  # begins later: its own number of steps
            optimizer.step()
            schedule.step()
        return ps

    assert error(run(tigon_torch.AdamW), run(torch.optim.AdamW)) < 2e-5


def test_memory_that_is_not_contiguous():
    def run(kind):
        p = torch.nn.Parameter(torch.arange(24.0).reshape(4, 6).t())
        q = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
        optimizer = kind([p, q], **OPTIONS)
        for step in range(3):
            p.grad = torch.full((4, 6), 0.5 + step).t()
            q.grad = torch.linspace(-1, 1, 12).reshape(4, 3).t()
            optimizer.step()
        return [p, q]

    ours = run(tigon_torch.AdamW)
    assert not ours[0].is_contiguous()
    assert error(ours, run(torch.optim.AdamW)) < 1e-5


def test_closure_and_backward_of_an_old_graph():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = tigon_torch.AdamW([p])

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    old = p.square().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


def test_stochastic_rounding_moves_weights_by_the_mean_of_steps():
    def run(seed, stochastic=True):
        p = torch.nn.Parameter(torch.full((40000,), 1.0, dtype=torch.bfloat16))
        optimizer = tigon_torch.AdamW([p], lr=1e-4, weight_decay=0.0, stochastic_rounding=stochastic, seed=seed)
        for _ in range(20):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return p.detach()

    assert (run(0, stochastic=False) == 1).all()  # a step is a fortieth of what would be rounded down
    moved = run(0)
    assert torch.equal(moved, run(0)) and not torch.equal(moved, run(1))
    assert abs(1 - moved.double().mean().item() - 20e-4) < 1e-4


def test_refusals():
    def step(p, **options):
        p = torch.nn.Parameter(p)
        optimizer = tigon_torch.AdamW([p])
        optimizer.param_groups[0].update(options)
        before = p.detach().clone()
        p.grad = torch.ones_like(p)
        try:
            optimizer.step()
        finally:
            assert torch.equal(p, before)

    with pytest.raises(TypeError, match="a parameter is of torch.float16; expected float32, bfloat16 or float64"):
        step(torch.ones(3, dtype=torch.float16))
    for option in ("amsgrad", "maximize"):
        with pytest.raises(ValueError, match=f"{option} is set"):
            step(torch.ones(3), **{option: True, "fused": None})
    with pytest.raises(RuntimeError, match="eps is nan; expected a finite number"):
        step(torch.ones(3), eps=float("nan"))
    shared = torch.ones(5)
    optimizer = tigon_torch.AdamW([torch.nn.Parameter(shared[:3]), torch.nn.Parameter(shared[2:])])
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="overlaps"):
        optimizer.step()
    with pytest.raises((RuntimeError, ValueError), match="2 gradients|1 gradients"):
        one = [torch.ones(2)]
        torch.ops.tigon.adamw(one, one * 2, one, one, 0.1, 0.9, 0.99, 1e-8, 0.0, 1, False, 0)
