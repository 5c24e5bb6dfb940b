// A folder over the ranks of a job: each fills its shards of a model from it, and all together write it again, with the
// names of the hub and with q, k and v as one matrix. Prints time, peak memory and whether every byte is the same.
//
//   .venv/bin/python benchmarks/model_state/stand_in.py 30B-A3B /tmp/30b
//   model_state_ranks_benchmark benchmarks/model_state/ranks.json source=/tmp/30b target=/tmp/written
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/launch/launch.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/write_model_state.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/families.h"
#include "d9d/models/huggingface/packed_qkv.h"

namespace {

namespace fs = std::filesystem;
using d9d::StateMapper;

struct RanksConfig {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  fs::path source = {};  // a folder of any family
  fs::path target = {};  // where folders are written, and removed
  std::int64_t max_shard_bytes = 4'000'000'000;

  static constexpr auto fields() {
    using Config = RanksConfig;
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::required("mesh", &Config::mesh),
                               d9d::required("source", &Config::source), d9d::required("target", &Config::target),
                               d9d::defaulted("max_shard_bytes", &Config::max_shard_bytes, d9d::at_least(1)));
  }
};

// Private memory of this process that no file stands behind: of ranks that are threads, of all of them.
std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
  }
  throw d9d::IoError("expected RssAnon in /proc/self/status, got none.");
}

// The most of anonymous_bytes() while it lives, looked at every millisecond.
class PeakMemory {
 public:
  PeakMemory()
      : before_(anonymous_bytes()), most_(before_), watcher_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            most_ = std::max(most_.load(), anonymous_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  [[nodiscard]] std::int64_t growth() const { return std::max(most_.load(), anonymous_bytes()) - before_; }

 private:
  std::int64_t before_;
  std::atomic<std::int64_t> most_;
  std::jthread watcher_;  // last: it uses the others
};

template <class Parameters>
class Benchmark {
 public:
  Benchmark(const d9d::ModelFamily<Parameters>& family, const RanksConfig& config, const d9d::DistContext& context)
      : family_(family),
        config_(config),
        context_(context),
        job_(context.mesh(d9d::MeshDomain::kFlat)),
        directory_(config.source),
        parameters_(family.parameters_from_huggingface(directory_.read_config())),
        backbone_(family.build(parameters_, {})),
        model_(d9d::make_decoder_for_causal_lm(backbone_)) {
    model_->to(at::kBFloat16);
    d9d::parallelize_decoder(context, *backbone_, {model_->head.shared()});
    model_->materialize(context.device());
  }

  void run() {
    print(
        "| what | seconds | GB/s | GB that ranks wanted | read | most memory of a process beyond before, MiB |\n"
        "|---|---|---|---|---|---|");
    const StateMapper in = family_.from_huggingface(parameters_, kHead, directory_.names());
    const StateMapper out = family_.to_huggingface(parameters_, kHead, d9d::ExpertsFormat::kModuleList);
    const StateMapper packed = d9d::mapper::sequential({out, d9d::pack_qkv(d9d::decoder_sizes(parameters_), "model.")});
    d9d::BytesRead bytes;
    measure("load", [&] {
      bytes = d9d::load_model_state(*model_, in, d9d::tensors_of(directory_)).bytes;
      return bytes;
    });
    const auto write = [&](const std::string& name, const StateMapper& mapper) {
      measure(name, [&] {
        (void)d9d::write_model_state(config_.target / name, mapper, d9d::state_of(*model_), job_,
                                     {.max_shard_bytes = config_.max_shard_bytes});
        return d9d::BytesRead{};
      });
    };
    write("write", out);
    compare("write", d9d::mapper::identities(out.outputs()));
    write("write_packed", packed);
    compare("write_packed", d9d::mapper::sequential({d9d::mapper::identities(out.outputs()),
                                                     d9d::pack_qkv(d9d::decoder_sizes(parameters_), "model.")}));
  }

 private:
  static inline const d9d::HeadConfig kHead = d9d::CausalLMHeadConfig{};

  void print(const std::string& line) const {
    if (context_.is_main_process()) std::cout << line << std::endl;
  }

