"""The compiled library of operators, which is loaded before anything that names them."""
import os
import pathlib
import re

import torch

OLDEST = (2, 10)  # of PyTorch: whose stable interface the library is compiled for
LIBRARY = pathlib.Path(__file__).with_name("_library.so")


def load() -> None:
    """Loads it. Raises ImportError for an older PyTorch and where it was not built, ValueError for an instruction set in the
    environment that it does not have."""
    version = str(torch.__version__)
    if tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", version).groups()) < OLDEST:
        raise ImportError(f"tigon_torch: PyTorch {version} is older than {OLDEST[0]}.{OLDEST[1]}, for which it is compiled; "
                          "upgrade it")
    if not LIBRARY.exists():
        raise ImportError(f"tigon_torch: {LIBRARY} was not built; `pip install ./python` in tigon's folder builds and "
                          "installs the package, and `python setup.py build_ext --inplace` in python/ builds it beside "
                          "its sources (docs/torch.md)")
    torch.ops.load_library(str(LIBRARY))
    wish, sets = os.environ.get("TIGON_INSTRUCTION_SET"), torch.ops.tigon.instruction_sets_of_library().split()
    if wish and wish not in sets:
        raise ValueError(f"tigon: TIGON_INSTRUCTION_SET is {wish!r}; expected one of {', '.join(sets)}, which the library "
                         "was built for")
