"""The function of libtorch in docs/autograd.md compiles, and has PyTorch's gradients."""

import os
import pathlib
import re

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "autograd.md"


@pytest.mark.skipif(not PAGE.exists(), reason="away from the repository")
@pytest.mark.skipif("TIGON_TORCH_MODELS" not in os.environ, reason="a minute of g++ for PyTorch's headers; .ci/models sets TIGON_TORCH_MODELS")
def test_function_of_libtorch(tmp_path):
    from torch.utils import cpp_extension

    block = re.search(r"```cpp\n(#include <torch/torch\.h>\n.*?)```", PAGE.read_text(), re.S)[1]
    call = "\ntorch::Tensor call(torch::Tensor x, torch::Tensor w) { return rms_norm::apply(x, w); }\n"
    includes = [str(ROOT / "include"), "/usr/include/eigen3"]
    module = cpp_extension.load_inline("tigon_documents", block + call, functions="call", build_directory=str(tmp_path),
                                       extra_cflags=["-std=c++20", "-O0", "-DTIGON_BACKEND=generic"], extra_include_paths=includes)
    torch.manual_seed(0)
    x, w = torch.randn(3, 5, 16), torch.randn(16)
    results = []
    for norm in (module.call, lambda x, w: torch.nn.functional.rms_norm(x, (16,), w, 1e-6)):
        inputs = [t.clone().requires_grad_() for t in (x, w)]
        y = norm(*inputs)
        y.pow(2).sum().backward()
        results.append([y.detach(), *(t.grad for t in inputs)])
    for mine, theirs in zip(*results):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
