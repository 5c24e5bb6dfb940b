// Linked into every test binary that uses tensors.
#include <gtest/gtest.h>

#include "d9d/core/device/vector_math.h"

namespace d9d::test {
namespace {

class ChooseVectorMath : public ::testing::Environment {
 public:
  void SetUp() override { choose_vector_math(); }
};
const ::testing::Environment* const kChooseVectorMath = ::testing::AddGlobalTestEnvironment(new ChooseVectorMath);

}  // namespace
}  // namespace d9d::test
