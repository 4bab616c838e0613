#!/usr/bin/env python3
"""libtigon_c from Python, by ctypes and nothing else: operators against their formulas in plain Python.

check.py LIBRARY
"""
import array
import ctypes
import math
import struct
import sys

F32, BF16, I32, I64 = 1, 2, 3, 4
CODES = {F32: 'f', BF16: 'H', I32: 'i', I64: 'q'}


class Tensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('dtype', ctypes.c_int32), ('rank', ctypes.c_int32),
                ('shape', ctypes.c_int64 * 4), ('strides', ctypes.c_int64 * 4)]


def arguments(name, fields):
    """A struct of arguments: names alone are tensors, name:type are numbers."""
    types = {'d': ctypes.c_double, 'i': ctypes.c_int32, 'q': ctypes.c_int64}
    pairs = [f.split(':') if ':' in f else (f, None) for f in fields.split()]
    return type(name, (ctypes.Structure,),
                {'_fields_': [(f, types[t] if t else ctypes.POINTER(Tensor)) for f, t in pairs]})


RmsNorm = arguments('RmsNorm', 'x w y rstd dy dx dw eps:d offset:d casting:i accumulate:i')
Attention = arguments('Attention', 'q k v o lse d_o dq dk dv cumulative_lengths scale:d softcap:d window:q offset:q '
                      'mask:i key_begins key_ends')
Gemm = arguments('Gemm', 'a b c bias dc da db transpose_a:i transpose_b:i accumulate:i accumulate_da:i accumulate_db:i')
Linear = arguments('Linear', 'x w bias y dy dx dw dbias accumulate_dx:i accumulate:i')
RopeTables = arguments('RopeTables', 'cos sin theta:d first_position:q')
Rope = arguments('Rope', 'q k cos sin q_out k_out rotary_dim:q pairs:i')
LOSS = 'ignore_index:q set_ignore_index:i reduction:i label_smoothing:d lse_square_scale:d softcap:d denominator:d'
CrossEntropy = arguments('CrossEntropy', 'logits target loss dlogits ' + LOSS)
FusedLinearCrossEntropy = arguments(
    'FusedLinearCrossEntropy', 'x w bias target loss dx dw dbias upstream ' + LOSS + ' accumulate:i')


