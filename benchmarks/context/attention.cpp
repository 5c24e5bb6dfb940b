// Causal attention of one sequence over context-parallel ranks, forward and backward, by each method, beside one rank
// with 1 / W of its pairs: the time of a whole sequence on one rank, divided by W. Then the same of documents of random
// lengths that are packed into the sequence. Markdown; the slowest rank counts.
//
//   context_benchmark benchmarks/context/attention.json [mesh.context_parallel_shard=4]
//
// Legend   W ranks
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/core/device/moment.h"
#include "d9d/core/launch/launch.h"
#include "d9d/parallelism/context/all_gather_attention.h"
#include "d9d/parallelism/context/heads_attention.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/parallelism/context/ring_attention.h"

#include "benchmarks/pipelining/longest_of_ranks.h"

namespace {

struct AttentionConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  std::vector<std::int64_t> positions = {};
  std::int64_t num_heads = 16;
  std::int64_t num_key_value_heads = 8;
  std::int64_t num_features = 128;
  std::vector<std::int64_t> num_documents = {0};  // packed into a sequence; 0: one that is not packed
  std::int64_t num_rounds = 15;
  std::int64_t num_warm_up_rounds = 4;

  static constexpr auto fields() {
    using Config = AttentionConfig;
    using d9d::defaulted;
    return d9d::record<Config>(
        defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
        d9d::required("positions", &Config::positions, d9d::at_least(1)), defaulted("num_heads", &Config::num_heads),
        defaulted("num_key_value_heads", &Config::num_key_value_heads),
        defaulted("num_features", &Config::num_features), defaulted("num_documents", &Config::num_documents),
        defaulted("num_rounds", &Config::num_rounds, d9d::at_least(1)),
        defaulted("num_warm_up_rounds", &Config::num_warm_up_rounds, d9d::at_least(0)));
  }
};

// Documents of a sequence, with the same random bounds on all ranks; none for 0.
std::optional<d9d::PackedSequences> documents_of(std::int64_t length, std::int64_t num_documents, at::Device device) {
  if (num_documents == 0) return std::nullopt;
  std::mt19937 generator(1);
  std::vector<std::int64_t> bounds = {0, length};
  for (std::int64_t i = 1; i < num_documents; ++i) bounds.push_back(static_cast<std::int64_t>(generator()) % length);
  std::ranges::sort(bounds);
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) longest = std::max(longest, bounds[i] - bounds[i - 1]);
  return d9d::PackedSequences{.cu_seqlens = at::tensor(bounds, at::kInt).to(device), .max_length = longest};
}

// Both passes of attention to `num_positions` of its own. packed: of the whole sequence.
struct Problem {
  Problem(const AttentionConfig& config, std::int64_t num_positions, const std::optional<d9d::PackedSequences>& packed_,
          at::Device device)
      : packed(packed_) {
    const auto heads = [&](std::int64_t num_heads) {
      const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
      return at::randn({1, num_positions, num_heads, config.num_features}, options).requires_grad_();
    };
    query = heads(config.num_heads);
    key = heads(config.num_key_value_heads);
    value = heads(config.num_key_value_heads);
    grad = at::randn_like(query).detach();
  }
  [[nodiscard]] d9d::kernels::SdpaInputs inputs() const {
    return {.query = query, .key = key, .value = value, .packed = packed};
  }
  void both_passes(const std::function<at::Tensor()>& attend) const {
    attend().backward(grad);
    for (const at::Tensor* x : {&query, &key, &value}) x->mutable_grad().reset();
  }
  at::Tensor query, key, value, grad;
  std::optional<d9d::PackedSequences> packed;
};

class Benchmark {
 public:
  Benchmark(const AttentionConfig& config, const d9d::DistContext& context)
      : config_(config),
        context_(context),
        ranks_(context.mesh(d9d::MeshDomain::kBatch).slice({"cp"})),
        watch_(ranks_.world()),
        exchange_(std::make_shared<d9d::PeerBlockExchange>(ranks_.lane_communicator(), watch_)) {}

