// Seconds of loading a folder into parameters that are allocated, beside plain copies of as many bytes.
//
//   model_state_benchmark FOLDER REPEATS (identity|merge|memcpy|mapped|pread) [THREADS]
//
// Prints one number a repeat. benchmarks/model_state/load.py runs it beside torch.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/io/mapped_file.h"
#include "d9d/core/launch/launch.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/modules/module.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPiece = 8 << 20;

// The three projections as one, and the two first matrices of each MLP.
d9d::StateMapper merging(const std::vector<std::string>& names) {
  std::vector<d9d::StateMapper> mappers;
  std::set<std::string> taken;
  const auto join = [&](const std::string& first, const std::string& end, const std::vector<std::string>& ends,
                        const std::string& to) {
    const std::string prefix = first.substr(0, first.size() - end.size());
    std::vector<std::string> from;
    for (const std::string& each : ends) from.push_back(prefix + each);
    taken.insert(from.begin(), from.end());
    mappers.push_back(d9d::mapper::concatenate(from, prefix + to, 0));
  };
  for (const std::string& name : names) {
    if (name.ends_with("q_proj.weight")) {
      join(name, "q_proj.weight", {"q_proj.weight", "k_proj.weight", "v_proj.weight"}, "qkv_proj.weight");
    }
    if (name.ends_with("gate_proj.weight")) {
      join(name, "gate_proj.weight", {"gate_proj.weight", "up_proj.weight"}, "gate_up_proj.weight");
    }
  }
  for (const std::string& name : names) {
    if (!taken.contains(name)) mappers.push_back(d9d::mapper::identity(name));
  }
  return d9d::mapper::parallel(std::move(mappers));
}

// The outputs as parameters of one module, whose names have no dots.
d9d::StateMapper without_dots(const d9d::StateMapper& mapper) {
  std::vector<d9d::StateMapper> renames;
  for (const std::string& name : mapper.outputs()) {
    std::string parameter = name;
    std::ranges::replace(parameter, '.', '_');
    renames.push_back(d9d::mapper::rename(name, parameter));
  }
  return d9d::mapper::sequential({mapper, d9d::mapper::parallel(std::move(renames))});
}

struct Model : d9d::Module {
  explicit Model(const std::vector<d9d::TensorSource>& tensors) {
    for (const d9d::TensorSource& tensor : tensors) {
      register_parameter(tensor.name, {.shape = tensor.shape, .init = d9d::init::ones()});
    }
  }
};

// Seconds of work(begin, end) over `bytes`, in pieces, on threads.
template <class Work>
double seconds_of(std::int64_t bytes, int num_threads, const Work& work) {
  const auto start = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back([=, &work] {
        for (std::int64_t begin = i * kPiece; begin < bytes; begin += num_threads * kPiece) {
          work(begin, std::min(bytes, begin + kPiece));
        }
      });
    }
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void measure_loads(const std::string& folder, int repeats, bool is_merging, int num_threads) {
  const d9d::HuggingFaceDirectory directory(folder);
  const std::vector<std::string> names = directory.names();
  const d9d::StateMapper mapper =
      without_dots(is_merging ? merging(names) : d9d::mapper::identities({names.begin(), names.end()}));
  const auto model = d9d::make_module<Model>(d9d::mapped_sources(mapper, d9d::tensors_of(directory)));
  model->to(at::kBFloat16);  // as load.py writes
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    const d9d::HuggingFaceDirectory opened(folder);  // with the headers, as load_file
    (void)d9d::load_model_state(*model, mapper, d9d::tensors_of(opened), {.read = {.num_threads = num_threads}});
    std::cout << std::chrono::duration<double>(Clock::now() - start).count() << std::endl;
  }
}

void measure_copies(const std::string& folder, int repeats, const std::string& what, int num_threads) {
  const d9d::MappedFile mapped(folder + "/model.safetensors");
  const d9d::InputFile file(folder + "/model.safetensors");
  const auto bytes = file.size();
  // As parameters lie in memory: aligned, unlike what std::vector has, which a copy by the system would pay for.
  const auto allocated = [&] { return at::ones({bytes}, at::kByte); };
  const at::Tensor source_memory = what == "memcpy" ? allocated() : at::Tensor(), target_memory = allocated();
  const std::byte* const source =
      what == "memcpy" ? static_cast<const std::byte*>(source_memory.const_data_ptr()) : mapped.bytes().data();
  auto* const target = static_cast<std::byte*>(target_memory.data_ptr());
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    const auto size = static_cast<std::size_t>(end - begin);
    if (what == "pread") return file.read(begin, {target + begin, size});
    std::memcpy(target + begin, source + begin, size);
  };
  for (int i = 0; i < repeats; ++i) std::cout << seconds_of(bytes, num_threads, copy) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  return d9d::run_reporting_errors([&] {
    D9D_CHECK(argc == 4 || argc == 5, d9d::UsageError,
              "expected FOLDER REPEATS (identity|merge|memcpy|mapped|pread) [THREADS].");
    const std::string folder = argv[1], what = argv[3];
    const int repeats = std::stoi(argv[2]), num_threads = argc == 5 ? std::stoi(argv[4]) : 2;
    if (what == "identity" || what == "merge") return measure_loads(folder, repeats, what == "merge", num_threads);
    measure_copies(folder, repeats, what, num_threads);
  });
}
