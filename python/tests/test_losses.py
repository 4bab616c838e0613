"""tigon_torch.losses against formulas in f64."""
import pytest
import torch
import torch.nn.functional as F
from conftest import VOCAB, error

from tigon_torch import losses, ops

PAIRS, LEN, HIDDEN = 3, 7, 24


def head(dtype=torch.float32, rows=2 * PAIRS, seed=0):
    """Hidden states, the layer above them, and targets of which some do not count."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, LEN, HIDDEN, generator=g).to(dtype).requires_grad_()
    weight = (torch.randn(VOCAB, HIDDEN, generator=g) * 0.3).to(dtype).requires_grad_()
    bias = (torch.randn(VOCAB, generator=g) * 0.1).to(dtype).requires_grad_()
    target = torch.randint(0, VOCAB, (rows, LEN), generator=g)
    target[0, :3] = -100
    target[-1, -2:] = -100
    return x, weight, bias, target


def token_logps(x, weight, bias, target):
    """Log-probabilities of the targets, 0 where they do not count."""
    logp = F.linear(x, weight, bias).log_softmax(-1)
    return logp.gather(-1, target.clamp_min(0)[..., None])[..., 0] * (target != -100)


def check(actual, expected, inputs, exact, tolerance=1e-5):
    """A loss and its gradients, against the same in f64."""
    assert abs(actual.double() - expected).item() <= tolerance * abs(expected).item()
    for a, e in zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, exact)):
        assert error(a, e) <= tolerance


def in_f64(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"softcap": 2.0}])
def test_cross_entropy(options, fused):
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    softcap = options.get("softcap")
    z = F.linear(*exact)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    rest = {name: value for name, value in options.items() if name != "softcap"}
    expected = F.cross_entropy(z.flatten(0, 1), target.flatten(), **rest)
    if fused:
        loss = losses.FusedLinearCrossEntropyLoss(**options)(x, weight, target, bias)
    else:
        loss = losses.CrossEntropyLoss(**options)(F.linear(x, weight, bias), target)
    check(loss, expected, (x, weight, bias), exact)


@pytest.mark.parametrize("make, says", [
    (lambda: losses.CrossEntropyLoss(torch.ones(4)), r"CrossEntropyLoss: ignore_index is a tensor; expected .*weight="),
    (lambda: losses.FusedLinearCrossEntropyLoss(torch.ones(4)), "FusedLinearCrossEntropyLoss: ignore_index is a tensor"),
    (lambda: losses.FusedLinearCrossEntropyLoss(token_scaling=1), "token_scaling is 1; expected True or False"),
    (lambda: losses.JSD("half"), "JSD: beta is 'half'; expected a number"),
    (lambda: losses.FusedLinearDPOLoss(loss=None), "FusedLinearDPOLoss: loss is of NoneType; expected a name"),
    (lambda: losses.FusedLinearGRPOLoss(temperature=True), "FusedLinearGRPOLoss: temperature is True; expected a number")])
def test_options_are_looked_at_when_a_loss_is_made(make, says):
    with pytest.raises(ValueError, match=f"tigon: .*{says}"):
        make()
    assert losses.CrossEntropyLoss(softcap=None, weight=torch.ones(4)).weight.sum() == 4


def test_z_loss():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    z = F.linear(*exact).flatten(0, 1)[target.flatten() != -100]
    kept = target.flatten()[target.flatten() != -100]
    expected = F.cross_entropy(z, kept) + 0.01 * z.logsumexp(-1).pow(2).mean()
    check(losses.FusedLinearCrossEntropyLoss(z_loss=0.01)(x, weight, target, bias), expected, (x, weight, bias), exact)


def distributions():
    g = torch.Generator().manual_seed(2)
    student, teacher = (torch.randn(9, 40, generator=g).log_softmax(-1) for _ in range(2))
    return student.requires_grad_(), teacher


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jsd(beta):
    student, teacher = distributions()
    (q,), p = in_f64(student), teacher.double()
    if beta in (0, 1):
        expected = F.kl_div(*((q, p) if beta == 0 else (p, q)), log_target=True, reduction="batchmean")
    else:
        m = (beta * p.exp() + (1 - beta) * q.exp()).log()
        terms = [w * F.kl_div(m, t, log_target=True, reduction="batchmean") for w, t in ((beta, p), (1 - beta, q))]
        expected = sum(terms)
    check(losses.JSD(beta)(student, teacher), expected, (student,), (q,))


@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(log_target):
    student, teacher = distributions()
    (q,) = in_f64(student)
    teacher = teacher if log_target else teacher.exp()
    expected = F.kl_div(q, teacher.double(), log_target=log_target, reduction="batchmean")
    check(losses.KLDiv(log_target=log_target)(student, teacher), expected, (student,), (q,))


@pytest.mark.parametrize("types", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16),
                                   (torch.float32, torch.float64)])
def test_divergences_promote(types):
    """Student and teacher of two types are computed in the wider one, as by torch.nn.functional.kl_div."""
    student, teacher = (t.detach().to(kind) for t, kind in zip(distributions(), types))
    wide = torch.promote_types(*types)
    for function, of in ((ops.jsd, lambda t: t), (ops.kl_div, lambda t: t.exp()), (ops.tvd, lambda t: t.exp())):
        q, p = (of(student) if function is ops.tvd else student).requires_grad_(), of(teacher)
        loss = function(q, p)
        gradient, = torch.autograd.grad(loss, q)
        exact = q.detach().to(wide).requires_grad_()
        expected = function(exact, p.to(wide))
        assert torch.equal(loss, expected) and gradient.dtype == q.dtype
        assert torch.equal(gradient, torch.autograd.grad(expected, exact)[0].to(q.dtype))
        q.requires_grad_(False)

@pytest.mark.parametrize("divergence", ["tvd", "jsd"])
def test_cross_entropy_and_a_divergence_are_those_of_two_functions(divergence):
    """The parts are without their weights; the teacher gets no gradient."""
    g = torch.Generator().manual_seed(3)
    z = torch.randn(4, 5, VOCAB, generator=g).requires_grad_()
    teacher = torch.randn(4, 5, VOCAB, generator=g).log_softmax(-1)
    teacher = (teacher.exp() if divergence == "tvd" else teacher).requires_grad_()
    target = torch.randint(0, VOCAB, (4, 5), generator=g)
    target[1, 2:] = -100
    function = getattr(ops, "cross_entropy_" + divergence)
    out = function(z, target, teacher, **{"weight_ce": 0.25, "weight_" + divergence: 3.0}, return_parts=True)
    ce = ops.cross_entropy(z, target)
    other = ops.tvd(z.softmax(-1), teacher, target) if divergence == "tvd" else \
        ops.jsd(z.log_softmax(-1), teacher, labels=target)
    torch.testing.assert_close(out.ce, ce)
    torch.testing.assert_close(out.divergence, other)
    torch.testing.assert_close(out.loss, 0.25 * ce + 3 * other)
    gradient, of_teacher = torch.autograd.grad(2 * out.loss, (z, teacher), allow_unused=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(2 * (0.25 * ce + 3 * other), z)[0], rtol=1e-4, atol=1e-7)
    assert of_teacher is None and not out.ce.requires_grad and not out.divergence.requires_grad



@pytest.mark.parametrize("weight_hard, weight_soft", [(0.0, 1.0), (0.0, 0.3), (0.0, 0.0), (1.0, 0.0)])
@pytest.mark.parametrize("kind", ["jsd", "cosine"])
def test_soft_and_hard_loss_whatever_they_weigh(kind, weight_hard, weight_soft):
    x, weight, _, target = head()
    teacher_x, teacher_weight, _, _ = head(seed=5)
    function = getattr(ops, f"fused_linear_{kind}_distillation")
    given = x.detach(), weight.detach(), target, teacher_x.detach(), teacher_weight.detach()
    _, soft, hard = function(*given, 0.5, 0.5, return_soft_hard_loss=True)
    loss, *both = function(*given, weight_hard, weight_soft, return_soft_hard_loss=True)
    torch.testing.assert_close(both, [soft, hard])
    torch.testing.assert_close(loss, weight_hard * hard + weight_soft * soft)


def sums(exact, target):
    """Log-probabilities of the chosen and the rejected sequences, and how many tokens they have."""
    logps = token_logps(*exact, target).sum(-1)
    tokens = (target != -100).sum(-1)
    return logps[:PAIRS], logps[PAIRS:], tokens[:PAIRS], tokens[PAIRS:]


def nll(exact, target):
    chosen = token_logps(*exact, target)[:PAIRS]
    return -chosen.sum() / (target[:PAIRS] != -100).sum()


def test_dpo_with_a_reference_layer():
    x, weight, bias, target = head()
    ref_x, ref_weight, ref_bias, _ = (t.detach() for t in head(seed=5))
    exact = in_f64(x, weight, bias)
    c, r, *_ = sums(exact, target)
    c0, r0, *_ = sums([t.double() for t in (ref_x, ref_weight, ref_bias)], target)
    expected = -F.logsigmoid(0.2 * ((c - c0) - (r - r0))).mean()
    dpo = losses.FusedLinearDPOLoss(beta=0.2, metrics=True)
    loss, results = dpo(x, weight, target, bias, ref_x, ref_weight, ref_bias)
    assert error(results["chosen_rewards"], (0.2 * (c - c0)).detach()) <= 1e-5
    check(loss, expected, (x, weight, bias), exact)
    by_logps = losses.FusedLinearDPOLoss(beta=0.2)(x, weight, target, bias, ref_logps=torch.cat([c0, r0]).float())
    assert abs(by_logps - loss) <= 1e-6


def test_orpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, nc, nr = sums(exact, target)
    c, r = c / nc, r / nr
    odds = (c - torch.log1p(-c.exp())) - (r - torch.log1p(-r.exp()))
    expected = nll(exact, target) - 0.1 * F.logsigmoid(odds).mean()
    check(losses.FusedLinearORPOLoss(beta=0.1)(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_simpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, nc, nr = sums(exact, target)
    expected = -F.logsigmoid(2.0 * (c / nc - r / nr) - 0.5).mean()
    check(losses.FusedLinearSimPOLoss(beta=2.0)(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_cpo():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    c, r, *_ = sums(exact, target)
    expected = nll(exact, target) - F.logsigmoid(0.1 * (c - r)).mean()
    check(losses.FusedLinearCPOLoss()(x, weight, target, bias), expected, (x, weight, bias), exact)


def test_kto():
    x, weight, bias, target = head()
    exact = in_f64(x, weight, bias)
    s = token_logps(*exact, target).sum(-1)
    s0 = s.detach() + torch.linspace(-3, 3, 2 * PAIRS)
    desirable = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.uint8)
    sign, kl = 2.0 * desirable - 1, 0.7
    weights = torch.where(desirable.bool(), 1.0, 1.5)
    expected = (weights * torch.sigmoid(-0.3 * sign * (s - s0 - kl))).mean()
    loss = losses.FusedLinearKTOLoss(beta=0.3, undesirable_weight=1.5)(
        x, weight, target, desirable, bias, kl=torch.tensor(kl), ref_logps=s0.float())
    check(loss, expected, (x, weight, bias), exact)


def test_grpo():
    g = torch.Generator().manual_seed(4)
    logits = torch.randn(4, LEN, VOCAB, generator=g, requires_grad=True)
    ids = torch.randint(0, VOCAB, (4, LEN), generator=g)
    advantages = torch.randn(4, generator=g)
    mask = torch.ones(4, LEN, dtype=torch.long)
    mask[1, 4:] = 0
    (exact,) = in_f64(logits)
    logp = (exact / 0.8).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    old, ref = (logp.detach() + 0.3 * torch.randn(4, LEN, generator=g) for _ in range(2))
    ratio, d = (logp - old).exp(), ref - logp
    a = advantages[:, None].double()
    token = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.05 * (d.exp() - 1 - d)
    expected = (token * mask).sum() / mask.sum()
    loss = losses.GRPOLoss(temperature=0.8, beta=0.05)(logits, ids, advantages, old.float(), ref.float(), mask)
    check(loss, expected, (logits,), (exact,))


def test_fused_linear_grpo():
    g = torch.Generator().manual_seed(6)
    x, weight = torch.randn(4, LEN, 16, generator=g), torch.randn(VOCAB, 16, generator=g) / 4
    bias = torch.randn(VOCAB, generator=g)
    ids = torch.randint(0, VOCAB, (4, LEN), generator=g)
    mask = torch.ones(4, LEN, dtype=torch.long)
    mask[3, 2:] = 0
    advantages, old = torch.randn(4, generator=g), -3 - torch.rand(4, LEN, generator=g)
    options = dict(type="gmpo", temperature=0.7, epsilon_low=0.4, epsilon_high=0.3)
    inputs = [t.requires_grad_() for t in (x, weight, bias)]
    exact = in_f64(*inputs)
    expected = losses.GRPOLoss(**options)(F.linear(*exact), ids, advantages.double(), old.double(), mask=mask)
    loss = losses.FusedLinearGRPOLoss(**options)(x, weight, ids, advantages, bias, old, mask=mask)
    check(loss, expected, inputs, exact)
