#include "d9d/core/offload/offload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/launch/thread_ranks.h"

#include "tests/support/gpu_test.h"

namespace d9d::offload_test {
namespace {

using ::testing::HasSubstr;

std::vector<c10::Storage> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Storage> storages;
  for (const at::Tensor& tensor : tensors) storages.push_back(tensor.storage());
  return storages;
}

// A float tensor in memory that counts how often it is freed.
at::Tensor counting_tensor(std::int64_t numel, int& num_freed) {
  auto* const data = new float[static_cast<std::size_t>(numel)];
  std::fill(data, data + numel, 3.0F);
  return at::from_blob(
      data, {numel},
      [&num_freed](void* pointer) {
        ++num_freed;
        delete[] static_cast<float*>(pointer);
      },
      at::kFloat);
}

TEST(Offload, Round_trip_keeps_objects_values_and_shapes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const at::Tensor x = at::arange(24).to(dtype).view({4, 6}).t();  // not contiguous
    const at::Tensor expected = x.clone();
    const c10::TensorImpl* const object = x.unsafeGetTensorImpl();
    const c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
    OffloadedTensors asleep = offload_storages({x.storage()});
    EXPECT_EQ(asleep.num_bytes(), 24 * x.element_size());
    onload_tensors(asleep);
    EXPECT_TRUE(asleep.is_empty());
    EXPECT_EQ(x.unsafeGetTensorImpl(), object);
    EXPECT_EQ(x.storage().unsafeGetStorageImpl(), storage);
    EXPECT_EQ(x.strides(), at::IntArrayRef({1, 6}));
    EXPECT_EQ(x.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(x, expected));
  }
}

TEST(Offload, Frees_the_memory_and_brings_values_back_elsewhere) {
  int num_freed = 0;
  const at::Tensor x = counting_tensor(1000, num_freed);
  OffloadedTensors asleep = offload_storages({x.storage()});
  EXPECT_EQ(num_freed, 1);
  onload_tensors(asleep);
  EXPECT_EQ(x.sum().item<float>(), 3000.0F);
}

