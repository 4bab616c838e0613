/* tigon's operators of a Llama training step, for C and for every language that calls C.
 *
 *   tigon_context* context = NULL;
 *   if (tigon_context_create(&context, 0) != TIGON_OK) die(tigon_last_error());
 *   tigon_tensor x = tigon_contiguous(x_data, TIGON_F32, 2, tokens, hidden, 0, 0);      (y, w, rstd alike)
 *   tigon_rms_norm norm = {.x = &x, .w = &w, .y = &y, .rstd = &rstd, .eps = 1e-5};
 *   if (tigon_rms_norm_forward(context, &norm) != TIGON_OK) die(tigon_last_error());
 *
 * Memory     The caller owns every buffer. Scratch belongs to the context, and grows to what the largest call needs.
 * Calls      Each operator has one struct with its arguments, for forward and backward. Fields that a call does not
 *            read may be left out, which in C is zero; a null pointer to a tensor means that it is not there. Where 0
 *            would be a surprising default, the comment says what 0 means.
 * Errors     Every function that can fail returns TIGON_OK or another tigon_status, and leaves a sentence in
 *            tigon_last_error(). A call that fails with one of the first eight codes has written nothing. No exception
 *            leaves the library.
 * Types      Tensors are f32 or bf16, the same for all tensors of a call but those that are said to be f32 or integers.
 *            Token ids and labels are i32 or i64. Sums are made in f32 whatever the type.
 * Formulas   The contract of an operator - formula, edge cases, maximum error - is in the C++ header of its name.
 * Threads    A context has its own; one call at a time per context, any number of contexts. Results are the same bits
 *            for any number of threads.
 *
 * C99, and C++ by extern "C". The library is compiled for several instruction sets and chooses one at its first call;
 * the environment variable TIGON_INSTRUCTION_SET forces one.
 */
#ifndef TIGON_C_H
#define TIGON_C_H

#include <stdint.h>

#if defined(__GNUC__)
#define TIGON_API __attribute__((visibility("default")))
#else
#define TIGON_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. Another number in the library: structs or functions differ, do not call anything else. */
#define TIGON_ABI_VERSION 2
TIGON_API int32_t tigon_abi_version(void);
/* Of tigon, as "0.2.0". */
TIGON_API const char* tigon_version(void);
/* The instruction set that was chosen, as "x86-64-v3"; an empty string where this CPU has none of those compiled. */
TIGON_API const char* tigon_instruction_set(void);

typedef enum tigon_status {
  TIGON_OK = 0,
  TIGON_ERROR_SHAPE = 1,     /* extents that do not fit together, a rank, a null pointer */
  TIGON_ERROR_DTYPE = 2,     /* a type where another one is expected */
  TIGON_ERROR_STRIDE = 3,    /* strides that the operator cannot work on */
  TIGON_ERROR_ALIAS = 4,     /* buffers that overlap */
  TIGON_ERROR_ARGUMENT = 5,  /* a number out of its range */
  TIGON_ERROR_INDEX = 6,     /* a token or a label that points outside */
  TIGON_ERROR_STATE = 7,     /* a call in the wrong order */
  TIGON_ERROR_WORKSPACE = 8, /* no memory for scratch */
  TIGON_ERROR_MEMORY = 9,    /* no memory for the library's own lists */
  TIGON_ERROR_SYSTEM = 10,   /* threads that do not start, an instruction set that the CPU lacks */
  TIGON_ERROR_INTERNAL = 11  /* anything else */
} tigon_status;

/* The sentence of the last call that failed on this thread; an empty string before there was one. Valid until the next
 * failure on this thread; at most 1023 characters. */
TIGON_API const char* tigon_last_error(void);

/* A pool of threads and scratch memory. threads: 0 for as many as this process has processors. */
typedef struct tigon_context tigon_context;
TIGON_API int32_t tigon_context_create(tigon_context** context, int64_t threads);
TIGON_API void tigon_context_destroy(tigon_context* context); /* a null pointer is accepted */
TIGON_API int64_t tigon_context_threads(const tigon_context* context);
/* The most bytes of scratch that a call has had in use so far. */
TIGON_API int64_t tigon_context_scratch_bytes(const tigon_context* context);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

typedef enum tigon_dtype { TIGON_F32 = 1, TIGON_BF16 = 2, TIGON_I32 = 3, TIGON_I64 = 4 } tigon_dtype;
#define TIGON_MAX_RANK 4

