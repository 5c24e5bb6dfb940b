#include "d9d/internals/grad_sync/bucketed_reduction.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d {
namespace {

// Returns the ranks over which a gradient must be summed; a mesh without axes if there are none.
DeviceMesh partial_axes(const std::string& name, const Parameter& parameter) {
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < parameter.gradient_placements().size(); ++i) {
    const Partial* const partial = std::get_if<Partial>(&parameter.gradient_placements()[i]);
    if (partial == nullptr || parameter.mesh().axes()[i].size == 1) continue;
    D9D_CHECK(partial->op == ReduceOp::kSum, ConfigError,
              "[internals::grad_sync] expected gradients to be summed, got ", to_string(*partial), " for ", name,
              " over axis '", parameter.mesh().axes()[i].name, "'.");
    axes.push_back(parameter.mesh().axes()[i].name);
  }
  return parameter.mesh().slice(axes);
}

}  // namespace

// The gradients of several parameters in one buffer.
class BucketedReduction::Bucket {
 public:
  Bucket(const DeviceMesh& ranks, c10::ScalarType dtype, bool keeps_memory)
      : ranks_(ranks), dtype_(dtype), keeps_memory_(keeps_memory) {}

  [[nodiscard]] bool holds(const DeviceMesh& ranks, c10::ScalarType dtype) const {
    return ranks_ == ranks && dtype_ == dtype;
  }
  [[nodiscard]] std::int64_t num_bytes() const { return numel_ * static_cast<std::int64_t>(elementSize(dtype_)); }

  void add(const std::string& name, const ParameterPtr& parameter) {
    names_.push_back(name);
    parameters_.push_back(parameter);
    numel_ += parameter->local().numel();
  }

  void attach(const std::function<void()>& on_complete) {
    if (ranks_.num_ranks() > 1) communicator_ = ranks_.communicator(Traffic::kGradients);
    has_arrived_.resize(parameters_.size());
    has_values_.resize(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      hooks_.push_back(
          on_gradient(parameters_[i]->local(),
                      {.arrived = [this, i, on_complete](const at::Tensor& leaf) { take(i, leaf, on_complete); },
                       .place = [this, i] { return place(i); }}));
    }
    if (keeps_memory_) allocate();
  }
  // Allocates the buffer on the current stream unless it exists. This happens when the first gradient of the bucket is
  // computed, after most activations have been freed.
  void allocate() {
    if (buffer_.defined()) return;
    buffer_ = at::empty({numel_}, parameters_.front()->local().options().dtype(dtype_));
    // Views are assigned from the end of the buffer, so that memory has the order of declaration, which a GEMM over
    // several weights needs.
    std::int64_t end = numel_;
    for (const ParameterPtr& parameter : parameters_) {
      const at::Tensor& local = parameter->local();
      end -= local.numel();
      views_.push_back(buffer_.narrow(0, end, local.numel()).view(local.sizes()));
    }
  }

  [[nodiscard]] bool is_complete() const { return num_arrived_ == parameters_.size(); }
  void begin_backward() {
    num_arrived_ = 0;
    has_arrived_.assign(parameters_.size(), false);
  }
  [[nodiscard]] bool is_reduced() const { return communicator_ == nullptr && !std::ranges::count(has_values_, false); }
  void reduce() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!has_values_[i]) views_[i].zero_();
    }
    if (communicator_ == nullptr) return;
    is_summed_ = true;
    communicator_->all_reduce(buffer_, ReduceOp::kSum).wait();
  }
  void publish() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->stored().mutable_grad() = views_[i];
  }
  void clear() {
    for (const ParameterPtr& parameter : parameters_) parameter->stored().mutable_grad() = at::Tensor();
    has_values_.assign(parameters_.size(), false);
    is_summed_ = false;
    if (!keeps_memory_) free();
  }
  void free() {
    views_.clear();
    buffer_ = at::Tensor();
  }
  [[nodiscard]] const std::vector<bool>& received() const { return has_values_; }
  void set_received(std::vector<bool> received) { has_values_ = std::move(received); }

 private:
  [[nodiscard]] GradientPlace place(std::size_t index) {
    D9D_CHECK(!is_summed_, StateError,
              "[internals::grad_sync] expected one backward in the last microbatch of a step, "
              "got another gradient of ",
              names_[index], " after the sum over ranks. Add the losses up and call backward() once.");
    allocate();
    const bool had_values = has_values_[index];
    has_values_[index] = true;
    return {.tensor = views_[index], .has_values = had_values};
  }
  void take(std::size_t index, const at::Tensor& leaf, const std::function<void()>& on_complete) {
    const at::NoGradGuard no_grad;
    if (const at::Tensor grad = std::exchange(leaf.mutable_grad(), at::Tensor()); grad.defined()) {
      place(index).put(grad);
    }
    if (!has_arrived_[index]) ++num_arrived_;
    has_arrived_[index] = true;
    if (is_complete()) on_complete();
  }

  DeviceMesh ranks_;
  c10::ScalarType dtype_;
  bool keeps_memory_;
  std::vector<std::string> names_;
  std::vector<ParameterPtr> parameters_;
  std::int64_t numel_ = 0;
  at::Tensor buffer_;                           // [numel_]; undefined: no memory
  std::vector<at::Tensor> views_;               // of the buffer, in the parameters' shapes
  std::shared_ptr<Communicator> communicator_;  // null: one rank
  std::vector<bool> has_values_;                // by parameter: whether its gradient has a value in this step
  std::vector<bool> has_arrived_;               // by parameter: whether its gradient has arrived in this microbatch
  std::size_t num_arrived_ = 0;
  bool is_summed_ = false;                 // whether buffer_ is summed over ranks
  std::vector<GradientHookHandle> hooks_;  // of the parameters; they refer to the members above
};

