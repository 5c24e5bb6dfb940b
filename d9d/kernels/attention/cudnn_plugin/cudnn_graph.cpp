#include "d9d/kernels/attention/cudnn_graph.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <vector>

#include "d9d/kernels/attention/plan_cache.h"

// The cudnn_frontend headers contain engines, for other operations on other GPUs, that compile kernels at run time.
// Without these weak symbols this library would have to link NVRTC.
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize

namespace d9d::kernels::detail {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using fe::graph::Tensor_attributes;

constexpr std::size_t kMaxPlans = 512;  // per direction; bounds the memory if shapes keep changing

std::int64_t uid_of(CudnnTensor tensor) { return static_cast<std::int64_t>(tensor) + 1; }

CudnnStrides contiguous(std::int64_t num_positions, std::int64_t num_heads, std::int64_t num_features) {
  return {
      .sequence = num_positions * num_heads * num_features, .head = num_features, .position = num_heads * num_features};
}

// Builds the graph of a key, with the tensors that the key describes.
class GraphBuilder {
 public:
  explicit GraphBuilder(const CudnnPlanKey& key) : key_(key), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(key.dtype == Dtype::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  [[nodiscard]] std::shared_ptr<Graph> forward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    apply_common(options);
    if (key_.has_sinks) {
      options.set_sink_token(graph_->tensor(
          describe(CudnnTensor::kSinks, {1, key_.num_heads, 1, 1}, {key_.num_heads, 1, 1, 1}, fe::DataType_t::FLOAT)));
    }
    const auto [out, logsumexp] = graph_->sdpa(query(), key(), value(), options);
    fill(out, describe_queries(CudnnTensor::kOut, CudnnTensor::kOutOffsets, contiguous_out()));
    fill(logsumexp, describe_logsumexp());
    return graph_;
  }

  [[nodiscard]] std::shared_ptr<Graph> backward() {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    apply_common(options);
    if (key_.softcap > 0) {
      options.set_score_mod_bprop([softcap = softcap_, cap = key_.softcap](std::shared_ptr<Graph> graph, Tensor grad) {
        return softcap->backward(std::move(graph), std::move(grad), std::make_shared<Tensor_attributes>(cap));
      });
    }
    if (key_.is_packed) options.set_max_total_seq_len_q(key_.num_packed).set_max_total_seq_len_kv(key_.num_packed_keys);
    const auto describe_out = [&](CudnnTensor tensor) {
      return describe_queries(tensor, CudnnTensor::kOutOffsets, key_.out);
    };
    const auto grads = graph_->sdpa_backward(query(), key(), value(), graph_->tensor(describe_out(CudnnTensor::kOut)),
                                             graph_->tensor(describe_out(CudnnTensor::kGradOut)),
                                             graph_->tensor(describe_logsumexp()), options);
    const CudnnStrides grad_key = contiguous(key_.num_keys, key_.num_kv_heads, key_.num_features);
    fill(grads[0], describe_queries(CudnnTensor::kGradQuery, CudnnTensor::kOutOffsets, contiguous_out()));
    fill(grads[1], describe_keys(CudnnTensor::kGradKey, CudnnTensor::kGradKeyOffsets, grad_key));
    fill(grads[2], describe_keys(CudnnTensor::kGradValue, CudnnTensor::kGradKeyOffsets, key_.grad_value));
    return graph_;
  }

 private:
  // Sets the options that must be the same in forward and backward.
  template <class Options>
  void apply_common(Options& options) {
    options.set_attn_scale(key_.scale);
    if (key_.is_packed) {
      lengths_ = lengths_of(CudnnTensor::kLengths);
      key_lengths_ = key_.has_own_keys ? lengths_of(CudnnTensor::kKeyLengths) : lengths_;
      options.set_seq_len_q(lengths_).set_seq_len_kv(key_lengths_);
    }
    if (key_.softcap > 0) {
      options.set_score_mod([this_key = key_, queries = lengths_, keys = key_lengths_, softcap = softcap_](
                                std::shared_ptr<Graph> graph, Tensor scores) {
        return capped_and_masked(this_key, *softcap, queries, keys, graph, std::move(scores));
      });
      return;
    }
    options.set_padding_mask(key_.is_packed);
    if (key_.left < 0 && key_.right < 0) return;
    options.set_diagonal_alignment(alignment(key_));
    if (key_.left >= 0) options.set_diagonal_band_left_bound(static_cast<int>(key_.left + 1));
    if (key_.right >= 0) options.set_diagonal_band_right_bound(static_cast<int>(key_.right));
  }

  static fe::DiagonalAlignment_t alignment(const CudnnPlanKey& key) {
    return key.num_queries == key.num_keys && !key.has_own_keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                                : fe::DiagonalAlignment_t::BOTTOM_RIGHT;
  }