/* Strides are counted in elements; that of the innermost axis is 1, and those of axes of one element are not read. A
 * matrix may have gaps between its rows, and may have more than two axes: all but the last one are its rows. Heads of
 * attention are [batch, heads, tokens, head_dim] with any strides: those of a projection's output [batch, tokens, heads,
 * head_dim] are {tokens * heads * head_dim, head_dim, heads * head_dim, 1}. Weights, labels and saved values have no
 * gaps. A stride of 0 repeats one row, head or sequence in what is only read, as expanded tensors do; in what is written it
 * is refused, and so are negative strides: TIGON_ERROR_STRIDE. */
typedef struct tigon_tensor {
  void* data;
  int32_t dtype; /* tigon_dtype */
  int32_t rank;
  int64_t shape[TIGON_MAX_RANK];
  int64_t strides[TIGON_MAX_RANK];
} tigon_tensor;

/* A tensor without gaps; extents from `rank` on are not read. */
static inline tigon_tensor tigon_contiguous(void* data, tigon_dtype dtype, int32_t rank, int64_t n0, int64_t n1,
                                            int64_t n2, int64_t n3) {
  tigon_tensor t = {0, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}};
  t.data = data;
  t.dtype = (int32_t)dtype;
  t.rank = rank;
  t.shape[0] = n0;
  t.shape[1] = n1;
  t.shape[2] = n2;
  t.shape[3] = n3;
  for (int32_t k = rank - 1; k >= 0 && rank <= TIGON_MAX_RANK; --k)
    t.strides[k] = k == rank - 1 || t.shape[k + 1] == 0 ? 1 : t.strides[k + 1] * t.shape[k + 1];
  return t;
}

/* The heads of a projection's output, which lies as [batch, tokens, heads, head_dim]. */
static inline tigon_tensor tigon_heads_of_tokens(void* data, tigon_dtype dtype, int64_t batch, int64_t tokens,
                                                 int64_t heads, int64_t head_dim) {
  tigon_tensor t = tigon_contiguous(data, dtype, 4, batch, heads, tokens, head_dim);
  t.strides[0] = tokens * heads * head_dim;
  t.strides[1] = head_dim;
  t.strides[2] = heads * head_dim;
  t.strides[3] = 1;
  return t;
}

/* `dl_tensor` points to a DLTensor of DLPack (of a DLManagedTensor: its member dl_tensor) of up to four axes. The
 * tensor points to the same memory. Refused: other devices than the CPU, other types, more than one lane. */
TIGON_API int32_t tigon_tensor_from_dlpack(const void* dl_tensor, tigon_tensor* tensor);

/* to = from, of the same extents, each f32 or bf16, without gaps; rounded to nearest. */
TIGON_API int32_t tigon_convert(const tigon_tensor* from, const tigon_tensor* to);

/* ---- operators: y and gradients -------------------------------------------------------------------------------- */

/* y[i] = weight[ids[i]];   dweight[v] = sum of dy[i] over ids[i] = v */
typedef struct tigon_embedding {
  const tigon_tensor *weight, *ids, *y; /* forward: [vocab, cols], [rows], [rows, cols] */
  const tigon_tensor *dy, *dweight;     /* backward, with ids */
  int32_t accumulate;                   /* 1: added to dweight */
} tigon_embedding;
TIGON_API int32_t tigon_embedding_forward(tigon_context* context, const tigon_embedding* arguments);
TIGON_API int32_t tigon_embedding_backward(tigon_context* context, const tigon_embedding* arguments);

typedef enum tigon_casting {
  TIGON_CASTING_LLAMA = 0, /* the normalised row is rounded, then multiplied by the weight */
  TIGON_CASTING_GEMMA = 1  /* one rounding, at y */
} tigon_casting;

/* rstd = 1 / sqrt(mean x^2 + eps),   y = x rstd (offset + w) */
typedef struct tigon_rms_norm {
  const tigon_tensor *x, *w, *y, *rstd; /* forward: [rows, cols], [cols], [rows, cols], f32 [rows]. backward: not y */
  const tigon_tensor *dy, *dx, *dw;     /* backward; dw may be left out. dx may be dy or x */
  double eps, offset;                   /* eps 0: none. offset 1 for checkpoints that store w - 1 */
  int32_t casting;                      /* tigon_casting */
  int32_t accumulate;                   /* 1: added to dw */
} tigon_rms_norm;
TIGON_API int32_t tigon_rms_norm_forward(tigon_context* context, const tigon_rms_norm* arguments);
TIGON_API int32_t tigon_rms_norm_backward(tigon_context* context, const tigon_rms_norm* arguments);

