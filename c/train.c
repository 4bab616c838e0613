/* A Llama of one layer, trained for two steps through tigon's C interface, in f32 and in bf16.
 *
 *   c_api_train            trains; every parameter's gradient is compared with differences of the loss
 *   c_api_train refuses    what the interface refuses, by status and sentence
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tigon_c.h"

enum { batch = 2, tokens = 12, rows = batch * tokens, vocab = 67, hidden = 32, heads = 4, kv_heads = 2, head_dim = 8 };
enum { intermediate = 40, parameters = 12 };

#define CALL(call) succeed(call, #call)
static void succeed(int32_t status, const char* call) {
  if (status == TIGON_OK) return;
  fprintf(stderr, "%s: %d, %s\n", call, (int)status, tigon_last_error());
  exit(1);
}

static void* allocate(int64_t count, size_t size) {
  void* memory = calloc((size_t)count, size);
  if (memory == NULL) exit(1);
  return memory;
}

static size_t size_of(tigon_dtype dtype) { return dtype == TIGON_BF16 ? 2 : dtype == TIGON_I64 ? 8 : 4; }

static int64_t count_of(const tigon_tensor* t) {
  int64_t n = 1;
  for (int32_t k = 0; k < t->rank; ++k) n *= t->shape[k];
  return n;
}

static tigon_tensor matrix(tigon_dtype dtype, int64_t m, int64_t n) {
  return tigon_contiguous(allocate(m * n, size_of(dtype)), dtype, 2, m, n, 0, 0);
}
static tigon_tensor vector(tigon_dtype dtype, int64_t n) {
  return tigon_contiguous(allocate(n, size_of(dtype)), dtype, 1, n, 0, 0, 0);
}
/* The columns of a projection's output as heads. */
static tigon_tensor as_heads(const tigon_tensor* projected, int64_t count) {
  return tigon_heads_of_tokens(projected->data, (tigon_dtype)projected->dtype, batch, tokens, count, head_dim);
}

/* Weights in the type of the passes, their f32 masters and moments, and gradients. In f32 w is the master itself. */
struct model {
  tigon_dtype dtype;
  tigon_context* context;
  tigon_tensor w[parameters], master[parameters], g[parameters], m[parameters], v[parameters];
  tigon_tensor ids, target, cos, sin;
  int64_t step;
};
enum { table, norm_1, w_q, w_k, w_v, w_o, norm_2, w_gate, w_up, w_down, norm_3, head };
static const char* const names[parameters] = {"embedding", "norm 1", "w_q",  "w_k",    "w_v",    "w_o",
                                              "norm 2",    "w_gate", "w_up", "w_down", "norm 3", "head"};
static const int shapes[parameters][2] = {{vocab, hidden},
                                          {hidden, 0},
                                          {heads * head_dim, hidden},
                                          {kv_heads * head_dim, hidden},
                                          {kv_heads * head_dim, hidden},
                                          {hidden, heads* head_dim},
                                          {hidden, 0},
                                          {intermediate, hidden},
                                          {intermediate, hidden},
                                          {hidden, intermediate},
                                          {hidden, 0},
                                          {vocab, hidden}};

