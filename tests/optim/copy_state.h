// Fills an optimiser's state with that of another, as a checkpoint would.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::test {

template <class Optimizer>
void copy_state(const Optimizer& from, Optimizer& to) {
  const auto source = from.state_dict(), target = to.state_dict();
  ASSERT_EQ(source.size(), target.size());
  for (const auto& [name, tensor] : target) tensor.local.copy_(source.at(name).local);
}

}  // namespace d9d::test