  static Tensor capped_and_masked(const CudnnPlanKey& key, fe::graph::attn::score_modifiers::Softcap& softcap,
                                  const Tensor& queries, const Tensor& keys, const std::shared_ptr<Graph>& graph,
                                  Tensor scores) {
    namespace modifiers = fe::graph::attn::score_modifiers;
    scores = softcap.forward(graph, std::move(scores), std::make_shared<Tensor_attributes>(key.softcap));
    if (key.is_packed) scores = modifiers::padding_mask(graph, std::move(scores), keys, queries);
    if (key.left < 0 && key.right < 0) return scores;
    const auto bound = [](std::int64_t count, std::int64_t own) {
      return count < 0 ? std::nullopt : std::optional<std::int64_t>(count + own);
    };
    return modifiers::sliding_window_mask(graph, std::move(scores), alignment(key), bound(key.left, 1),
                                          bound(key.right, 0), key.num_queries, key.num_keys, queries, keys);
  }

  [[nodiscard]] static Tensor_attributes describe(CudnnTensor tensor, const std::vector<std::int64_t>& dims,
                                                  const std::vector<std::int64_t>& strides, fe::DataType_t type) {
    return Tensor_attributes().set_uid(uid_of(tensor)).set_dim(dims).set_stride(strides).set_data_type(type);
  }

  [[nodiscard]] Tensor_attributes describe_heads(CudnnTensor tensor, CudnnTensor offsets, std::int64_t num_heads,
                                                 std::int64_t num_positions, const CudnnStrides& strides) {
    Tensor_attributes result = Tensor_attributes()
                                   .set_uid(uid_of(tensor))
                                   .set_dim({key_.num_sequences, num_heads, num_positions, key_.num_features})
                                   .set_stride({strides.sequence, strides.head, strides.position, 1});
    if (key_.is_packed) result.set_ragged_offset(offsets_of(offsets));
    return result;
  }
  [[nodiscard]] Tensor_attributes describe_queries(CudnnTensor tensor, CudnnTensor offsets,
                                                   const CudnnStrides& strides) {
    return describe_heads(tensor, offsets, key_.num_heads, key_.num_queries, strides);
  }
  [[nodiscard]] Tensor_attributes describe_keys(CudnnTensor tensor, CudnnTensor offsets, const CudnnStrides& strides) {
    return describe_heads(tensor, offsets, key_.num_kv_heads, key_.num_keys, strides);
  }

  [[nodiscard]] Tensor_attributes describe_logsumexp() {
    const std::int64_t num_heads = key_.num_heads, num_queries = key_.num_queries;
    Tensor_attributes result =
        describe(CudnnTensor::kLogsumexp, {key_.num_sequences, num_heads, num_queries, 1},
                 key_.is_packed ? std::vector<std::int64_t>{num_heads * num_queries, 1, num_heads, 1}
                                : std::vector<std::int64_t>{num_heads * num_queries, num_queries, 1, 1},
                 fe::DataType_t::FLOAT);
    if (key_.is_packed) result.set_ragged_offset(offsets_of(CudnnTensor::kLogsumexpOffsets));
    return result;
  }

