// Muon (Keller Jordan, https://kellerjordan.github.io/posts/muon): hidden matrices move along their momentum made
// orthogonal, as with torch.optim.Muon; all other parameters are updated by AdamW.
//
// Example
//   Muon optimizer({{.name = "up.weight", .tensor = up, .role = ParameterRole::kLinear}, {"norm.weight", scale}},
//                  {.lr = 0.02, .adamw = {.lr_factor = 0.02}});
//   loss.backward();
//   optimizer.step(optimizer.learning_rate());
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/optim/config.h"
#include "d9d/optim/matrix_plan.h"
#include "d9d/optim/moments.h"
#include "d9d/optim/newton_schulz.h"
#include "d9d/optim/optimizer_protocol.h"
#include "d9d/optim/parameter_groups.h"

namespace d9d {

// Whether Muon orthogonalises the parameter, unless a group has another rule: a weight of Linear [out, in] or of
// GroupedLinear [groups, in, out], or a matrix without a role.
[[nodiscard]] bool is_hidden_matrix(const NamedParameter& parameter);

// With gradient g, momentum b and m = config.momentum, for each matrix, and for each group of a GroupedLinear alone:
//   b = m b + (1 - m) g
//   u = orthogonalized(nesterov ? m b + (1 - m) g : b)
//   p = (1 - lr weight_decay) p - lr factor(out, in) u
// Matrices of any layout are whole where u is computed: each has one owner among the ranks that hold parts of it, and
// two exchanges of a bucket of parameters bring directions to owners and updates back, beside the products of another
// bucket. Replicas do the same work. Dtypes and errors are those of AdamW (adamw.h); products are rounded to
// config.products_dtype, and directions and updates are exchanged in it.
class Muon {
 public:
  // Collective over the ranks of each parameter's mesh, which have the same parameters in the same order. Allocates all
  // state as zeros. Throws ConfigError as AdamW, and for a group whose rule is "muon" with a parameter of other than
  // two dims that is no GroupedLinear.
  Muon(const std::vector<NamedParameter>& parameters, const MuonConfig& config);

  [[nodiscard]] double learning_rate() const { return config_.lr; }
  [[nodiscard]] std::map<std::string, double> rate_factors() const { return rate_factors_; }

  // As in AdamW, but collective as the constructor.
  void step(double learning_rate);
  void step(double learning_rate, const at::Tensor& grad_scale);
  void forget_step() { detail::forget_step(moments_); }

  // <name>.momentum_buffer of matrices; the state of AdamW (adamw.h) of other parameters.
  [[nodiscard]] std::map<std::string, DTensor> state_dict() const;

 private:
  struct Matrices {
    NamedParameter parameter;
    ParameterOptions options;
    double rate_factor = 1.0;  // of its sizes
    at::Tensor momentum_buffer;
  };
  // Parameters that are exchanged together.
  struct Bucket {
    std::vector<Matrices> matrices = {};
    at::ScalarType dtype = at::kFloat;  // of products
    std::int64_t num_elements = 0;      // of this rank, if all ranks had equally many
    detail::MatrixPlan plan = {};
    std::shared_ptr<Communicator> ranks = nullptr;  // null: this rank has all
  };
  // A bucket within a step: directions, then updates, of what this rank holds and of what it owns.
  struct Flight {
    at::Tensor held;
    at::Tensor owned;
    Work work;
  };

  void add_to_bucket(Matrices matrices);
  void make_plans();
  [[nodiscard]] Flight send_directions(const Bucket& bucket, const at::Tensor& grad_scale) const;
  void orthogonalize(const Bucket& bucket, Flight& flight) const;  // waits for directions, sends updates
  void apply_updates(const Bucket& bucket, Flight& flight, double learning_rate, const at::Tensor& unless_nan) const;

  MuonConfig config_;
  NewtonSchulzOptions newton_schulz_;
  std::vector<Bucket> buckets_;
  std::optional<SideStream> exchanges_;  // none: no matrix is cut
  std::vector<detail::Moments> moments_;
  std::map<std::string, double> rate_factors_;
};

}  // namespace d9d
