"""tigon's losses as modules, for one's own training loop and for TRL's trainers.

The classes named Fused... take hidden states and the weight of the head instead of logits: logits are never in memory
as a whole. Preference losses take the chosen sequences first, then their rejected partners in the same order; targets
are already shifted, and `ignore_index` marks tokens that do not count (the prompt).

    loss = FusedLinearDPOLoss(beta=0.1)
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state      # [2 pairs, len, hidden]
    value = loss(hidden[:, :-1], model.lm_head.weight, ids_with_prompt_ignored[:, 1:], ref_logps=reference)

use_in_trl(trainer) puts them into a trainer of TRL.
"""
from .modules import (
    CrossEntropyLoss, FusedLinearCosineSimilarityLoss, FusedLinearCPOLoss, FusedLinearCrossEntropyLoss,
    FusedLinearDPOLoss, FusedLinearGRPOLoss, FusedLinearJSD, FusedLinearJSDLoss, FusedLinearKLDivLoss,
    FusedLinearKTOLoss, FusedLinearORPOLoss, FusedLinearScaledCrossEntropyLoss, FusedLinearSimPOLoss, GRPOLoss, JSD,
    KLDiv, TVDLoss)
from .trl import use_in_trl

__all__ = ["CrossEntropyLoss", "FusedLinearCosineSimilarityLoss", "FusedLinearCPOLoss", "FusedLinearCrossEntropyLoss",
           "FusedLinearDPOLoss", "FusedLinearGRPOLoss", "FusedLinearJSD", "FusedLinearJSDLoss",
           "FusedLinearKLDivLoss", "FusedLinearKTOLoss", "FusedLinearORPOLoss", "FusedLinearScaledCrossEntropyLoss",
           "FusedLinearSimPOLoss", "GRPOLoss", "JSD", "KLDiv", "TVDLoss", "use_in_trl"]
