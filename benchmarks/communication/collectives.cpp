// What brings the slices of an FSDP unit together and sums its gradients, at the sizes of units: our Communicator
// beside LibTorch's bare process group and beside copies from the memory of peers, in turns. Markdown.
//
//   communication_benchmark benchmarks/communication/collectives.json [mesh.data_parallel_shard=4]
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "d9d/base/config/describe.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/communicator/process_group/nccl_group.h"
#include "d9d/core/device/moment.h"
#include "d9d/core/launch/launch.h"
#include "d9d/parallelism/fsdp/shard_gather.h"

namespace {

using d9d::Communicator;

struct CollectivesConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  std::vector<std::int64_t> mebibytes = {};  // of whole units
  std::int64_t num_rounds = 31;
  std::int64_t num_warm_up_rounds = 6;

  static constexpr auto fields() {
    using Config = CollectivesConfig;
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
                               d9d::required("mebibytes", &Config::mebibytes, d9d::at_least(1)),
                               d9d::defaulted("num_rounds", &Config::num_rounds, d9d::at_least(1)),
                               d9d::defaulted("num_warm_up_rounds", &Config::num_warm_up_rounds, d9d::at_least(0)));
  }
};

struct Way {
  std::string name;
  std::function<void()> run;
  std::vector<double> milliseconds = {};
  std::vector<double> host_microseconds = {};
};

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// The same ranks once more, as LibTorch gives them to anyone.
d9d::ProcessGroup bare_group(Communicator& ranks) {
  std::string path;
  if (ranks.rank() == 0) path = std::filesystem::temp_directory_path() / d9d::cat("d9d_bare_", ::getpid());
  path = d9d::all_gather_object(path, ranks).front().get<std::string>();
  const auto store = c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(ranks.size()));
  return d9d::nccl_groups(ranks.device())(
      store, {.name = "bare", .ranks = ranks.group().ranks, .index = ranks.rank(), .timeout = std::chrono::minutes(1)});
}

class Benchmark {
 public:
  Benchmark(const CollectivesConfig& config, const d9d::DistContext& context)
      : config_(config),
        context_(context),
        ranks_(context.mesh(d9d::MeshDomain::kFlat).communicator()),
        watch_(std::make_shared<d9d::LinkWatch>(context.mesh(d9d::MeshDomain::kFlat).world())) {
    if (!context.device().is_cpu()) bare_ = bare_group(*ranks_);
  }

  void run() {
    print(
        "| what | MiB | way | ms (p10..p90) | GB/s on the wire of a rank | of the bare group | host us |\n"
        "|---|---|---|---|---|---|---|");
    for (const std::int64_t size : config_.mebibytes) {
      gather(size);
      reduce(size, at::kFloat);
      reduce(size, at::kBFloat16);
    }
    if (bare_.backend) bare_.backend->shutdown();
  }

 private:
  void print(const std::string& line) const {
    if (context_.is_main_process()) std::cout << line << std::endl;
  }

  [[nodiscard]] at::Tensor whole(std::int64_t mebibytes, at::ScalarType dtype) const {
    const std::int64_t element = static_cast<std::int64_t>(c10::elementSize(dtype));
    const std::int64_t rows = (mebibytes << 20) / element / ranks_->size() / 128 * 128;
    return at::zeros({ranks_->size() * rows}, at::TensorOptions(context_.device()).dtype(dtype));
  }

