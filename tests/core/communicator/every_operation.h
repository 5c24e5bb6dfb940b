// All operations of a group, for tests of what happens when one rank does not take part.
//
// Example
//   for (const Operation& operation : every_operation()) operation.run(group, /*size=*/4);
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/core/communicator/communicator.h"

namespace d9d::test {

struct Operation {
  std::string name;
  std::function<void(Communicator& group, std::int64_t size)> run;  // with about `size` elements from each rank
  bool has_shape = true;                                            // ranks must agree on the size
};

[[nodiscard]] inline std::vector<Operation> every_operation() {
  using Direction = PointToPoint::Direction;
  const auto some = [](const Communicator& group, std::int64_t size) { return at::ones({size}, group.device()); };
  return {
      {"all_reduce",
       [=](Communicator& group, std::int64_t size) { group.all_reduce(some(group, size), ReduceOp::kSum).wait(); }},
      {"all_gather",
       [=](Communicator& group, std::int64_t size) {
         group.all_gather(some(group, size * group.size()), some(group, size)).wait();
       }},
      {"reduce_scatter",
       [=](Communicator& group, std::int64_t size) {
         group.reduce_scatter(some(group, size), some(group, size * group.size()), ReduceOp::kSum).wait();
       }},
      {"all_to_all",
       [=](Communicator& group, std::int64_t size) {
         const std::vector<std::int64_t> splits(static_cast<std::size_t>(group.size()), size);
         group.all_to_all(some(group, size * group.size()), some(group, size * group.size()), splits, splits).wait();
       }},
      {"broadcast", [=](Communicator& group, std::int64_t size) { group.broadcast(some(group, size), 0).wait(); }},
      {"gather", [=](Communicator& group, std::int64_t size) { (void)gather(some(group, size), group, 0); }},
      {"scatter",
       [=](Communicator& group, std::int64_t size) {
         std::vector<at::Tensor> parts;
         for (std::int64_t i = 0; group.rank() == 0 && i < group.size(); ++i) parts.push_back(some(group, size));
         group.scatter(some(group, size), parts, 0).wait();
       }},
      {"exchange",
       [=](Communicator& group,
           std::int64_t size) {  // around the ring
         group
             .exchange({{.direction = Direction::kSend,
                         .tensor = some(group, size),
                         .peer = (group.rank() + 1) % group.size()},
                        {.direction = Direction::kReceive,
                         .tensor = some(group, size),
                         .peer = (group.rank() + group.size() - 1) % group.size()}})
             .wait();
       }},
      {"barrier", [](Communicator& group, std::int64_t) { group.barrier(); }, false},
      {"gather_variadic_shape",
       [=](Communicator& group, std::int64_t size) { (void)gather_variadic_shape(some(group, size), group, 0); },
       false},
      {"all_gather_object",
       [](Communicator& group, std::int64_t size) {
         (void)all_gather_object({{"size", size}}, group);
       },
       false},
      {"gather_object",
       [](Communicator& group, std::int64_t size) {
         (void)gather_object({{"size", size}}, group, 0);
       },
       false},
  };
}

}  // namespace d9d::test