def to_bf16(value):
    bits = struct.unpack('<I', struct.pack('<f', value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def from_bf16(bits):
    return struct.unpack('<f', struct.pack('<I', bits << 16))[0]


def rounded(values, dtype):
    """The numbers as a tensor of this type holds them."""
    if dtype == BF16:
        return [from_bf16(to_bf16(v)) for v in values]
    return list(array.array('f', values))


class Buffer:
    """Numbers in memory, and a tensor that points to them."""

    def __init__(self, dtype, shape, values=None, strides=None):
        count = math.prod(shape)
        strides = strides or [math.prod(shape[k + 1:]) for k in range(len(shape))]
        values = [0] * count if values is None else values
        self.memory = array.array(CODES[dtype], [to_bf16(v) for v in values] if dtype == BF16 else values)
        self.dtype = dtype
        self.tensor = Tensor(self.memory.buffer_info()[0], dtype, len(shape), (ctypes.c_int64 * 4)(*shape),
                             (ctypes.c_int64 * 4)(*strides))

    def numbers(self):
        return [from_bf16(v) for v in self.memory] if self.dtype == BF16 else list(self.memory)


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ('tigon_last_error', 'tigon_instruction_set', 'tigon_version'):
            getattr(self.c, name).restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()

    def error(self):
        return self.c.tigon_last_error().decode()

    def expect(self, status):
        if status != 0:
            raise RuntimeError(self.error())

    def call(self, name, kind, **fields):
        a = kind(**{k: ctypes.pointer(v.tensor) if isinstance(v, Buffer) else v for k, v in fields.items()})
        self.expect(getattr(self.c, 'tigon_' + name)(self.context, ctypes.byref(a)))


def numbers(count, seed):
    """In [-1, 1)."""
    values = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        values.append((seed >> 8) / 2**23 - 1)
    return values


def compare(what, came, expected, tolerance):
    """Errors are relative, beside the root mean square; infinities are the same on both sides."""
    pairs = [pair for pair in zip(came, expected, strict=True) if not (math.isinf(pair[1]) and pair[0] == pair[1])]
    expected = [e for _, e in pairs]
    scale = math.sqrt(sum(v * v for v in expected) / max(len(expected), 1))
    worst = max(abs(c - e) / (abs(e) + scale) for c, e in pairs) if pairs else 0
    if not worst <= tolerance:
        sys.exit(f'check.py: {what}: error {worst:.2e}, at most {tolerance:.1e}')
    print(f'{what}: error {worst:.1e}, at most {tolerance:.1e}')


def rms_norm(library, dtype, forward_error, backward_error):
    rows, cols, gap, eps = 5, 37, 3, 1e-5
    x, w, dy = (rounded(numbers(n, s), dtype) for n, s in ((rows * (cols + gap), 1), (cols, 2), (rows * cols, 3)))
    # Rows of x have gaps between them.
    tensors = dict(x=Buffer(dtype, (rows, cols), x, (cols + gap, 1)), w=Buffer(dtype, (cols,), w), rstd=Buffer(F32, (rows,)))
    y, dx, dw = Buffer(dtype, (rows, cols)), Buffer(dtype, (rows, cols)), Buffer(dtype, (cols,))
    library.call('rms_norm_forward', RmsNorm, **tensors, y=y, eps=eps, casting=1)
    library.call('rms_norm_backward', RmsNorm, **tensors, dy=Buffer(dtype, (rows, cols), dy), dx=dx, dw=dw, eps=eps, casting=1)
    expected = {'y': [], 'rstd': [], 'dx': [], 'dw': [0.0] * cols}
    for i in range(rows):
        row, d = x[i * (cols + gap):][:cols], dy[i * cols:(i + 1) * cols]
        r = 1 / math.sqrt(sum(v * v for v in row) / cols + eps)
        k = sum(d[j] * w[j] * row[j] for j in range(cols))
        expected['rstd'].append(r)
        expected['y'] += [row[j] * r * w[j] for j in range(cols)]
        expected['dx'] += [r * d[j] * w[j] - r**3 * k / cols * row[j] for j in range(cols)]
        for j in range(cols):
            expected['dw'][j] += d[j] * row[j] * r
    for name, buffer in dict(y=y, rstd=tensors['rstd'], dx=dx, dw=dw).items():
        bound = backward_error if name[0] == 'd' else 4e-7 if name == 'rstd' else forward_error
        compare(f'rms_norm {name}', buffer.numbers(), expected[name], bound)


def attention(library, dtype, forward_error, backward_error, window=0, documents=(), e=8,
              begins=(), ends=()):
    """Causal; of `window` keys unless that is 0; of packed documents that end where `documents` says; of values with e
    columns; of a padded batch, whose entries have the keys from `begins` to `ends`."""
    batch, heads, kv_heads, tokens, d = 2, 4, 2, 9, 8
    scale = 1 / math.sqrt(d)

    def heads_buffer(count, seed, d=d):
        """[batch, heads, tokens, d], laid out as a projection leaves them: [batch, tokens, heads, d]."""
        values = rounded(numbers(batch * tokens * count * d, seed), dtype) if seed else None
        return values, Buffer(dtype, (batch, count, tokens, d), values, (tokens * count * d, d, count * d, 1))

    def row(values, count, b, h, s, d=d):
        begin = ((b * tokens + s) * count + h) * d
        return values[begin:begin + d]

    (q, q_t), (k, k_t), (v, v_t), (do, do_t) = (
        heads_buffer(*of) for of in ((heads, 4), (kv_heads, 5), (kv_heads, 6, e), (heads, 7, e)))
    (_, o_t), (_, dq_t), (_, dk_t), (_, dv_t) = (
        heads_buffer(*of) for of in ((heads, 0, e), (heads, 0), (kv_heads, 0), (kv_heads, 0, e)))
    lse_t = Buffer(F32, (batch, heads, tokens))
    given = dict(q=q_t, k=k_t, v=v_t, o=o_t, lse=lse_t, window=window)
    if documents:
        given['cumulative_lengths'] = Buffer(I32, (len(documents) + 1,), [0, *documents])
    if begins:
        given['key_begins'] = Buffer(I32, (batch,), begins)
    if ends:
        given['key_ends'] = Buffer(I32, (batch,), ends)
    library.call('attention_forward', Attention, **given)
    library.call('attention_backward', Attention, **given, d_o=do_t, dq=dq_t, dk=dk_t, dv=dv_t)

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    o, lse = [0.0] * len(do), []
    dq, dk, dv = [0.0] * len(q), [0.0] * len(k), [0.0] * len(v)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // kv_heads)
            for i in range(tokens):
                begin = max(max((e for e in documents if e <= i), default=0), begins[b] if begins else 0)
                seen = range(max(begin, i + 1 - window) if window else begin, min(i + 1, ends[b] if ends else tokens))
                if not seen:
                    lse.append(-math.inf)
                    continue
                scores = {j: scale * dot(row(q, heads, b, h, i), row(k, kv_heads, b, g, j)) for j in seen}
                top = max(scores.values())
                total = sum(math.exp(s - top) for s in scores.values())
                lse.append(top + math.log(total))
                p = {j: math.exp(s - top) / total for j, s in scores.items()}
                out = [sum(p[j] * row(v, kv_heads, b, g, j, e)[c] for j in seen) for c in range(e)]
                query = (b * tokens + i) * heads + h
                at, d_row = query * d, row(do, heads, b, h, i, e)
                o[query * e:(query + 1) * e] = out
                delta = dot(d_row, out)
                for j in seen:
                    ds = p[j] * (dot(d_row, row(v, kv_heads, b, g, j, e)) - delta)
                    key = (b * tokens + j) * kv_heads + g
                    for c in range(d):
                        dq[at + c] += scale * ds * k[key * d + c]
                        dk[key * d + c] += scale * ds * q[at + c]
                    for c in range(e):
                        dv[key * e + c] += p[j] * d_row[c]
    compare('attention o', o_t.numbers(), o, forward_error)
    compare('attention lse', lse_t.numbers(), lse, 5e-7)
    for name, buffer, expected in (('dq', dq_t, dq), ('dk', dk_t, dk), ('dv', dv_t, dv)):
        compare(f'attention {name}', buffer.numbers(), expected, backward_error)


def key_ranges(library):
    """Keys of a batch entry that are none are refused, and nothing is written."""
    shape = 2, 1, 4, 8
    q, o = Buffer(F32, shape, rounded(numbers(64, 25), F32)), Buffer(F32, shape, [7.0] * 64)
    lse = Buffer(F32, shape[:3])
    names = {name: ctypes.pointer(t.tensor) for name, t in dict(q=q, k=q, v=q, o=o, lse=lse).items()}
    for field, dtype, values, status, sentence in (
            ('key_begins', I32, [0], 1, 'key_begins is of 1 elements; expected 2'),
            ('key_ends', I32, [4, 4, 4], 1, 'key_ends is of 3 elements; expected 2'),
            ('key_begins', I64, [0, 0], 2, 'key_begins is of dtype i64; expected i32'),
            ('key_begins', I32, [0, -1], 5, 'key_ends is before key_begins or outside of the keys'),
            ('key_begins', I32, [5, 0], 5, 'key_ends is before key_begins or outside of the keys'),
            ('key_ends', I32, [4, 5], 5, 'key_ends is before key_begins or outside of the keys')):
        keys = Buffer(dtype, (len(values),), values)
        given = Attention(**names, **{field: ctypes.pointer(keys.tensor)})
        came = library.c.tigon_attention_forward(library.context, ctypes.byref(given))
        assert (came, sentence in library.error()) == (status, True), (field, values, came, library.error())
    assert o.numbers() == [7.0] * 64, 'a refused call wrote'
    print('attention: six ranges of keys are refused')


def cross_entropy(library, dtype, error, linear_error):
    rows, hidden, vocab, ignored = 11, 16, 53, 4
    x, w = rounded(numbers(rows * hidden, 8), dtype), rounded(numbers(vocab * hidden, 9), dtype)
    target = [(5 * i) % vocab for i in range(rows)]
    target[ignored] = -100
    kept = rows - 1

    def of_logits(logits):
        """The mean loss, and the gradient of the logits."""
        loss, d = 0.0, []
        for i, t in enumerate(target):
            z = logits[i * vocab:(i + 1) * vocab]
            if t == -100:
                d += [0.0] * vocab
                continue
            top = max(z)
            total = sum(math.exp(v - top) for v in z)
            loss += (top + math.log(total) - z[t]) / kept
            d += [(math.exp(v - top) / total - (j == t)) / kept for j, v in enumerate(z)]
        return loss, d

    logits = [3 * v for v in numbers(rows * vocab, 10)]
    logits = rounded(logits, dtype)
    for ids in I32, I64:
        labels, loss, d = Buffer(ids, (rows,), target), Buffer(F32, (1,)), Buffer(dtype, (rows, vocab))
        library.call('cross_entropy_forward', CrossEntropy, logits=Buffer(dtype, (rows, vocab), logits), target=labels,
                     loss=loss, dlogits=d)
        expected_loss, expected = of_logits(logits)
        compare('cross_entropy loss', loss.numbers(), [expected_loss], 4e-7)
        compare('cross_entropy dlogits', d.numbers(), expected, error)

    products = [sum(x[i * hidden + c] * w[j * hidden + c] for c in range(hidden)) for i in range(rows) for j in range(vocab)]
    expected_loss, d = of_logits(products)
    expected_dx = [sum(d[i * vocab + j] * w[j * hidden + c] for j in range(vocab)) for i in range(rows) for c in range(hidden)]
    expected_dw = [sum(d[i * vocab + j] * x[i * hidden + c] for i in range(rows)) for j in range(vocab) for c in range(hidden)]
    tensors = dict(x=Buffer(dtype, (rows, hidden), x), w=Buffer(dtype, (vocab, hidden), w), target=Buffer(I64, (rows,), target))
    loss, dx, dw = Buffer(F32, (1,)), Buffer(dtype, (rows, hidden)), Buffer(dtype, (vocab, hidden))
    library.call('fused_linear_cross_entropy_forward', FusedLinearCrossEntropy, **tensors, loss=loss, dx=dx, dw=dw)
    compare('fused_linear_cross_entropy loss', loss.numbers(), [expected_loss], 4e-7)
    compare('fused_linear_cross_entropy dx', dx.numbers(), expected_dx, linear_error)
    compare('fused_linear_cross_entropy dw', dw.numbers(), expected_dw, linear_error)
    # Twice the gradient, made again from an upstream gradient of 2.
    library.call('fused_linear_cross_entropy_backward', FusedLinearCrossEntropy, **tensors, dx=dx, dw=dw,
                 upstream=Buffer(F32, (1,), [2.0]))
    compare('fused_linear_cross_entropy_backward dx', dx.numbers(), [2 * v for v in expected_dx], linear_error)
    compare('fused_linear_cross_entropy_backward dw', dw.numbers(), [2 * v for v in expected_dw], linear_error)


def products(library, dtype, error):
    m, n, k = 5, 7, 11
    a, b, bias, dc, old = (rounded(numbers(count, seed), dtype) for count, seed in
                           ((m * k, 12), (k * n, 13), (n, 14), (m * n, 15), (m * n, 16)))

    def transposed(values, rows, cols):
        return [values[i * cols + j] for j in range(cols) for i in range(rows)]

    def product(x, y, rows, cols, depth):
        return [sum(x[i * depth + p] * y[p * cols + j] for p in range(depth)) for i in range(rows) for j in range(cols)]

    expected = product(a, b, m, n, k)
    expected_da = product(dc, transposed(b, k, n), m, k, n)
    expected_db = product(transposed(a, m, k), dc, k, n, m)
    for ta in 0, 1:
        for tb in 0, 1:
            given = dict(a=Buffer(dtype, (k, m), transposed(a, m, k)) if ta else Buffer(dtype, (m, k), a),
                         b=Buffer(dtype, (n, k), transposed(b, k, n)) if tb else Buffer(dtype, (k, n), b),
                         transpose_a=ta, transpose_b=tb)
            c, da, db = Buffer(dtype, (m, n), old), Buffer(dtype, (k, m) if ta else (m, k)), Buffer(dtype, (n, k) if tb else (k, n))
            library.call('gemm_forward', Gemm, **given, c=c, accumulate=1)
            compare(f'gemm c, transposed {ta} {tb}', c.numbers(), [u + v for u, v in zip(expected, old, strict=True)], error)
            library.call('gemm_backward', Gemm, **given, dc=Buffer(dtype, (m, n), dc), da=da, db=db)
            compare('gemm da', da.numbers(), transposed(expected_da, m, k) if ta else expected_da, error)
            compare('gemm db', db.numbers(), transposed(expected_db, k, n) if tb else expected_db, error)
            library.call('gemm_backward', Gemm, **given, dc=Buffer(dtype, (m, n), dc), db=db, accumulate_db=1)
            twice = [2 * v for v in expected_db]
            compare('gemm db alone, added', db.numbers(), transposed(twice, k, n) if tb else twice, 2 * error)

    given = dict(x=Buffer(dtype, (m, k), a), w=Buffer(dtype, (n, k), transposed(b, k, n)))
    y, dx, dw, dbias = (Buffer(dtype, s) for s in ((m, n), (m, k), (n, k), (n,)))
    library.call('linear_forward', Linear, **given, bias=Buffer(dtype, (n,), bias), y=y)
    library.call('linear_backward', Linear, **given, dy=Buffer(dtype, (m, n), dc), dx=dx, dw=dw, dbias=dbias)
    compare('linear y', y.numbers(), [v + bias[i % n] for i, v in enumerate(expected)], error)
    compare('linear dx', dx.numbers(), expected_da, error)
    compare('linear dw', dw.numbers(), transposed(expected_db, k, n), error)
    compare('linear dbias', dbias.numbers(), [sum(dc[i * n + j] for i in range(m)) for j in range(n)], error)


def rope(library, error):
    """Neighbours of the first four columns of six, in queries alone; backward turns them back."""
    heads, tokens, d, r, theta, first = 2, 5, 6, 4, 100.0, 3
    q = rounded(numbers(heads * tokens * d, 17), F32)
    cos, sin = Buffer(F32, (tokens, r // 2)), Buffer(F32, (tokens, r // 2))
    library.call('rope_tables_fill', RopeTables, cos=cos, sin=sin, theta=theta, first_position=first)
    angles = [(first + i) * theta ** (-2 * j / r) for i in range(tokens) for j in range(r // 2)]
    compare('rope tables', cos.numbers() + sin.numbers(), [math.cos(a) for a in angles] + [math.sin(a) for a in angles], 1e-7)
    expected = list(q)
    for h in range(heads):
        for i in range(tokens):
            for j in range(r // 2):
                at, angle = (h * tokens + i) * d + 2 * j, angles[i * r // 2 + j]
                expected[at] = q[at] * math.cos(angle) - q[at + 1] * math.sin(angle)
                expected[at + 1] = q[at + 1] * math.cos(angle) + q[at] * math.sin(angle)
    in_place = Buffer(F32, (1, heads, tokens, d), q)
    given = dict(q=in_place, cos=cos, sin=sin, q_out=in_place, rotary_dim=r, pairs=1)
    library.call('rope_forward', Rope, **given)
    compare('rope q', in_place.numbers(), expected, error)
    library.call('rope_backward', Rope, **given)
    compare('rope back', in_place.numbers(), q, 2 * error)


class Device(ctypes.Structure):
    _fields_ = [('type', ctypes.c_int32), ('id', ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [('code', ctypes.c_uint8), ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device', Device), ('ndim', ctypes.c_int32), ('dtype', DataType),
                ('shape', ctypes.POINTER(ctypes.c_int64)), ('strides', ctypes.POINTER(ctypes.c_int64)),
                ('byte_offset', ctypes.c_uint64)]


def dlpack(library):
    memory = array.array('f', numbers(24, 11))
    shape, strides = (ctypes.c_int64 * 2)(3, 4), (ctypes.c_int64 * 2)(7, 1)
    source = DLTensor(memory.buffer_info()[0], Device(1, 0), 2, DataType(2, 32, 1), shape, strides, 4)
    tensor = Tensor()
    library.expect(library.c.tigon_tensor_from_dlpack(ctypes.byref(source), ctypes.byref(tensor)))
    assert (tensor.data, tensor.dtype, tensor.rank) == (memory.buffer_info()[0] + 4, F32, 2)
    assert list(tensor.shape)[:2] == [3, 4] and list(tensor.strides)[:2] == [7, 1]
    for field, value, sentence in (
            ('device', Device(2, 0), 'is on a device of type 2 (CUDA); expected memory of the CPU'),
            ('dtype', DataType(2, 64, 1), 'is of type float64; expected float32'),
            ('ndim', 5, 'is of rank 5; expected at most 4')):
        good = getattr(source, field)
        good = good if isinstance(good, int) else type(good).from_buffer_copy(good)
        setattr(source, field, value)
        assert library.c.tigon_tensor_from_dlpack(ctypes.byref(source), ctypes.byref(tensor)) != 0, field
        assert sentence in library.error(), library.error()
        setattr(source, field, good)
    print('tensor_from_dlpack: a tensor of the same memory, and three refusals')


def from_dlpack(library, buffer, shape, strides):
    """A tensor of these strides over the buffer's memory, by DLPack; None: without strides."""
    count = ctypes.c_int64 * len(shape)
    source = DLTensor(buffer.tensor.data, Device(1, 0), len(shape), DataType(2, 32, 1), count(*shape),
                      None if strides is None else count(*strides), 0)
    library.expect(library.c.tigon_tensor_from_dlpack(ctypes.byref(source), ctypes.byref(buffer.tensor)))
    return buffer


def strides(library):
    """Tensors that repeat an axis are read as their copies; what is written, or cannot be read, is refused."""
    OK, STRIDE = 0, 3
    rows, cols = 4, 8

    def expanded(shape, steps, seed=21):
        """Numbers in memory for these strides and not one more, and what stands at each index."""
        span = 1 + sum((n - 1) * max(s, 0) for n, s in zip(shape, steps, strict=True))
        values = rounded(numbers(span, seed), F32)
        at = [0]
        for n, s in zip(shape, steps, strict=True):
            at = [a + i * s for a in at for i in range(n)]
        return from_dlpack(library, Buffer(F32, (span,), values), shape, steps), values, at

    def norm(x, y, shape):
        w, rstd = Buffer(F32, (shape[-1],), [1.0] * shape[-1]), Buffer(F32, (math.prod(shape[:-1]),))
        a = RmsNorm(x=ctypes.pointer(x.tensor), w=ctypes.pointer(w.tensor), y=ctypes.pointer(y.tensor),
                    rstd=ctypes.pointer(rstd.tensor), eps=1e-5, casting=1)
        return library.c.tigon_rms_norm_forward(library.context, ctypes.byref(a))

    for shape, steps, status in (((rows, cols), (0, 1), OK), ((rows, cols), (0, 0), STRIDE), ((rows, cols), (-8, 1), STRIDE),
                                 ((rows, cols), (cols, 0), STRIDE), ((rows, cols), (3, 1), STRIDE),
                                 ((rows, 1), (0, 0), OK), ((1, cols), (0, 1), OK), ((1, cols), (-5, 1), OK),
                                 ((2, rows, cols), (0, 0, 1), OK), ((2, rows, cols), (0, cols, 1), STRIDE),
                                 ((2, 1, cols), (0, 77, 1), OK), ((1, 1), (0, 0), OK)):
        x, values, at = expanded(shape, steps)
        y, copied = Buffer(F32, shape), Buffer(F32, shape)
        came = norm(x, y, shape)
        assert came == status, (shape, steps, came, library.error())
        if status == OK:
            assert norm(Buffer(F32, shape, [values[k] for k in at]), copied, shape) == OK
            assert y.numbers() == copied.numbers(), (shape, steps)
        written = expanded(shape, steps)[0]
        before = written.numbers()
        if math.prod(shape[:-1]) > 1:  # one row is itself, whatever the stride
            assert norm(Buffer(F32, shape, [0.5] * math.prod(shape)), written, shape) == STRIDE, (shape, steps)
            assert written.numbers() == before, 'a refused call wrote'
    # The same without DLPack, and vectors, whose elements have no gaps.
    plain = Buffer(F32, (cols,), [1.0] * cols)
    plain.tensor.rank, plain.tensor.shape[:], plain.tensor.strides[:] = 2, [rows, cols, 0, 0], [0, 0, 0, 0]
    assert norm(plain, Buffer(F32, (rows, cols)), (rows, cols)) == STRIDE and 'strides that are all 0' in library.error()
    narrow = Buffer(BF16, (cols,))
    for from_, to in ((from_dlpack(library, Buffer(F32, (1,)), (cols,), (0,)), narrow), (plain, narrow)):
        assert library.c.tigon_convert(ctypes.byref(from_.tensor), ctypes.byref(to.tensor)) == STRIDE
    # No strides: no gaps. No elements: strides are not read.
    tensor = from_dlpack(library, Buffer(F32, (24,)), (2, 3, 4), None).tensor
    assert list(tensor.strides)[:3] == [12, 4, 1]
    for steps in (None, (0, 0), (-3, 5)):
        empty = from_dlpack(library, Buffer(F32, ()), (0, cols), steps)
        assert norm(empty, Buffer(F32, (0, cols)), (0, cols)) == OK, library.error()
    # One head of keys and values for all.
    shape, steps, kv = (2, 4, 5, 8), (0, 0, 8, 1), {}
    for name, seed in (('k', 22), ('v', 23)):
        tensor, values, at = expanded(shape, steps, seed)
        kv[name] = tensor, Buffer(F32, shape, [values[k] for k in at])
    q, results = Buffer(F32, shape, rounded(numbers(math.prod(shape), 24), F32)), []
    for which in 0, 1:
        o, lse = Buffer(F32, shape), Buffer(F32, shape[:3])
        library.call('attention_forward', Attention, q=q, k=kv['k'][which], v=kv['v'][which], o=o, lse=lse)
        results.append(o.numbers())
    assert results[0] == results[1]
    try:
        library.call('attention_forward', Attention, q=q, k=q, v=q, o=kv['k'][0], lse=lse)
        sys.exit('check.py: an expanded tensor was written')
    except RuntimeError as e:
        assert 'o is of a stride of 0' in str(e), e
    print('strides: tensors that repeat an axis are read, and not written')


def main():
    library = Library(sys.argv[1])
    if not library.c.tigon_instruction_set():
        print('skipped:', library.error())
        return 77
    assert library.c.tigon_abi_version() == 2
    print('tigon', library.c.tigon_version().decode(), library.c.tigon_instruction_set().decode())
    library.c.tigon_context_create.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64]
    library.expect(library.c.tigon_context_create(ctypes.byref(library.context), 2))
    # The maximum errors of the operators' contracts, in f32 and in bf16.
    rms_norm(library, F32, 4e-7, 1e-6)
    rms_norm(library, BF16, 6e-3, 8e-3)
    attention(library, F32, 2e-6, 4e-6)
    attention(library, BF16, 4e-3, 8e-3)
    attention(library, F32, 2e-6, 4e-6, window=3)
    attention(library, F32, 2e-6, 4e-6, documents=(4, 9))
    attention(library, F32, 2e-6, 4e-6, e=5)
    attention(library, BF16, 4e-3, 8e-3, documents=(4, 9), e=11)
    attention(library, F32, 2e-6, 4e-6, begins=(0, 3))
    attention(library, F32, 2e-6, 4e-6, ends=(9, 5))
    attention(library, BF16, 4e-3, 8e-3, window=4, begins=(2, 1), ends=(8, 9))
    key_ranges(library)
    cross_entropy(library, F32, 1e-6, 2e-6)
    cross_entropy(library, BF16, 4e-3, 8e-3)
    products(library, F32, 1e-6)
    products(library, BF16, 4e-3)
    rope(library, 4e-7)
    dlpack(library)
    strides(library)
    try:
        library.call('rms_norm_forward', RmsNorm)
        sys.exit('check.py: a call without tensors was accepted')
    except RuntimeError as e:
        assert str(e) == 'tigon: rms_norm_forward: x is left out; expected a tensor', e
    library.c.tigon_context_destroy.argtypes = [ctypes.c_void_p]
    library.c.tigon_context_destroy(library.context)
    return 0


if __name__ == '__main__':
    sys.exit(main())
