"""tigon's fused training kernels in PyTorch: operators (tigon_torch.ops), made of torch.ops.tigon; apply(), which puts
them into models of transformers; losses (tigon_torch.losses) and layers (tigon_torch.modules); AdamW. Liger's names for these are in
tigon_torch.drop_in."""
import torch

__version__ = "0.2.0"

from . import loading  # noqa: E402

loading.load()

from . import devices  # noqa: E402

devices.load()

from . import losses, modules, ops  # noqa: E402
from .backends import backends, read_environment, use  # noqa: E402, F401   as apply, which hides its module
from .apply import *  # noqa: E402, F403
from .apply import apply  # noqa: E402, F401   the function, which hides the package of its name
from .graphs import graphed_step  # noqa: E402, F401
from .optimizers import AdamW  # noqa: E402, F401
from . import declared, registration  # noqa: E402
from .registration import tag_compiled_code  # noqa: E402
from .trainers import use_in  # noqa: E402, F401

tag_compiled_code()
devices.refuse_others(declared.library, registration.names)

read_environment()

_SET = torch.ops.tigon.instruction_set()  # chosen here: a CPU without any, or a wish that cannot be met, is an error now


def instruction_set():
    """The instruction set that was chosen for this CPU; TIGON_INSTRUCTION_SET in the environment forces one."""
    return _SET