  // The slowest rank counts, and the process that needs most.
  template <class Work>
  void measure(const std::string& name, const Work& work) {
    (void)d9d::all_gather_object(0, job_);
    const PeakMemory peak;
    const auto begin = std::chrono::steady_clock::now();
    const d9d::BytesRead bytes = work();
    (void)d9d::all_gather_object(0, job_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double slowest = 0, wanted = 0, read = 0, most = 0;
    for (const nlohmann::json& rank :
         d9d::all_gather_object({seconds, bytes.wanted, bytes.read, peak.growth()}, job_)) {
      slowest = std::max(slowest, rank[0].get<double>());
      wanted += rank[1].get<double>();
      read += rank[2].get<double>();
      most = std::max(most, rank[3].get<double>());
    }
    char line[256];
    std::snprintf(line, sizeof line, "| %s | %.2f | %.2f | %.2f | %.2f | %.0f |", name.c_str(), slowest,
                  static_cast<double>(num_bytes()) / 1e9 / slowest, wanted / 1e9, read / 1e9, most / (1 << 20));
    print(line);
  }

  // Of the model in the folder, without what is there twice.
  std::int64_t num_bytes() const {
    std::int64_t sum = 0;
    for (const d9d::TensorSource& tensor :
         d9d::mapped_sources(d9d::mapper::identities(
                                 family_.to_huggingface(parameters_, kHead, d9d::ExpertsFormat::kModuleList).outputs()),
                             d9d::tensors_of(directory_))) {
      sum += d9d::num_bytes(tensor);
    }
    return sum;
  }

  // Each rank compares some of the tensors that were written with what `expected` makes of the source; then the folder
  // is removed.
  void compare(const std::string& name, const StateMapper& expected) const {
    std::int64_t num_equal = 0, num_compared = 0, index = 0;
    {
      const d9d::HuggingFaceDirectory written(config_.target / name);
      for (const d9d::TensorSource& tensor : d9d::mapped_sources(expected, d9d::tensors_of(directory_))) {
        if (index++ % job_.num_ranks() != job_.index()) continue;
        const auto other = written.find(tensor.name);
        D9D_CHECK(other, d9d::StateError, "expected ", tensor.name, " in what was written, got none.");
        const at::Tensor ours = other->read().contiguous(), theirs = tensor.read().contiguous();
        ++num_compared;
        num_equal += ours.sizes() == theirs.sizes() && ours.scalar_type() == theirs.scalar_type() &&
                     std::memcmp(ours.const_data_ptr(), theirs.const_data_ptr(), ours.nbytes()) == 0;
      }
    }
    std::int64_t all_equal = 0, all_compared = 0;
    for (const nlohmann::json& rank : d9d::all_gather_object({num_equal, num_compared}, job_)) {
      all_equal += rank[0].template get<std::int64_t>();
      all_compared += rank[1].template get<std::int64_t>();
    }
    if (context_.is_main_process()) fs::remove_all(config_.target / name);
    print(d9d::cat("  of ", all_compared, " tensors ", all_equal, " are the same byte for byte"));
    D9D_CHECK(all_equal == all_compared, d9d::StateError, "expected every tensor of ", name,
              " with the bytes of the source, got ", all_compared - all_equal, " others.");
  }

  const d9d::ModelFamily<Parameters>& family_;
  const RanksConfig& config_;
  const d9d::DistContext& context_;
  const d9d::DeviceMesh job_;
  const d9d::HuggingFaceDirectory directory_;
  const Parameters parameters_;
  d9d::ModulePtr<d9d::PreNormDecoder> backbone_;
  d9d::ModulePtr<d9d::DecoderForCausalLM> model_;
};

void run(const RanksConfig& config, d9d::DistContext& context) {
  d9d::visit_family_of(d9d::HuggingFaceDirectory(config.source).read_config(),
                       [&](const auto& family) { Benchmark(family, config, context).run(); });
}

}  // namespace

int main(int argc, char** argv) { return d9d::launch<RanksConfig>(argc, argv, run); }
