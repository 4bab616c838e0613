"""Bytes times weights of two bits, beside PyTorch's product in 64 bits; all results are exact."""
import pytest
import torch

import tigon_torch
from tigon_torch import ops
from tigon_torch.registration import names

SHAPES = [(1, 4, 1), (3, 8, 5), (2, 7, 3), (1, 33, 40), (17, 260, 70), (130, 1, 9), (5, 1030, 129)]
OPERATORS = ("matmul_int8_int2", "pack_weights", "unpack_weights")


def numbers(m, k, n, seed=0):
    torch.manual_seed(seed)
    a = torch.randint(-128, 128, (m, -(-k // 4) * 4), dtype=torch.int8)
    return a, torch.randint(-1, 3, (k, n), dtype=torch.int8)


def product(a, weight):
    return (a[..., : weight.shape[0]].long() @ weight.long()).int()


def packed_by_torch(weight):
    """By the formula of docs/formulas/matmul_int8_int2.md."""
    q = -(-weight.shape[0] // 4)
    codes = torch.ones(4 * q, *weight.shape[1:], dtype=torch.uint8)
    codes[: weight.shape[0]] = (weight + 1).byte()
    return sum((codes[s * q : (s + 1) * q] << 2 * s for s in range(4)), torch.zeros_like(codes[:q]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_and_packing(shape):
    a, weight = numbers(*shape)
    packed = ops.pack_weights(weight)
    assert torch.equal(packed, packed_by_torch(weight))
    c = ops.matmul_int8_int2(a, packed)
    assert c.dtype == torch.int32 and torch.equal(c, product(a, weight))
    again = ops.unpack_weights(packed, weight.shape[0])
    assert again.dtype == torch.int8 and torch.equal(again, weight)
    rest = ops.unpack_weights(packed)
    assert torch.equal(rest[: weight.shape[0]], weight) and not rest[weight.shape[0] :].any()


def test_the_largest_sums():
    for a in (-128, 127):
        for w in (-1, 2):
            weight = torch.full((4096, 3), w, dtype=torch.int8)
            c = ops.matmul_int8_int2(torch.full((2, 4096), a, dtype=torch.int8), ops.pack_weights(weight))
            assert torch.equal(c, torch.full((2, 3), 4096 * a * w, dtype=torch.int32))


def test_every_byte():
    """A byte is four weights, whatever it is."""
    packed = torch.arange(256, dtype=torch.uint8).reshape(2, 128)
    weight = ops.unpack_weights(packed)
    assert torch.equal(packed_by_torch(weight), packed) and torch.equal(ops.pack_weights(weight), packed)


def test_other_shapes():
    a, weight = numbers(6, 12, 10)
    packed = ops.pack_weights(weight)
    c = product(a, weight)
    assert torch.equal(ops.matmul_int8_int2(a.reshape(2, 3, 12), packed), c.reshape(2, 3, 10))
    assert torch.equal(ops.matmul_int8_int2(a[1], packed), c[1])
    cube = weight.reshape(12, 2, 5)
    assert torch.equal(ops.pack_weights(cube), packed.reshape(3, 2, 5))
    assert torch.equal(ops.unpack_weights(packed.reshape(3, 2, 5)), cube)
    assert torch.equal(ops.unpack_weights(ops.pack_weights(weight[:, 0])), weight[:, 0])


def test_strides():
    a, weight = numbers(9, 40, 24)
    packed = ops.pack_weights(weight)
    c = product(a, weight)
    wide = torch.zeros(9, 50, dtype=torch.int8)
    wide[:, 3:43] = a
    assert torch.equal(ops.matmul_int8_int2(wide[:, 3:43], packed), c)
    assert torch.equal(ops.matmul_int8_int2(a.T.contiguous().T, packed.T.contiguous().T), c)
    assert torch.equal(ops.matmul_int8_int2(a[:1].expand(4, 40), packed), c[:1].expand(4, 24))
    assert torch.equal(ops.pack_weights(weight.T.contiguous().T), packed)
    assert torch.equal(ops.unpack_weights(packed.T.contiguous().T), weight)
    assert torch.equal(ops.matmul_int8_int2(a[::2], packed[:, 1:20]), c[::2, 1:20])


def test_of_nothing():
    a, weight = numbers(3, 8, 5)
    packed = ops.pack_weights(weight)
    assert ops.matmul_int8_int2(a[:0], packed).shape == (0, 5)
    assert ops.matmul_int8_int2(a, packed[:, :0]).shape == (3, 0)
    assert torch.equal(ops.matmul_int8_int2(a[:, :0], packed[:0]), torch.zeros(3, 5, dtype=torch.int32))
    assert ops.pack_weights(weight[:0]).shape == (0, 5) and ops.pack_weights(weight[:, :0]).shape == (2, 0)
    assert ops.unpack_weights(packed[:0]).shape == (0, 5) and ops.unpack_weights(packed[:, :0], 7).shape == (7, 0)


def test_threads_and_instruction_sets_agree():
    a, weight = numbers(70, 515, 300)
    packed = ops.pack_weights(weight)
    c = product(a, weight)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert torch.equal(ops.matmul_int8_int2(a, packed), c)
        for backend in torch.ops.tigon.instruction_sets_of_cpu().split():
            for op in OPERATORS:
                tigon_torch.use(backend, op)
            assert torch.equal(ops.matmul_int8_int2(a, ops.pack_weights(weight)), c)
            assert torch.equal(ops.unpack_weights(packed, 515), weight)
    finally:
        torch.set_num_threads(threads)
        for op in OPERATORS:
            tigon_torch.use(None, op)


def test_opcheck():
    a, weight = numbers(5, 14, 6)
    packed = ops.pack_weights(weight)
    library = torch.ops.tigon
    for op, arguments in ((library.matmul_int8_int2.default, (a, packed)),
                          (library.matmul_int8_int2.default, (a.reshape(5, 1, 16), packed)),
                          (library.pack_weights.default, (weight,)), (library.pack_weights.default, (weight.T,)),
                          (library.unpack_weights.default, (packed, 14))):
        torch.library.opcheck(op, arguments)
    assert set(OPERATORS) <= set(names)


def test_compiled():
    def both(a, weight):
        packed = ops.pack_weights(weight)
        return ops.matmul_int8_int2(a, packed), ops.unpack_weights(packed, weight.shape[0])

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in SHAPES:
        a, weight = numbers(*shape)
        c, again = compiled(a, weight)
        assert torch.equal(c, product(a, weight)) and torch.equal(again, weight)


def test_inputs_are_left_alone():
    a, weight = numbers(4, 9, 5)
    before = a.clone(), weight.clone()
    packed = ops.pack_weights(weight)
    as_packed = packed.clone()
    c = ops.matmul_int8_int2(a, packed)
    ops.unpack_weights(packed, 9)
    assert torch.equal(a, before[0]) and torch.equal(weight, before[1]) and torch.equal(packed, as_packed)
    assert not c.requires_grad


A, W = numbers(3, 8, 5)
P = packed_by_torch(W)
ERRORS = {
    "matmul_int8_int2: a is of f32; expected i8": lambda: ops.matmul_int8_int2(A.float(), P),
    "matmul_int8_int2: a is of u8; expected i8": lambda: ops.matmul_int8_int2(A.byte(), P),
    "matmul_int8_int2: packed is of i8; expected u8": lambda: ops.matmul_int8_int2(A, P.char()),
    "matmul_int8_int2: packed has 1 dimensions; expected 2": lambda: ops.matmul_int8_int2(A, P[0]),
    "matmul_int8_int2: a is a number; expected at least one dimension": lambda: ops.matmul_int8_int2(A[0, 0], P),
    "matmul_int8_int2: a is 3 x 7; expected 3 x 8": lambda: ops.matmul_int8_int2(A[:, :7], P),
    "matmul_int8_int2: a is 3 x 8; expected 3 x 12": lambda: ops.matmul_int8_int2(A, torch.cat([P, P[:1]])),
    "matmul_int8_int2: packed is of list; expected a tensor": lambda: ops.matmul_int8_int2(A, [1]),
    "matmul_int8_int2: packed is of 2\\^21 rows or more; expected fewer": lambda: ops.matmul_int8_int2(
        A, P[:1].expand(2**21, 5)),
    "pack_weights: weight is outside of two bits; expected -1, 0, 1 or 2": lambda: ops.pack_weights(W * 2 + 1),
    "pack_weights: weight is of i64; expected i8": lambda: ops.pack_weights(W.long()),
    "pack_weights: weight is a number; expected at least one dimension": lambda: ops.pack_weights(W[0, 0]),
    "unpack_weights: packed is of i8; expected u8": lambda: ops.unpack_weights(P.char()),
    "unpack_weights: rows is 9; expected from 5 to 8, as packed has 2 rows": lambda: ops.unpack_weights(P, 9),
    "unpack_weights: rows is 4; expected from 5 to 8, as packed has 2 rows": lambda: ops.unpack_weights(P, 4),
    "unpack_weights: rows is -1; expected an integer of at least 0": lambda: ops.unpack_weights(P, -1),
    "unpack_weights: rows is 2.0; expected an integer": lambda: ops.unpack_weights(P, 2.0),
    "unpack_weights: packed is a number; expected at least one dimension": lambda: ops.unpack_weights(P[0, 0]),
}


@pytest.mark.parametrize("sentence", ERRORS.keys())
def test_errors_are_sentences(sentence):
    with pytest.raises((ValueError, RuntimeError), match="^tigon: " + sentence):
        ERRORS[sentence]()


def test_a_gpu_has_no_kernel():
    from test_cuda import on_cuda

    library = torch.ops.tigon
    for op, arguments in ((library.matmul_int8_int2.default, (A, P)), (library.pack_weights.default, (W,)),
                          (library.unpack_weights.default, (P, 8))):
        name = op.name().partition("::")[2]
        with pytest.raises(NotImplementedError, match=f"^tigon: {name}: tensors are on CUDA, and .*; expected tensors on "
                                                      "the CPU$"):
            on_cuda(op, *arguments)