static float random_number(uint32_t* state) { /* in [-1, 1) */
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static tigon_tensor of_shape(tigon_dtype dtype, const int shape[2]) {
  return shape[1] == 0 ? vector(dtype, shape[0]) : matrix(dtype, shape[0], shape[1]);
}

/* Weights that bf16 holds, so that both types begin alike. */
static struct model make_model(tigon_context* context, tigon_dtype dtype) {
  struct model model;
  uint32_t seed = 1;
  memset(&model, 0, sizeof model);
  model.dtype = dtype;
  model.context = context;
  for (int p = 0; p < parameters; ++p) {
    tigon_tensor rounded = of_shape(TIGON_BF16, shapes[p]);
    float* w;
    model.master[p] = of_shape(TIGON_F32, shapes[p]);
    model.m[p] = of_shape(TIGON_F32, shapes[p]);
    model.v[p] = of_shape(TIGON_F32, shapes[p]);
    model.g[p] = of_shape(dtype, shapes[p]);
    w = model.master[p].data;
    for (int64_t i = 0; i < count_of(&model.master[p]); ++i)
      w[i] = shapes[p][1] == 0 ? 1.0f + 0.1f * random_number(&seed) : 0.4f * random_number(&seed);
    CALL(tigon_convert(&model.master[p], &rounded));
    CALL(tigon_convert(&rounded, &model.master[p]));
    model.w[p] = dtype == TIGON_BF16 ? rounded : model.master[p];
    if (dtype != TIGON_BF16) free(rounded.data);
  }
  /* The next token follows from the token: there is something to learn. i32 for one type, i64 for the other. */
  model.ids = vector(dtype == TIGON_BF16 ? TIGON_I32 : TIGON_I64, rows);
  model.target = model.ids;
  model.target.data = allocate(rows, size_of((tigon_dtype)model.ids.dtype));
  for (int i = 0; i < rows; ++i) {
    const int token = (7 * i + i * i) % vocab, next = i % tokens == tokens - 1 ? -100 : (3 * token + 1) % vocab;
    if (model.ids.dtype == TIGON_I64) {
      ((int64_t*)model.ids.data)[i] = token;
      ((int64_t*)model.target.data)[i] = next;
    } else {
      ((int32_t*)model.ids.data)[i] = token;
      ((int32_t*)model.target.data)[i] = next;
    }
  }
  model.cos = matrix(TIGON_F32, tokens, head_dim / 2);
  model.sin = matrix(TIGON_F32, tokens, head_dim / 2);
  {
    const tigon_rope_tables tables = {.cos = &model.cos, .sin = &model.sin, .theta = 10000};
    CALL(tigon_rope_tables_fill(context, &tables));
  }
  return model;
}

static void linear(struct model* model, const tigon_tensor* x, int weight, const tigon_tensor* y) {
  const tigon_linear l = {.x = x, .w = &model->w[weight], .y = y};
  CALL(tigon_linear_forward(model->context, &l));
}
/* dx is added to where several layers read x. */
static void linear_backward(struct model* model, const tigon_tensor* dy, const tigon_tensor* x, int weight,
                            const tigon_tensor* dx, int accumulate) {
  const tigon_linear l = {
      .x = x, .w = &model->w[weight], .dy = dy, .dx = dx, .dw = &model->g[weight], .accumulate_dx = accumulate};
  CALL(tigon_linear_backward(model->context, &l));
}

/* The loss, and the gradients of all parameters where they are wanted. */
static float pass(struct model* model, int backward) {
  const tigon_dtype t = model->dtype;
  tigon_context* const context = model->context;
  float loss_value = 0;
  const tigon_tensor loss = tigon_contiguous(&loss_value, TIGON_F32, 0, 0, 0, 0, 0);
  enum { wide = heads * head_dim, narrow = kv_heads * head_dim };
  tigon_tensor a[24];
  int used = 0;
#define NEW(m, n) (a[used] = matrix(t, m, n), a[used++])
  const tigon_tensor x = NEW(rows, hidden), n1 = NEW(rows, hidden), q = NEW(rows, wide), k = NEW(rows, narrow),
                     v = NEW(rows, narrow), o = NEW(rows, wide), mixed = NEW(rows, hidden), s = NEW(rows, hidden),
                     n2 = NEW(rows, hidden), gate = NEW(rows, intermediate), up = NEW(rows, intermediate),
                     y = NEW(rows, intermediate), down = NEW(rows, hidden), s2 = NEW(rows, hidden),
                     n3 = NEW(rows, hidden), dn = NEW(rows, hidden), ds = NEW(rows, hidden),
                     dy = NEW(rows, intermediate), d_o = NEW(rows, wide), dq = NEW(rows, wide), dk = NEW(rows, narrow),
                     dv = NEW(rows, narrow);
#undef NEW
  const tigon_tensor rstd_1 = vector(TIGON_F32, rows), rstd_2 = vector(TIGON_F32, rows),
                     rstd_3 = vector(TIGON_F32, rows), lse = vector(TIGON_F32, heads * rows);
  const tigon_tensor q_heads = as_heads(&q, heads), k_heads = as_heads(&k, kv_heads), v_heads = as_heads(&v, kv_heads),
                     o_heads = as_heads(&o, heads), d_o_heads = as_heads(&d_o, heads), dq_heads = as_heads(&dq, heads),
                     dk_heads = as_heads(&dk, kv_heads), dv_heads = as_heads(&dv, kv_heads);

  tigon_embedding embedding = {.weight = &model->w[table], .ids = &model->ids, .y = &x};
  tigon_rms_norm first = {.x = &x, .w = &model->w[norm_1], .y = &n1, .rstd = &rstd_1, .eps = 1e-5};
  tigon_rope rope = {
      .q = &q_heads, .k = &k_heads, .cos = &model->cos, .sin = &model->sin, .q_out = &q_heads, .k_out = &k_heads};
  tigon_attention attention = {.q = &q_heads, .k = &k_heads, .v = &v_heads, .o = &o_heads, .lse = &lse};
  tigon_fused_add_rms_norm second = {
      .x = &mixed, .r = &x, .w = &model->w[norm_2], .s = &s, .y = &n2, .rstd = &rstd_2, .eps = 1e-5};
  tigon_swiglu swiglu = {.gate = &gate, .up = &up, .y = &y};
  tigon_fused_add_rms_norm third = {
      .x = &down, .r = &s, .w = &model->w[norm_3], .s = &s2, .y = &n3, .rstd = &rstd_3, .eps = 1e-5};
  tigon_fused_linear_cross_entropy last = {.x = &n3, .w = &model->w[head], .target = &model->target, .loss = &loss};

  CALL(tigon_embedding_forward(context, &embedding));
  CALL(tigon_rms_norm_forward(context, &first));
  linear(model, &n1, w_q, &q);
  linear(model, &n1, w_k, &k);
  linear(model, &n1, w_v, &v);
  CALL(tigon_rope_forward(context, &rope));
  CALL(tigon_attention_forward(context, &attention));
  linear(model, &o, w_o, &mixed);
  CALL(tigon_fused_add_rms_norm_forward(context, &second));
  linear(model, &n2, w_gate, &gate);
  linear(model, &n2, w_up, &up);
  CALL(tigon_swiglu_forward(context, &swiglu));
  linear(model, &y, w_down, &down);
  CALL(tigon_fused_add_rms_norm_forward(context, &third));
  if (backward) last.dx = &dn, last.dw = &model->g[head]; /* made with the loss */
  CALL(tigon_fused_linear_cross_entropy_forward(context, &last));

  if (backward) {
    third.dy = &dn, third.dx = &ds, third.dw = &model->g[norm_3]; /* nothing else reads s2 */
    CALL(tigon_fused_add_rms_norm_backward(context, &third));
    linear_backward(model, &ds, &y, w_down, &dy, 0);
    swiglu.dy = &dy, swiglu.dgate = &gate, swiglu.dup = &up; /* in place */
    CALL(tigon_swiglu_backward(context, &swiglu));
    linear_backward(model, &gate, &n2, w_gate, &dn, 0);
    linear_backward(model, &up, &n2, w_up, &dn, 1);
    second.dy = &dn, second.ds = &ds, second.dx = &ds, second.dw = &model->g[norm_2];
    CALL(tigon_fused_add_rms_norm_backward(context, &second));
    linear_backward(model, &ds, &o, w_o, &d_o, 0);
    attention.d_o = &d_o_heads, attention.dq = &dq_heads, attention.dk = &dk_heads, attention.dv = &dv_heads;
    CALL(tigon_attention_backward(context, &attention));
    rope.q = rope.q_out = &dq_heads, rope.k = rope.k_out = &dk_heads;
    CALL(tigon_rope_backward(context, &rope));
    linear_backward(model, &dq, &n1, w_q, &dn, 0);
    linear_backward(model, &dk, &n1, w_k, &dn, 1);
    linear_backward(model, &dv, &n1, w_v, &dn, 1);
    { /* the first norm's gradient, and that of the residual beside it, in one pass */
      const tigon_fused_add_rms_norm both = {
          .s = &x, .w = &model->w[norm_1], .rstd = &rstd_1, .dy = &dn, .ds = &ds, .dx = &ds, .dw = &model->g[norm_1]};
      CALL(tigon_fused_add_rms_norm_backward(context, &both));
    }
    embedding.dy = &ds, embedding.dweight = &model->g[table];
    CALL(tigon_embedding_backward(context, &embedding));
  }
  for (int i = 0; i < used; ++i) free(a[i].data);
  free(rstd_1.data), free(rstd_2.data), free(rstd_3.data), free(lse.data);
  return loss_value;
}

static double optimize(struct model* model) {
  tigon_parameter list[parameters];
  tigon_adamw adamw = {.parameters = list,
                       .count = parameters,
                       .learning_rate = 1e-2,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .weight_decay = 0.01,
                       .max_norm = 1,
                       .step = ++model->step};
  double norm = 0;
  for (int p = 0; p < parameters; ++p) {
    const tigon_parameter one = {.w = &model->master[p],
                                 .g = &model->g[p],
                                 .m = &model->m[p],
                                 .v = &model->v[p],
                                 .rounded = model->dtype == TIGON_BF16 ? &model->w[p] : NULL,
                                 .decay = shapes[p][1] == 0 ? 0 : 1};
    list[p] = one;
  }
  CALL(tigon_adamw_step(model->context, &adamw, &norm));
  return norm;
}

static void free_model(struct model* model) {
  for (int p = 0; p < parameters; ++p) {
    if (model->dtype == TIGON_BF16) free(model->w[p].data);
    free(model->master[p].data), free(model->g[p].data), free(model->m[p].data), free(model->v[p].data);
  }
  free(model->ids.data), free(model->target.data), free(model->cos.data), free(model->sin.data);
}

static int failures = 0;
static void check(int holds, const char* what) {
  if (holds) return;
  printf("WRONG: %s\n", what);
  ++failures;
}

/* Of every parameter, the weight with the largest gradient, against the central difference of the loss. */
static void check_gradients(struct model* model) {
  pass(model, 1);
  for (int p = 0; p < parameters; ++p) {
    const float* g = model->g[p].data;
    float* w = model->master[p].data;
    int64_t at = 0;
    for (int64_t i = 1; i < count_of(&model->g[p]); ++i)
      if (fabsf(g[i]) > fabsf(g[at])) at = i;
    const float was = w[at], step = 0.02f;
    w[at] = was + step;
    const double above = pass(model, 0);
    w[at] = was - step;
    const double below = pass(model, 0);
    w[at] = was;
    const double difference = (above - below) / (2 * (double)step), gradient = g[at];
    printf("%-10s gradient %9.6f, difference %9.6f\n", names[p], gradient, difference);
    /* The loss is exact to some 1e-6, over 0.04; the difference is off by 7e-5 of the third derivative. */
    check(fabs(gradient) > 5e-3, "a gradient is too small to be compared");
    check(fabs(difference - gradient) < 0.005 * fabs(gradient) + 1e-4, "a gradient differs from the loss");
  }
}

/* The gradients of two models, apart from each other in the norm of the second. */
static double distance(const tigon_tensor* a, const tigon_tensor* b) {
  const int64_t n = count_of(a);
  const tigon_tensor x = vector(TIGON_F32, n), y = vector(TIGON_F32, n);
  const tigon_tensor flat_a = tigon_contiguous(a->data, (tigon_dtype)a->dtype, 1, n, 0, 0, 0);
  const tigon_tensor flat_b = tigon_contiguous(b->data, (tigon_dtype)b->dtype, 1, n, 0, 0, 0);
  double apart = 0, norm = 0;
  CALL(tigon_convert(&flat_a, &x));
  CALL(tigon_convert(&flat_b, &y));
  for (int64_t i = 0; i < n; ++i) {
    const double u = ((float*)x.data)[i], v = ((float*)y.data)[i];
    apart += (u - v) * (u - v);
    norm += v * v;
  }
  free(x.data), free(y.data);
  return sqrt(apart / norm);
}

static void train(struct model* model, const char* name) {
  float losses[3];
  double norms[2];
  for (int step = 0; step < 2; ++step) {
    losses[step] = pass(model, 1);
    norms[step] = optimize(model);
  }
  losses[2] = pass(model, 0);
  printf("%s: loss %.4f -> %.4f -> %.4f, norm of the gradients %.3f, %.3f\n", name, (double)losses[0],
         (double)losses[1], (double)losses[2], norms[0], norms[1]);
  check(losses[1] < losses[0] && losses[2] < losses[1] && losses[0] > 3 && losses[0] < 12, "the loss does not fall");
  check(norms[0] > 0 && norms[0] < 100, "the norm of the gradients");
}

static int train_both(void) {
  tigon_context *one = NULL, *two = NULL;
  CALL(tigon_context_create(&one, 1));
  CALL(tigon_context_create(&two, 2));
  struct model f32 = make_model(one, TIGON_F32), bf16 = make_model(one, TIGON_BF16), again = make_model(two, TIGON_F32);

  check_gradients(&f32);
  pass(&bf16, 1);
  pass(&again, 1);
  for (int p = 0; p < parameters; ++p) {
    const double apart = distance(&bf16.g[p], &f32.g[p]);
    if (!(apart < 0.05)) printf("%s: bf16 is %.3f from f32\n", names[p], apart);
    check(apart < 0.05, "a gradient in bf16 is not that in f32");
    check(memcmp(f32.g[p].data, again.g[p].data, sizeof(float) * (size_t)count_of(&f32.g[p])) == 0,
          "two threads make other bits than one");
  }
  train(&f32, "f32 ");
  train(&bf16, "bf16");
  check(tigon_context_threads(two) == 2 && tigon_context_scratch_bytes(one) > 0, "what a context says of itself");

  free_model(&f32), free_model(&bf16), free_model(&again);
  tigon_context_destroy(one);
  tigon_context_destroy(two);
  return failures != 0;
}

static void refused(int32_t status, tigon_status expected, const char* sentence) {
  if (status == (int32_t)expected && strstr(tigon_last_error(), sentence) != NULL) return;
  printf("WRONG: %d, \"%s\"; expected %d, \"%s\"\n", (int)status, tigon_last_error(), (int)expected, sentence);
  ++failures;
}

static int refuse_all(void) {
  tigon_context* context = NULL;
  float x_data[6] = {1, 2, 3, 4, 5, 6}, y_data[6] = {7, 7, 7, 7, 7, 7}, w_data[3] = {1, 1, 1}, rstd_data[2];
  tigon_tensor x = tigon_contiguous(x_data, TIGON_F32, 2, 2, 3, 0, 0), y = x, rstd, w, bad;
  tigon_rms_norm norm = {.x = &x, .w = &w, .y = &y, .rstd = &rstd, .eps = 1e-5};
  check(tigon_abi_version() == TIGON_ABI_VERSION, "the version of the interface");
  check(*tigon_last_error() == 0, "a sentence before anything failed");
  refused(tigon_context_create(NULL, 1), TIGON_ERROR_SHAPE, "tigon: context_create: context is a null pointer");
  refused(tigon_context_create(&context, -1), TIGON_ERROR_ARGUMENT, "threads is -1; expected at least 0");
  CALL(tigon_context_create(&context, 0));
  check(tigon_context_threads(context) >= 1, "a thread for every processor");
  y.data = y_data;
  w = tigon_contiguous(w_data, TIGON_F32, 1, 3, 0, 0, 0);
  rstd = tigon_contiguous(rstd_data, TIGON_F32, 1, 2, 0, 0, 0);

  refused(tigon_rms_norm_forward(NULL, &norm), TIGON_ERROR_SHAPE, "tigon: rms_norm_forward: context is a null pointer");
  refused(tigon_rms_norm_forward(context, NULL), TIGON_ERROR_SHAPE, "arguments is a null pointer");
  norm.y = NULL;
  refused(tigon_rms_norm_forward(context, &norm), TIGON_ERROR_SHAPE, "y is left out; expected a tensor");
#define WITH(field, original, ...)              \
  bad = original, bad.__VA_ARGS__, norm.y = &y; \
  norm.field = &bad;                            \
  refused(tigon_rms_norm_forward(context, &norm)
  WITH(x, x, dtype = TIGON_I32), TIGON_ERROR_DTYPE, "tigon: rms_norm_forward: x is of dtype i32; expected f32 or bf16");
  WITH(x, x, dtype = 0), TIGON_ERROR_DTYPE, "x is of dtype number 0");
  WITH(x, x, rank = 5), TIGON_ERROR_SHAPE, "x is of rank 5; expected from 0 to 4");
  WITH(x, x, rank = 1), TIGON_ERROR_SHAPE, "x is of rank 1; expected at least 2");
  WITH(x, x, data = NULL), TIGON_ERROR_SHAPE, "x is a null pointer; expected elements of shape [2, 3]");
  WITH(x, x, strides[1] = 2), TIGON_ERROR_STRIDE, "x is of stride 2 along axis 1; expected 1");
  WITH(x, x, strides[1] = 0), TIGON_ERROR_STRIDE, "x is of stride 0 along axis 1; expected 1");
  WITH(x, x, strides[0] = -3), TIGON_ERROR_STRIDE, "x is of stride -3 along axis 0; expected at least 0");
  WITH(x, x, strides[0] = 2), TIGON_ERROR_STRIDE, "x is of stride 2 along axis 0; expected at least its 3 columns");
  WITH(x, x, strides[0] = bad.strides[1] = 0), TIGON_ERROR_STRIDE, "x is of strides that are all 0; expected those");
  WITH(x, x, shape[0] = -2), TIGON_ERROR_SHAPE, "of shape [-2, 3]");
  WITH(x, x, data = (char*)x_data + 1), TIGON_ERROR_ARGUMENT, "no multiple of 4");
  norm.x = &x;
  WITH(w, w, dtype = TIGON_BF16), TIGON_ERROR_DTYPE, "w is of dtype bf16; expected f32");
  WITH(w, w, shape[0] = 2), TIGON_ERROR_SHAPE, "tigon: rms_norm_forward: w is of 2 elements; expected 3");
  norm.w = &w;
  WITH(y, y, data = x_data), TIGON_ERROR_ALIAS, "y overlaps x");
  WITH(y, y, strides[0] = 0), TIGON_ERROR_STRIDE, "y is of stride 0 along axis 0; expected at least its 3 columns");