  void run() {
    if (context_.is_main_process()) {
      std::cout
          << "| positions | documents | way | ms (p10..p90) | 1 / W of one rank's takes, of it |\n|---|---|---|---|---|"
          << std::endl;
    }
    for (const std::int64_t length : config_.positions) {
      for (const std::int64_t documents : config_.num_documents) measure(length, documents);
    }
    exchange_->close();
  }

 private:
  void measure(std::int64_t length, std::int64_t num_documents) {
    const d9d::kernels::SdpaOptions options{.causal = true};
    const auto packed = documents_of(length, num_documents, context_.device());
    const double one = [&] {
      const Problem whole(config_, length, packed, context_.device());
      const auto attend = [&] { return d9d::kernels::scaled_dot_product_attention(whole.inputs(), options); };
      const auto times = milliseconds([&] { whole.both_passes(attend); });
      return times[times.size() / 2] / static_cast<double>(ranks_.num_ranks());
    }();
    const Problem own(config_, length / ranks_.num_ranks(), packed, context_.device());
    const auto row = [&](const char* name, const std::function<at::Tensor()>& attend) {
      const std::vector<double> times = milliseconds([&] { own.both_passes(attend); });
      const auto at_share = [&](double share) {
        return times[static_cast<std::size_t>(share * (times.size() - 1) + 0.5)];
      };
      if (!context_.is_main_process()) return;
      char line[160];
      std::snprintf(line, sizeof line, "| %ld | %ld | %s | %.2f (%.2f..%.2f) | %.1f %% |", static_cast<long>(length),
                    static_cast<long>(num_documents), name, at_share(0.5), at_share(0.1), at_share(0.9),
                    100 * one / at_share(0.5));
      std::cout << line << std::endl;
    };
    const auto gathered = [&](const d9d::PositionCut& cut) {
      const d9d::AllGatherAttentionContext context(cut);
      return [=, this, &own] { return context.attend(own.inputs(), options, {}); };
    };
    row("gathered, one after another", gathered(d9d::PositionCut(ranks_)));
    row("gathered", gathered(d9d::context_parallel_cut(ranks_)));
    if (d9d::ranks_divide_heads(ranks_.num_ranks(), config_.num_heads, config_.num_key_value_heads)) {
      const d9d::HeadsAttentionContext heads(d9d::context_parallel_cut(ranks_));
      row("heads", [&] { return heads.attend(own.inputs(), options, {}); });
    }
    D9D_CHECK(exchange_->fits({own.key, own.value}), d9d::ConfigError,
              "[benchmarks::context] expected ranks that read each other's memory, got ", exchange_->reason(), ".");
    row("ring", [&, cut = d9d::context_parallel_cut(ranks_)] {
      return d9d::ring_attention(own.inputs(), options, {}, cut, exchange_);
    });
  }

  // Sorted, of the slowest rank.
  [[nodiscard]] std::vector<double> milliseconds(const std::function<void()>& work) const {
    std::vector<double> times;
    const auto ranks = ranks_.communicator();
    for (std::int64_t round = 0; round < config_.num_warm_up_rounds + config_.num_rounds; ++round) {
      ranks->barrier();
      const d9d::Moment begin(context_.device());
      work();
      const double seconds = begin.seconds_until(d9d::Moment(context_.device()));
      if (round >= config_.num_warm_up_rounds) times.push_back(1e3 * seconds);
    }
    return benchmarks::longest_of_ranks(times, ranks_);
  }

  const AttentionConfig& config_;
  const d9d::DistContext& context_;
  const d9d::DeviceMesh ranks_;
  d9d::LinkWatch watch_;
  std::shared_ptr<d9d::PeerBlockExchange> exchange_;
};

}  // namespace

int main(int argc, char** argv) {
  return d9d::launch<AttentionConfig>(
      argc, argv, [](const AttentionConfig& config, d9d::DistContext& context) { Benchmark(config, context).run(); });
}
