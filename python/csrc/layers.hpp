// A linear layer in front of a loss, and its gradients, as operators take and return them.
#ifndef TIGON_TORCH_LAYERS_HPP
#define TIGON_TORCH_LAYERS_HPP

#include "tensors.hpp"

namespace tigon_torch {

/// x [..., hidden], w [vocab, hidden]; all of one type. A bias of another type is converted.
struct layer_arguments {
  Tensor x, w;
  maybe bias;
  linear_layer layer;
};
layer_arguments layer_of(const char* op, Tensor x, Tensor w, maybe bias);

/// Memory for the gradients that are wanted.
struct made_gradients {
  Tensor dx, dw, db;
  linear_gradients to;

  made_gradients(const layer_arguments& a, bool need_dx, bool need_dw, bool need_db);
  /// In the type of the bias.
  Tensor bias_gradient(const maybe& bias) const;
};

/// Ids or labels in i64, contiguous.
void make_ids(const char* op, const char* name, Tensor& ids);
/// A label for every row of x, in its shape.
vector labels_of(const char* op, const char* name, Tensor& labels, const Tensor& x);
/// The gradient of a loss in the type of the sums: a number, or one an element.
vector upstream_of(Tensor& upstream, const Tensor& x);

}  // namespace tigon_torch

#endif  // TIGON_TORCH_LAYERS_HPP