  [[nodiscard]] Tensor lengths_of(CudnnTensor tensor) {
    return graph_->tensor(describe(tensor, {key_.num_sequences, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT32));
  }
  [[nodiscard]] Tensor offsets_of(CudnnTensor tensor) {
    Tensor& offsets = offsets_[tensor];
    if (!offsets) {
      offsets =
          graph_->tensor(describe(tensor, {key_.num_sequences + 1, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT64));
    }
    return offsets;
  }

  static void fill(const Tensor& output, Tensor_attributes description) {
    output->set_output(true)
        .set_uid(description.get_uid())
        .set_dim(description.get_dim())
        .set_stride(description.get_stride())
        .set_data_type(description.get_data_type());
    if (description.get_ragged_offset()) output->set_ragged_offset(description.get_ragged_offset());
  }

  [[nodiscard]] CudnnStrides contiguous_out() const {
    return contiguous(key_.num_queries, key_.num_heads, key_.num_features);
  }
  [[nodiscard]] Tensor query() {
    return graph_->tensor(describe_queries(CudnnTensor::kQuery, CudnnTensor::kQueryOffsets, key_.query));
  }
  [[nodiscard]] Tensor key() {
    return graph_->tensor(describe_keys(CudnnTensor::kKey, CudnnTensor::kKeyOffsets, key_.key));
  }
  [[nodiscard]] Tensor value() {
    return graph_->tensor(describe_keys(CudnnTensor::kValue, CudnnTensor::kValueOffsets, key_.value));
  }

  CudnnPlanKey key_;
  std::shared_ptr<Graph> graph_;
  Tensor lengths_;      // of queries
  Tensor key_lengths_;  // the same, unless there are keys of their own
  std::map<CudnnTensor, Tensor> offsets_;
  std::shared_ptr<fe::graph::attn::score_modifiers::Softcap> softcap_ =
      std::make_shared<fe::graph::attn::score_modifiers::Softcap>();
};

// Handles and plans of one direction (forward or backward). A handle is not thread-safe, so the mutex lets one thread
// at a time make or run a plan. Each direction has its own, so that a plan of the backward can be made while forwards
// are launched.
struct Plans {
  std::mutex mutex;
  std::map<int, cudnnHandle_t> handles;
  PlanCache<CudnnPlanKey, CudnnPlan> plans{kMaxPlans};
  std::set<CudnnPlanPtr> captured;  // by CUDA graphs
};

Plans& plans_for(const CudnnPlanKey& key) {
  static auto* const instances = new std::array<Plans, 2>;  // never destroyed: CUDA may be gone by then
  return (*instances)[key.is_backward ? 1 : 0];
}

cudnnHandle_t handle_of(int device, Plans& all) {
  const auto found = all.handles.find(device);
  if (found != all.handles.end()) return found->second;
  cudnnHandle_t handle = nullptr;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return nullptr;
  return all.handles.emplace(device, handle).first->second;
}

CudnnPlan make_plan(const CudnnPlanKey& key, cudnnHandle_t handle) {
  if (handle == nullptr) return {.key = key, .error = "cuDNN does not start"};
  try {
    GraphBuilder builder(key);
    const std::shared_ptr<Graph> graph = key.is_backward ? builder.backward() : builder.forward();
    fe::error_t built = graph->build(handle, {fe::HeurMode_t::A});
    if (built.is_bad()) return {.key = key, .error = built.get_message()};
    return {.key = key, .workspace_bytes = graph->get_workspace_size(), .graph = graph};
  } catch (const std::exception& exception) {
    return {.key = key, .error = exception.what()};
  }
}

CudnnPlanPtr find_plan(const CudnnPlanKey& key) {
  Plans& all = plans_for(key);
  const std::lock_guard lock(all.mutex);
  return all.plans.get(key, [&] { return make_plan(key, handle_of(key.device, all)); });
}

bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive;
}

std::string run(const CudnnPlanPtr& plan, const CudnnPointers& pointers, void* workspace, CUstream_st* stream) {
  if (!plan->graph) return plan->error;
  Plans& all = plans_for(plan->key);
  const std::lock_guard lock(all.mutex);
  if (is_capturing(stream)) all.captured.insert(plan);
  const cudnnHandle_t handle = handle_of(plan->key.device, all);
  if (cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) return "cuDNN does not take the stream";
  std::unordered_map<std::int64_t, void*> tensors;
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (pointers[i] != nullptr) tensors.emplace(uid_of(static_cast<CudnnTensor>(i)), pointers[i]);
  fe::error_t executed = static_cast<Graph*>(plan->graph.get())->execute(handle, tensors, workspace);
  return executed.is_bad() ? executed.get_message() : std::string();
}

// Makes plans in a background thread, one after the other, as the mutex of Plans allows. The destructor joins the
// thread before the libraries that it uses are unloaded, and drops the keys that the thread has not begun.
class Preparation {
 public:
  void add(const CudnnPlanKey& key) {
    {
      const std::lock_guard lock(mutex_);
      if (asked_.size() >= kMaxPlans) asked_.clear();  // harmless: known keys are cached, or at worst made again
      if (!asked_.insert(key).second) return;
      waiting_.push_back(key);
    }
    has_work_.notify_one();
  }

 private:
  void make_plans(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (has_work_.wait(lock, stop, [&] { return !waiting_.empty(); }) && !stop.stop_requested()) {
      const CudnnPlanKey key = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      if (cudaSetDevice(key.device) == cudaSuccess) (void)find_plan(key);  // the plan stores an error
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any has_work_;
  std::set<CudnnPlanKey> asked_;
  std::deque<CudnnPlanKey> waiting_;
  std::jthread thread_{[this](const std::stop_token& stop) { make_plans(stop); }};  // last: uses the members above
};

void prepare(const CudnnPlanKey& key) {
  static Preparation all;  // lint: allow(mutable-global): plans belong to the process
  all.add(key);
}

}  // namespace
}  // namespace d9d::kernels::detail

extern "C" __attribute__((visibility("default"))) d9d::kernels::detail::CudnnGraph d9d_cudnn_graph() {
  return {.plan = d9d::kernels::detail::find_plan,
          .prepare = d9d::kernels::detail::prepare,
          .run = d9d::kernels::detail::run};
}
