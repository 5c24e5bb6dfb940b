// Communicators that differ from a backend's in one respect, for behaviour that a machine without GPUs does not show.
//
// Example
//   struct Lossy : ForwardingCommunicator {
//     using ForwardingCommunicator::ForwardingCommunicator;
//     Work all_reduce(const at::Tensor& tensor, ReduceOp op) override { ... return inner().all_reduce(tensor, op); }
//   };
//   const auto world = world_of<Lossy>(thread_world);     // each of its communicators is a Lossy
#pragma once

#include <memory>
#include <utility>

#include "d9d/core/communicator/world.h"

#include "tests/support/ranks.h"

namespace d9d::test {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner)
      : Communicator(inner->group()), inner_(std::move(inner)) {}

  [[nodiscard]] at::Device device() const override { return inner_->device(); }
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return inner_->all_reduce(tensor, op);
  }
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return inner_->all_gather(output, input);
  }
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    return inner_->reduce_scatter(output, input, op);
  }
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_splits,
                                const std::vector<std::int64_t>& input_splits) override {
    return inner_->all_to_all(output, input, output_splits, input_splits);
  }
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) override {
    return inner_->broadcast(tensor, root);
  }
  [[nodiscard]] Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            std::int64_t root) override {
    return inner_->gather(outputs, input, root);
  }
  [[nodiscard]] Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             std::int64_t root) override {
    return inner_->scatter(output, inputs, root);
  }
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>& messages) override { return inner_->exchange(messages); }
  void barrier() override { inner_->barrier(); }
  void throw_if_failed() override { inner_->throw_if_failed(); }
  [[nodiscard]] bool has_failed() const override { return inner_->has_failed(); }
  void throw_if_rank_is_gone() override { inner_->throw_if_rank_is_gone(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void disconnect() override { inner_->disconnect(); }
  void reconnect() override { inner_->reconnect(); }

 protected:
  [[nodiscard]] Communicator& inner() { return *inner_; }

 private:
  std::shared_ptr<Communicator> inner_;
};

template <class Wrapper>
class WrappingBackend final : public CommunicatorBackend {
 public:
  explicit WrappingBackend(World& world) : world_(world) {}
  [[nodiscard]] std::int64_t rank() const override { return world_.rank(); }
  [[nodiscard]] std::int64_t world_size() const override { return world_.size(); }
  [[nodiscard]] at::Device device() const override { return world_.device(); }
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds) override {
    return std::make_shared<Wrapper>(world_.communicator(group));
  }
  void abort(const std::string& reason) override { world_.abort(reason); }
  void leave() override { world_.leave(); }

 private:
  World& world_;
};

// A world of the same ranks, with a Wrapper around each group's communicator. `world` must outlive it.
template <class Wrapper>
[[nodiscard]] std::shared_ptr<World> world_of(World& world) {
  return std::make_shared<World>(std::make_unique<WrappingBackend<Wrapper>>(world));
}

}  // namespace d9d::test
