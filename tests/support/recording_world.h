// A rank's world that records its operations: for tests of which collectives run, and in which order.
//
// Example
//   std::vector<std::string> operations;
//   const DeviceMesh mesh("dense", {{"cp", 2}}, recording(world, operations));
//   ...
//   EXPECT_EQ(operations, (std::vector<std::string>{"all_gather", "all_reduce"}));
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d9d/core/communicator/world.h"

namespace d9d::test {

namespace detail {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::shared_ptr<Communicator> inner, std::vector<std::string>& operations)
      : Communicator(inner->group()), inner_(std::move(inner)), operations_(operations) {}

  [[nodiscard]] at::Device device() const override { return inner_->device(); }
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    operations_.emplace_back("all_reduce");
    return inner_->all_reduce(tensor, op);
  }
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    operations_.emplace_back("all_gather");
    return inner_->all_gather(output, input);
  }
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    operations_.emplace_back("reduce_scatter");
    return inner_->reduce_scatter(output, input, op);
  }
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_splits,
                                const std::vector<std::int64_t>& input_splits) override {
    operations_.emplace_back("all_to_all");
    return inner_->all_to_all(output, input, output_splits, input_splits);
  }
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) override {
    operations_.emplace_back("broadcast");
    return inner_->broadcast(tensor, root);
  }
  [[nodiscard]] Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            std::int64_t root) override {
    operations_.emplace_back("gather");
    return inner_->gather(outputs, input, root);
  }
  [[nodiscard]] Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             std::int64_t root) override {
    operations_.emplace_back("scatter");
    return inner_->scatter(output, inputs, root);
  }
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>& messages) override {
    operations_.emplace_back("exchange");
    return inner_->exchange(messages);
  }
  void barrier() override { inner_->barrier(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void disconnect() override { inner_->disconnect(); }
  void reconnect() override { inner_->reconnect(); }

 private:
  std::shared_ptr<Communicator> inner_;
  std::vector<std::string>& operations_;
};

class RecordingBackend final : public CommunicatorBackend {
 public:
  RecordingBackend(World& inner, std::vector<std::string>& operations) : inner_(inner), operations_(operations) {}
  [[nodiscard]] std::int64_t rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int64_t world_size() const override { return inner_.size(); }
  [[nodiscard]] at::Device device() const override { return inner_.device(); }
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds /*timeout*/) override {
    return std::make_shared<RecordingCommunicator>(inner_.communicator(group), operations_);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  void leave() override { inner_.leave(); }

 private:
  World& inner_;
  std::vector<std::string>& operations_;
};

}  // namespace detail

// Communicates through `world` and appends to `operations`; both must outlive it.
[[nodiscard]] inline std::shared_ptr<World> recording(World& world, std::vector<std::string>& operations) {
  return std::make_shared<World>(std::make_unique<detail::RecordingBackend>(world, operations));
}

}  // namespace d9d::test