/* s = x + r,   y = rms_norm(s);   dx, of x and of r alike, is the gradient through the norm plus ds */
typedef struct tigon_fused_add_rms_norm {
  const tigon_tensor *x, *r, *w, *s, *y, *rstd; /* forward; s may be x or r. backward: s, w, rstd */
  const tigon_tensor *dy, *ds, *dx, *dw;        /* backward; dy, ds or dw may be left out. dx may be dy or ds */
  double eps, offset;
  int32_t casting, accumulate;
} tigon_fused_add_rms_norm;
TIGON_API int32_t tigon_fused_add_rms_norm_forward(tigon_context* context, const tigon_fused_add_rms_norm* arguments);
TIGON_API int32_t tigon_fused_add_rms_norm_backward(tigon_context* context, const tigon_fused_add_rms_norm* arguments);

/* Tables of rope, f32 [positions, head_dim / 2]:   cos(p f_j), sin(p f_j),   f_j = theta^(-2j / head_dim) */
typedef struct tigon_rope_tables {
  const tigon_tensor *cos, *sin;
  double theta;           /* 10000 for Llama 2, 500000 for Llama 3 */
  int64_t first_position; /* of the first row */
} tigon_rope_tables;
TIGON_API int32_t tigon_rope_tables_fill(tigon_context* context, const tigon_rope_tables* arguments);

typedef enum tigon_rope_pairs {
  TIGON_ROPE_HALVES = 0,    /* columns j and j + d/2: Hugging Face's Llama */
  TIGON_ROPE_NEIGHBOURS = 1 /* columns 2j and 2j + 1 */
} tigon_rope_pairs;

/* Rotates pairs of columns of every head by the angles of their position. backward: q and k are the gradients of the
 * rotated heads, q_out and k_out those of the heads before. */
typedef struct tigon_rope {
  const tigon_tensor *q, *k;         /* heads; k may be left out */
  const tigon_tensor *cos, *sin;     /* f32 [tokens, rotary_dim / 2], or [batch * tokens, ...] */
  const tigon_tensor *q_out, *k_out; /* may be q and k */
  int64_t rotary_dim;                /* 0: all columns of a head */
  int32_t pairs;                     /* tigon_rope_pairs */
} tigon_rope;
TIGON_API int32_t tigon_rope_forward(tigon_context* context, const tigon_rope* arguments);
TIGON_API int32_t tigon_rope_backward(tigon_context* context, const tigon_rope* arguments);

typedef enum tigon_attention_mask { TIGON_MASK_CAUSAL = 0, TIGON_MASK_NONE = 1 } tigon_attention_mask;

/* o = softmax(scale q k^T) v by heads; the heads of q are a multiple of those of k and v */
typedef struct tigon_attention {
  const tigon_tensor *q, *k, *v;          /* heads: [batch, heads, tokens, head_dim]; v may have another head_dim */
  const tigon_tensor *o, *lse;            /* as q, with v's head_dim; f32 [batch, heads, tokens]. backward reads them */
  const tigon_tensor *d_o, *dq, *dk, *dv; /* backward: the gradient of o, and those of q, k and v */
  const tigon_tensor* cumulative_lengths; /* i32: 0 and the ends of packed documents; may be left out */
  double scale, softcap;                  /* 0: 1 / sqrt(head_dim); 0: none */
  int64_t window;                         /* keys that a query sees, its own and those before it; 0: all */
  int64_t offset;                         /* position of the first query among the keys */
  int32_t mask;                           /* tigon_attention_mask */
  const tigon_tensor* key_begins;         /* i32 [batch]: the first key of each batch entry that is no padding */
  const tigon_tensor* key_ends;           /* i32 [batch]: the key behind its last one; either may be left out */
} tigon_attention;
TIGON_API int32_t tigon_attention_forward(tigon_context* context, const tigon_attention* arguments);
TIGON_API int32_t tigon_attention_backward(tigon_context* context, const tigon_attention* arguments);

/* y = silu(gate) up */
typedef struct tigon_swiglu {
  const tigon_tensor *gate, *up, *y;    /* [rows, cols] each; y may be gate or up. backward: not y */
  const tigon_tensor *dy, *dgate, *dup; /* backward; dgate and dup may each be gate, up or dy */
} tigon_swiglu;
TIGON_API int32_t tigon_swiglu_forward(tigon_context* context, const tigon_swiglu* arguments);
TIGON_API int32_t tigon_swiglu_backward(tigon_context* context, const tigon_swiglu* arguments);

/* c = op(a) op(b) + bias, or added to c;   backward: da and db, laid out as a and b, from dc */
typedef struct tigon_gemm {
  const tigon_tensor *a, *b, *c, *bias; /* op(a) [m, k], op(b) [k, n], c [m, n], bias [n], which may be left out */
  const tigon_tensor *dc, *da, *db;     /* backward; da or db may be left out */
  int32_t transpose_a, transpose_b;     /* 1: a is [k, m], b is [n, k] */
  int32_t accumulate;                   /* 1: added to c */
  int32_t accumulate_da, accumulate_db; /* 1: added to da, to db */
} tigon_gemm;
TIGON_API int32_t tigon_gemm_forward(tigon_context* context, const tigon_gemm* arguments);
TIGON_API int32_t tigon_gemm_backward(tigon_context* context, const tigon_gemm* arguments);

