#include "d9d/core/rng/default_generators.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>

namespace d9d {
namespace {

std::vector<at::Generator> generators_of(c10::Device device) {
  std::vector<at::Generator> generators = {at::globalContext().defaultGenerator(at::kCPU)};
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

}  // namespace

DefaultGenerators::DefaultGenerators(c10::Device device) : device_(device) {
  std::vector<at::Generator> generators = generators_of(device);
  for (at::Generator& generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states_.push_back(generator.get_state());
  }
}

void DefaultGenerators::restore() const {
  std::vector<at::Generator> generators = generators_of(device_);
  for (std::size_t i = 0; i < generators.size(); ++i) {
    const std::lock_guard lock(generators[i].mutex());
    generators[i].set_state(states_[i]);
  }
}

bool DefaultGenerators::operator==(const DefaultGenerators& other) const {
  return std::ranges::equal(states_, other.states_, [](const auto& a, const auto& b) { return a.equal(b); });
}

}  // namespace d9d
