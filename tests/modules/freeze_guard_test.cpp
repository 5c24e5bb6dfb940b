#include "d9d/modules/freeze_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/modules/module.h"

namespace d9d::freeze_guard_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Pair : Module {
  const ParameterPtr first = register_parameter("first", {.shape = {2}, .init = init::ones()});
  const ParameterPtr second = register_parameter("second", {.shape = {2}, .init = init::ones()});
};

TEST(FreezeGuard, Names_what_was_frozen_or_thawed_since) {
  const auto pair = make_module<Pair>();
  pair->second->set_requires_grad(false);
  const FreezeGuard guard(pair->named_parameters());
  EXPECT_NO_THROW(guard.check());
  pair->first->set_requires_grad(false);
  EXPECT_THAT([&] { guard.check(); },
              ThrowsMessage<StateError>(HasSubstr("requires_grad = 1 of first as when the job was built, got 0")));
  pair->first->set_requires_grad(true);
  pair->second->set_requires_grad(true);
  EXPECT_THAT([&] { guard.check(); },
              ThrowsMessage<StateError>(HasSubstr("requires_grad = 0 of second as when the job was built, got 1")));
}

}  // namespace
}  // namespace d9d::freeze_guard_test