/* y = x w^T + bias, with w as PyTorch's Linear keeps it;   dx = dy w,  dw = dy^T x,  dbias = the sum of dy's rows */
typedef struct tigon_linear {
  const tigon_tensor *x, *w, *bias, *y;     /* [rows, in], [out, in], [out] or left out, [rows, out] */
  const tigon_tensor *dy, *dx, *dw, *dbias; /* backward; each gradient may be left out */
  int32_t accumulate_dx, accumulate;        /* 1: added to dx; to dw and dbias */
} tigon_linear;
TIGON_API int32_t tigon_linear_forward(tigon_context* context, const tigon_linear* arguments);
TIGON_API int32_t tigon_linear_backward(tigon_context* context, const tigon_linear* arguments);

typedef enum tigon_reduction {
  TIGON_REDUCTION_MEAN = 0, /* over the labels that are not ignored */
  TIGON_REDUCTION_SUM = 1,
  TIGON_REDUCTION_NONE = 2 /* a loss for every row */
} tigon_reduction;

typedef struct tigon_loss_options {
  int64_t ignore_index; /* read where set_ignore_index is 1; otherwise labels of -100 are ignored */
  int32_t set_ignore_index;
  int32_t reduction;                                 /* tigon_reduction */
  double label_smoothing, lse_square_scale, softcap; /* 0: none */
  double denominator; /* what the mean divides by, for a batch in several calls; 0: it counts */
} tigon_loss_options;

/* The loss of softmax(logits) and labels, with the gradient of the logits in the same call. */
typedef struct tigon_cross_entropy {
  const tigon_tensor *logits, *target; /* [rows, vocab], [rows] */
  const tigon_tensor *loss, *dlogits;  /* f32 [1], or [rows] without reduction; may be left out, or be logits */
  tigon_loss_options options;
} tigon_cross_entropy;
TIGON_API int32_t tigon_cross_entropy_forward(tigon_context* context, const tigon_cross_entropy* arguments);

/* The same of logits x w^T + bias, which never are in memory together. forward makes the loss and the gradients of its
 * mean or sum; backward makes the gradients for an upstream gradient, one number or one for each row. */
typedef struct tigon_fused_linear_cross_entropy {
  const tigon_tensor *x, *w, *bias, *target; /* [rows, hidden], [vocab, hidden], [vocab] or left out, [rows] */
  const tigon_tensor* loss;                  /* forward: f32 [1], or [rows] without reduction */
  const tigon_tensor *dx, *dw, *dbias;       /* each may be left out */
  const tigon_tensor* upstream;              /* backward: f32 [1] or [rows] */
  tigon_loss_options options;
  int32_t accumulate; /* 1: added to dw and dbias */
} tigon_fused_linear_cross_entropy;
TIGON_API int32_t tigon_fused_linear_cross_entropy_forward(tigon_context* context,
                                                           const tigon_fused_linear_cross_entropy* arguments);
TIGON_API int32_t tigon_fused_linear_cross_entropy_backward(tigon_context* context,
                                                            const tigon_fused_linear_cross_entropy* arguments);

/* ---- optimizer --------------------------------------------------------------------------------------------------- */

/* One parameter: tensors of as many elements, without gaps. */
typedef struct tigon_parameter {
  const tigon_tensor* w;       /* f32: the weight, or the master of a bf16 weight */
  const tigon_tensor* g;       /* its gradient, f32 or bf16: one type for all parameters of a call */
  const tigon_tensor *m, *v;   /* f32 moments, zero before the first step */
  const tigon_tensor* rounded; /* bf16: w rounded, for the next pass; where g is bf16, and may be left out */
  double decay;                /* factor on weight_decay: 1, and as a rule 0 for norms and biases */
} tigon_parameter;

typedef struct tigon_adamw {
  const tigon_parameter* parameters;
  int64_t count;
  double learning_rate, beta1, beta2, eps, weight_decay;
  double max_norm;         /* largest norm of all gradients together; 0: they are not clipped */
  double gradient_scale;   /* factor on every gradient, before clipping; 0: 1 */
  int64_t step;            /* of this step, from 1 on */
  int32_t skip_non_finite; /* 1: nothing is written where the norm is not finite */
} tigon_adamw;
/* norm, the norm of all gradients before clipping, may be a null pointer. */
TIGON_API int32_t tigon_adamw_step(tigon_context* context, const tigon_adamw* arguments, double* norm);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TIGON_C_H */
