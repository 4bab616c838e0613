"""AdamW against PyTorch's: results, state, groups, refusals."""
import concurrent.futures
import copy
import io
import pickle

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
    with pytest.raises(RuntimeError):  # in words of PyTorch
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


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def half_trained(**options):
    ps = parameters(torch.bfloat16)
    optimizer = tigon_torch.AdamW([{"params": ps[:4]}, {"params": ps[4:], "seed": 9}], **OPTIONS,
                                  stochastic_rounding=True, seed=5, **options)
    train(optimizer, ps, 3)
    return optimizer, ps


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), saved_and_loaded],
                         ids=["deepcopy", "pickle", "save"])
def test_copies_go_on_alike(copied):
    optimizer, ps = half_trained()
    other = copied(optimizer)
    theirs = parameters_of(other)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, other)]
    before = [p.detach().clone() for p in ps]
    for step in range(3, 6):
        for o, of in ((optimizer, ps), (other, theirs)):
            train(o, of, 1, first=step)
        for schedule in schedules:
            schedule.step()
    assert all(torch.equal(p, q) and p is not q for p, q in zip(ps, theirs))
    assert not torch.equal(ps[-1], before[-1])
    assert repr(other) == repr(optimizer)


def trained_there(optimizer):
    ps = parameters_of(optimizer)
    train(optimizer, ps, 2, first=3)
    return [p.detach().float().tolist() for p in ps]


def test_a_spawned_process_goes_on_alike():
    optimizer, _ = half_trained()
    spawn = torch.multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
        theirs = process.submit(trained_there, copy.deepcopy(optimizer)).result()
    assert theirs == trained_there(optimizer)


def test_options_of_a_group_and_of_states():
    optimizer, ps = half_trained()
    assert [group["seed"] for group in optimizer.param_groups] == [5, 9]
    optimizer.add_param_group({"params": parameters(torch.bfloat16, 2)})  # has those of the optimizer
    assert optimizer.param_groups[2]["stochastic_rounding"] and optimizer.param_groups[2]["seed"] == 5
    state = optimizer.state_dict()
    fresh = tigon_torch.AdamW([{"params": [torch.zeros_like(p) for p in group["params"]]}
                               for group in optimizer.param_groups])
    fresh.load_state_dict(state)  # a state has its options, as lr
    assert [group["seed"] for group in fresh.param_groups] == [5, 9, 5]
    assert all(group["stochastic_rounding"] for group in fresh.param_groups)
    for group in state["param_groups"]:  # a state without them, of torch.optim.AdamW: those of the optimizer stay
        del group["stochastic_rounding"], group["seed"]
    optimizer.load_state_dict(state)
    assert [group["seed"] for group in optimizer.param_groups] == [5, 9, 5]
    train(optimizer, ps, 1, first=3)


@pytest.mark.parametrize("flags", [{"capturable": True}, {"foreach": True}, {"fused": True}])
def test_a_state_of_pytorch_with_flags_that_change_no_result(flags):
    ours, theirs, there = parameters(torch.float32), parameters(torch.float32), parameters(torch.float32)
    writer, reader = torch.optim.AdamW(there, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    train(writer, there, 2)
    state = writer.state_dict()
    mine = tigon_torch.AdamW(ours)
    reader.load_state_dict(copy.deepcopy(state))
    for group in state["param_groups"]:
        group.update(flags)
    mine.load_state_dict(state)
    train(mine, ours, 2, first=2), train(reader, theirs, 2, first=2)
    assert error(ours, theirs) < 1e-5
    other = tigon_torch.AdamW(parameters(torch.float32))
    other.load_state_dict(mine.state_dict())
    assert other.param_groups[0]["lr"] == OPTIONS["lr"]


def test_options_that_are_not_there_are_refused_when_they_come():
    optimizer = tigon_torch.AdamW([torch.nn.Parameter(torch.ones(3))])
    state = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=7.0, amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="tigon: AdamW: amsgrad is set; expected an optimizer without it"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 1e-3  # as it was
    with pytest.raises(ValueError, match="maximize is set"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "maximize": True})
    assert len(optimizer.param_groups) == 1
    tigon_torch.AdamW([torch.nn.Parameter(torch.ones(3))], foreach=True, capturable=True, fused=False)
    for options, sentence in (({"amsgrad": True}, "tigon: AdamW: amsgrad is set; expected an optimizer without it"),
                              ({"maximize": True}, "maximize is set"),
                              ({"differentiable": True}, "differentiable is set"),
                              ({"lr": -1.0}, "Invalid learning rate: -1.0"), ({"eps": -1.0}, "Invalid epsilon value"),
                              ({"betas": (1.0, 0.9)}, "Invalid beta parameter"),
                              ({"weight_decay": -1.0}, "Invalid weight_decay value"),
                              ({"lr": True}, "lr is True; expected a number"),
                              ({"stochastic_rounding": 1}, "stochastic_rounding is 1; expected True or False"),
                              ({"seed": 1.5}, "seed is 1.5; expected an integer of at least 0"),
                              ({"seed": -1}, "seed is -1; expected an integer of at least 0")):
        with pytest.raises(ValueError, match=sentence):
            tigon_torch.AdamW([torch.nn.Parameter(torch.ones(3))], **options)


def test_what_is_refused_in_one_group_leaves_all_as_they_are():
    def groups():
        ps = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        for p in ps:
            p.grad = torch.ones(3)
        return tigon_torch.AdamW([{"params": [p]} for p in ps]), ps

    for name, value in (("eps", -1.0), ("lr", float("nan")), ("betas", (0.9, 1.0)), ("weight_decay", float("inf"))):
        optimizer, ps = groups()
        optimizer.param_groups[1][name] = value
        with pytest.raises((ValueError, RuntimeError), match="tigon: adamw.* is .*; expected a"):
            optimizer.step()
        assert all((p == 1).all() for p in ps)
    optimizer, ps = groups()
    optimizer.step()
    optimizer.state[ps[1]]["exp_avg"] = torch.zeros(4)  # of another model
    before = [p.detach().clone() for p in ps]
    with pytest.raises(ValueError, match=r"exp_avg is \[4\] of torch.float32; expected \[3\]"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(ps, before))


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
