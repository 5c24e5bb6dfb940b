// The backends and exchange methods with which tests of exchanges run.
//
// Example
//   class ShardReduceBy : public ::testing::TestWithParam<ExchangeWay> { ... };
//   INSTANTIATE_TEST_SUITE_P(Ways, ShardReduceBy, kExchangeWays, name_of_way);
#pragma once

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "d9d/parallelism/fsdp/fsdp_config.h"

#include "tests/support/ranks.h"

namespace d9d::test {

using ExchangeWay = std::pair<RankBackend, ExchangeMethod>;

inline const auto kExchangeWays = ::testing::Values(ExchangeWay(RankBackend::kThreads, ExchangeMethod::kCommunicator),
                                                    ExchangeWay(RankBackend::kThreads, ExchangeMethod::kCopyEngine),
                                                    ExchangeWay(RankBackend::kGloo, ExchangeMethod::kCopyEngine));

inline std::string name_of_way(const ::testing::TestParamInfo<ExchangeWay>& way) {
  return std::string(to_string(way.param.first)) + "_" + std::string(enum_name(way.param.second));
}

}  // namespace d9d::test