#undef WITH
  norm.y = &y;
  norm.casting = 7;
  refused(tigon_rms_norm_forward(context, &norm), TIGON_ERROR_ARGUMENT, "casting is 7; expected from 0 to 1");
  norm.casting = TIGON_CASTING_GEMMA;
  norm.eps = -1;
  refused(tigon_rms_norm_forward(context, &norm), TIGON_ERROR_ARGUMENT, "eps is -1");
  for (int i = 0; i < 6; ++i) check(y_data[i] == 7.0f, "a refused call wrote");
  norm.eps = 1e-5;
  CALL(tigon_rms_norm_forward(context, &norm));
  check(y_data[0] != 7.0f, "a call that is not refused writes");

  {
    int32_t id_data[2] = {1, 9};
    const tigon_tensor ids = tigon_contiguous(id_data, TIGON_I32, 1, 2, 0, 0, 0);
    float out_data[6];
    const tigon_tensor out = tigon_contiguous(out_data, TIGON_F32, 2, 2, 3, 0, 0);
    const tigon_embedding lookup = {.weight = &x, .ids = &ids, .y = &out};
    const tigon_embedding wrong = {.weight = &x, .ids = &w, .y = &out};
    const tigon_linear product = {.x = &x, .w = &x, .y = &out};
    refused(tigon_embedding_forward(context, &lookup), TIGON_ERROR_INDEX,
            "ids[1] is 9; expected at least 0 and below 2");
    refused(tigon_embedding_forward(context, &wrong), TIGON_ERROR_DTYPE, "ids is of dtype f32; expected i32 or i64");
    refused(tigon_linear_forward(context, &product), TIGON_ERROR_SHAPE, "linear_forward: y is 2 x 3; expected 2 x 2");
    refused(tigon_convert(&x, &w), TIGON_ERROR_SHAPE, "to is of 3 elements; expected 6");
    refused(tigon_tensor_from_dlpack(NULL, &bad), TIGON_ERROR_SHAPE, "dl_tensor is a null pointer");
  }
  {
    const tigon_adamw none = {.count = 1, .step = 1};
    tigon_parameter p = {.w = &w, .g = &w, .m = &w, .v = &w, .decay = 1};
    const tigon_adamw same = {.parameters = &p, .count = 1, .step = 1};
    refused(tigon_adamw_step(context, &none, NULL), TIGON_ERROR_SHAPE, "parameters is 1 without a list");
    refused(tigon_adamw_step(context, &same, NULL), TIGON_ERROR_ALIAS, "overlaps");
  }
  tigon_context_destroy(context);
  tigon_context_destroy(NULL);
  if (failures == 0) printf("every refusal has its status and its sentence\n");
  return failures != 0;
}

int main(int argc, char** argv) {
  if (*tigon_instruction_set() == 0) {
    printf("skipped: %s\n", tigon_last_error());
    return 77;
  }
  if (argc == 2 && strcmp(argv[1], "refuses") == 0) return refuse_all();
  printf("tigon %s, %s\n", tigon_version(), tigon_instruction_set());
  return train_both();
}