TEST(Offload, Refuses_use_while_asleep) {
  const at::Tensor x = at::ones({8});
  const at::Tensor view = x.view({2, 4});
  OffloadedTensors asleep = offload_storages({x.storage()});
  const auto complaint = [](const auto& use) -> std::string {
    try {
      use();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing";
  };
  EXPECT_THAT(complaint([&] { (void)(x + 1); }), HasSubstr("Call onload_tensors() first"));
  EXPECT_THAT(complaint([&] { (void)view.sum(); }), HasSubstr("moved to the host"));
  EXPECT_THAT(complaint([&] { view.fill_(0); }), HasSubstr("moved to the host"));
  EXPECT_THAT(complaint([&] { (void)at::mm(view, view.t()); }), HasSubstr("moved to the host"));
  EXPECT_THAT(complaint([&] { (void)x[3].item<float>(); }), HasSubstr("moved to the host"));
  EXPECT_EQ(x.narrow(0, 2, 3).sizes(), at::IntArrayRef({3}));  // views can be made
  onload_tensors(asleep);
  EXPECT_EQ((x + 1).sum().item<float>(), 16.0F);
}

TEST(Offload, Keeps_views_of_one_storage_together) {
  const at::Tensor flat = at::arange(12, at::kFloat);
  const at::Tensor first = flat.narrow(0, 0, 6).view({2, 3});
  const at::Tensor second = flat.narrow(0, 4, 6);
  OffloadedTensors asleep = offload_storages(storages_of({first, second, flat}));
  EXPECT_EQ(asleep.num_bytes(), 48);  // each storage counts once
  onload_tensors(asleep);
  EXPECT_TRUE(at::equal(second, at::arange(4, 10, at::kFloat)));
  second[0].fill_(100);
  EXPECT_EQ(first[1][1].item<float>(), 100.0F);
  EXPECT_EQ(flat[4].item<float>(), 100.0F);
}

TEST(Offload, Leaves_what_sleeps_already_to_whoever_put_it_to_sleep) {
  const at::Tensor x = at::ones({4});
  OffloadedTensors first = offload_storages({x.storage()});
  OffloadedTensors second = offload_storages({x.storage()});
  EXPECT_TRUE(second.is_empty());
  onload_tensors(second);
  EXPECT_THROW((void)x.sum(), c10::Error);
  onload_tensors(first);
  EXPECT_EQ(x.sum().item<float>(), 4.0F);
}

TEST(Offload, Leaves_tensors_of_the_CPU_usable) {
  const at::Tensor step = at::ones({}, at::kLong);
  const void* const address = step.const_data_ptr();
  OffloadedTensors asleep = offload_tensors({step, at::Tensor(), at::empty({4}, at::kMeta)});
  EXPECT_TRUE(asleep.is_empty());
  EXPECT_EQ(step.item<std::int64_t>(), 1);
  onload_tensors(asleep);
  EXPECT_EQ(step.const_data_ptr(), address);
}

// The shard of a flat group, parameters that are views of it with version counters of their own, and a graph that saved
// one of them.
TEST(Offload, Of_a_flat_shard_takes_its_parameters_along) {
  const at::Tensor shard = at::arange(1, 11, at::kDouble);
  const auto parameter = [&](std::int64_t begin, std::int64_t numel) {
    return shard.narrow(0, begin, numel).variable_data().set_requires_grad(true);
  };
  const at::Tensor weight = parameter(0, 6);
  const at::Tensor bias = parameter(6, 4);
  const at::Tensor loss = (weight * weight).sum() + bias.sum();
  OffloadedTensors asleep = offload_storages({shard.storage()});
  EXPECT_THROW((void)weight.detach().sum(), c10::Error);
  onload_tensors(asleep);
  loss.backward();  // its saved tensors are views too
  EXPECT_TRUE(at::equal(weight.grad(), 2 * at::arange(1, 7, at::kDouble)));
  {
    const at::NoGradGuard no_grad;
    weight.sub_(weight.grad());
  }
  EXPECT_TRUE(at::equal(shard.narrow(0, 0, 6), -at::arange(1, 7, at::kDouble)));
}

TEST(Offload, Of_a_sharded_tensor_keeps_its_layout) {
  const at::Tensor full = at::arange(10, at::kFloat);
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh("m", {{"tp", 2}}, world);
    const DTensor x = distribute(full, mesh, {Shard{0}});
    OffloadedTensors asleep = offload_storages({x.local.storage()});
    onload_tensors(asleep);
    D9D_ASSERT(at::equal(full_tensor(x), full), "the whole tensor as before");
  });
}

class OffloadCuda : public test::GpuTest {};

TEST_F(OffloadCuda, Gives_back_memory_of_the_device) {
  const at::Device device(at::kCUDA, 0);
  const auto allocated = [&] {
    const auto kind = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kind].current;
  };
  (void)at::empty({1}, device);  // initialises the device's allocator
  for (const bool pin_memory : {false, true}) {
    const std::int64_t before = allocated();
    const at::Tensor weight = at::arange(1 << 22, at::device(device).dtype(at::kFloat)).view({2048, 2048});
    const at::Tensor view = weight.narrow(0, 7, 1);
    const at::Tensor steps = at::ones({});
    const at::Tensor expected = weight.cpu();
    const std::int64_t held = allocated() - before;
    OffloadedTensors asleep = offload_tensors({weight, view, steps}, {.pin_memory = pin_memory});
    EXPECT_LE(static_cast<double>(allocated() - before), 0.1 * static_cast<double>(held));
    EXPECT_THROW((void)(weight + 1), c10::Error);
    EXPECT_EQ(steps.item<float>(), 1.0F);
    onload_tensors(asleep);
    EXPECT_TRUE(weight.is_cuda());
    EXPECT_TRUE(at::equal(weight.cpu(), expected));
    view.fill_(-1);
    EXPECT_EQ(weight[7][5].item<float>(), -1.0F);
  }
}

}  // namespace
}  // namespace d9d::offload_test