BucketedReduction::BucketedReduction(const std::vector<std::pair<std::string, ParameterPtr>>& parameters,
                                     const BucketedReductionConfig& config)
    : guard_(parameters) {
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    const auto& [name, parameter] = *entry;
    if (!parameter->requires_grad() || has_flat_shard(parameter->placements())) continue;
    const DeviceMesh ranks = partial_axes(name, *parameter);
    const c10::ScalarType dtype = gradient_dtype_of(parameter->local().scalar_type(), config.gradient_dtype);
    const bool is_ready = ranks.num_ranks() == 1 && dtype == parameter->local().scalar_type();
    if (!config.keeps_memory && is_ready && parameter->stored().is_same(parameter->local())) {
      others_.push_back(parameter);
      continue;
    }
    const std::int64_t bytes = parameter->local().numel() * static_cast<std::int64_t>(elementSize(dtype));
    const auto kind = std::find_if(buckets_.rbegin(), buckets_.rend(),
                                   [&](const auto& bucket) { return bucket->holds(ranks, dtype); });
    if (kind == buckets_.rend() || (*kind)->num_bytes() + bytes > config.bucket_size_bytes) {
      buckets_.push_back(std::make_unique<Bucket>(ranks, dtype, config.keeps_memory));
      buckets_.back()->add(name, parameter);
    } else {
      (*kind)->add(name, parameter);
    }
  }
  if (buckets_.empty()) return;
  const at::Device device = parameters.front().second->local().device();
  stream_.emplace(device);
  for (const auto& bucket : buckets_) {
    bucket->attach([this, runs_beside_backward = !device.is_cpu()] {
      if (pass_.is_last && runs_beside_backward) reduce_ready(/*all=*/false);
    });
  }
}

BucketedReduction::~BucketedReduction() = default;

// Reduces in the order of buckets, so that all ranks agree, whatever the order in which their gradients are computed.
void BucketedReduction::reduce_ready(bool all) {
  while (num_reduced_ < buckets_.size() && (all || buckets_[num_reduced_]->is_complete())) {
    Bucket& bucket = *buckets_[num_reduced_];
    if (!bucket.is_reduced()) {
      bucket.allocate();
      reduced_ = stream_->run([&] { bucket.reduce(); });
    }
    ++num_reduced_;
  }
}

void BucketedReduction::begin_pass(const StagePass& pass) {
  guard_.check();
  pass_ = pass;
  if (pass.kind == StagePassKind::kForward) return;
  for (const auto& bucket : buckets_) bucket->begin_backward();
}

void BucketedReduction::end_pass() {
  if (pass_.is_last) reduce_ready(/*all=*/true);  // including buckets of parameters without a gradient
}

void BucketedReduction::finish() {
  reduced_.wait();
  for (const auto& bucket : buckets_) bucket->publish();
  for (const ParameterPtr& parameter : others_) {
    at::Tensor& grad = parameter->stored().mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter->stored());
  }
}

void BucketedReduction::clear() {
  num_reduced_ = 0;
  for (const auto& bucket : buckets_) bucket->clear();
  for (const ParameterPtr& parameter : others_) parameter->stored().mutable_grad() = at::Tensor();
}

std::vector<bool> BucketedReduction::received() const {
  std::vector<bool> received;
  for (const auto& bucket : buckets_) {
    received.insert(received.end(), bucket->received().begin(), bucket->received().end());
  }
  return received;
}

void BucketedReduction::set_received(const std::vector<bool>& received) {
  auto next = received.begin();
  for (const auto& bucket : buckets_) {
    const auto end = next + std::ssize(bucket->received());
    bucket->set_received({next, end});
    next = end;
  }
}

void BucketedReduction::abandon() {
  reduced_.wait();  // a reduction in flight may still write memory that the next step uses
  clear();
  pass_ = {.is_last = true};
  for (const auto& bucket : buckets_) bucket->begin_backward();
}

void BucketedReduction::close() {
  clear();
  for (const auto& bucket : buckets_) bucket->free();
}

}  // namespace d9d