  void gather(std::int64_t mebibytes) {
    const at::Tensor full = whole(mebibytes, at::kBFloat16);
    const std::int64_t bytes = static_cast<std::int64_t>(full.nbytes()) / ranks_->size();
    std::vector<Way> ways;
    const at::Tensor shard = full.new_zeros({full.numel() / ranks_->size()});
    if (bare_.backend) {
      ways.push_back({"bare process group", [&] {
                        at::Tensor output = full;
                        at::Tensor input = shard;
                        c10d::AllgatherOptions options;
                        options.asyncOp = false;
                        (void)bare_.backend->_allgather_base(output, input, options);
                      }});
    }
    ways.push_back({"Communicator", [&] { ranks_->all_gather(full, shard).wait(); }});
    std::unique_ptr<d9d::ShardGather> copies;
    at::Tensor slice;
    try {
      copies = d9d::make_shard_gather(d9d::ExchangeMethod::kCopyEngine, ranks_, (bytes + 255) / 256 * 256, watch_);
      slice = copies->allocate(bytes).view(at::kBFloat16);
      slice.fill_(static_cast<double>(ranks_->rank() + 1));
      copies->begin();
      ways.push_back({"copies", [&] { copies->gather(full, slice); }});
    } catch (const d9d::ConfigError& error) {
      print(d9d::cat("<!-- ", error.what(), " -->"));
    }
    measure("all_gather, bfloat16", mebibytes, ways, static_cast<double>(bytes * (ranks_->size() - 1)));
    if (copies == nullptr) return;
    for (std::int64_t rank = 0; rank < ranks_->size(); ++rank) {
      const bool is_right = full.chunk(ranks_->size())[static_cast<std::size_t>(rank)].eq(rank + 1).all().item<bool>();
      D9D_CHECK(is_right, d9d::StateError, "[benchmarks::collectives] expected the slice of rank ", rank,
                ", got other values.");
    }
    copies->end();
    copies->close();
  }

  void reduce(std::int64_t mebibytes, at::ScalarType dtype) {
    const at::Tensor full = whole(mebibytes, dtype);
    const at::Tensor own = full.chunk(ranks_->size())[static_cast<std::size_t>(ranks_->rank())];
    std::vector<Way> ways;
    if (bare_.backend) {
      ways.push_back({"bare process group", [&] {
                        at::Tensor output = own;
                        at::Tensor input = full;
                        c10d::ReduceScatterOptions options;
                        options.asyncOp = false;
                        (void)bare_.backend->_reduce_scatter_base(output, input, options);
                      }});
    }
    ways.push_back({"Communicator", [&] { ranks_->reduce_scatter(own, full, d9d::ReduceOp::kSum).wait(); }});
    const double bytes = static_cast<double>(full.nbytes()) / static_cast<double>(ranks_->size());
    measure(d9d::cat("reduce_scatter, ", dtype == at::kFloat ? "float32" : "bfloat16"), mebibytes, ways,
            bytes * static_cast<double>(ranks_->size() - 1));
  }

  void measure(const std::string& what, std::int64_t mebibytes, std::vector<Way>& ways, double wire_bytes) const {
    for (std::int64_t round = 0; round < config_.num_warm_up_rounds + config_.num_rounds; ++round) {
      for (Way& way : ways) {
        ranks_->barrier();
        const d9d::Moment begin(context_.device());
        const auto host = std::chrono::steady_clock::now();
        way.run();
        const std::chrono::duration<double, std::micro> called = std::chrono::steady_clock::now() - host;
        const double milliseconds = 1e3 * begin.seconds_until(d9d::Moment(context_.device()));
        if (round < config_.num_warm_up_rounds) continue;
        way.milliseconds.push_back(milliseconds);
        way.host_microseconds.push_back(called.count());
      }
    }
    const double bare = quantile(ways.front().milliseconds, 0.5);
    for (const Way& way : ways) {
      const double median = quantile(way.milliseconds, 0.5);
      char line[256];
      std::snprintf(line, sizeof line, "| %s | %ld | %s | %.3f (%.3f..%.3f) | %.1f | %.1f %% | %.0f |", what.c_str(),
                    static_cast<long>(mebibytes), way.name.c_str(), median, quantile(way.milliseconds, 0.1),
                    quantile(way.milliseconds, 0.9), wire_bytes / median / 1e6, 100 * bare / median,
                    quantile(way.host_microseconds, 0.5));
      print(line);
    }
  }

  const CollectivesConfig& config_;
  const d9d::DistContext& context_;
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<d9d::LinkWatch> watch_;
  d9d::ProcessGroup bare_;
};

}  // namespace

int main(int argc, char** argv) {
  return d9d::launch<CollectivesConfig>(
      argc, argv, [](const CollectivesConfig& config, d9d::DistContext& context) { Benchmark(config, context).run(); });
}
