"""One of the processes of test_trl_on_two_processes: TRL's loss and tigon's in trainers over several processes."""
import sys

import torch
from conftest import build
from test_trl import losses, make_tokenizer, trainer_of

import tigon_torch

OF_LOGITS = ("logits/", "entropy", "clip_ratio/", "mean_token_accuracy")

torch.set_num_threads(1)
for kind in ("dpo", "orpo", "kto", "grpo"):
    results = []
    for ours in (False, True):
        model = build("llama")
        if ours:
            tigon_torch.apply(model, linear=True)
        trainer = trainer_of(kind, make_tokenizer(), sys.argv[1], model, optim="sgd", learning_rate=0.05,
                             ddp_backend="gloo", per_device_train_batch_size=2, max_steps=3)
        assert trainer.accelerator.num_processes == 2
        if ours:
            losses.use_in_trl(trainer)
        trainer.train()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        gathered = [torch.empty_like(weights) for _ in range(2)]
        torch.distributed.all_gather(gathered, weights)
        assert torch.equal(*gathered), "the processes have other weights"
        results.append((weights, trainer.state.log_history))
    (expected, theirs), (actual, own) = results
    start = torch.cat([p.detach().flatten() for p in build("llama").parameters()])
    far = (expected - start).norm()
    assert far > 0 and (actual - expected).norm() <= 1e-3 * far, (kind, far, (actual - expected).norm())
    # Everything that both log; tigon's have no logits and no entropies.
    for a, b in zip(theirs[:3], own[:3], strict=True):
        names = {name for name in a if not name.startswith(OF_LOGITS) and "time" not in name}
        assert names <= b.keys(), (kind, names - b.keys())
        for name in names:
            assert abs(a[name] - b[name]) <= 1e-4 * abs(a[name]) + 2e-6, (kind, name, a[name], b[name])
    if trainer.accelerator.is_main_process:
        print("equal", flush=True)
