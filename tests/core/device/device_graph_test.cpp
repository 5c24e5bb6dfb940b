#include "d9d/core/device/device_graph.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/core/device/side_stream.h"

#include "tests/support/gpu_test.h"

namespace d9d::test::device_graph_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const at::Device kGpu(at::kCUDA, 0);

class DeviceGraphCuda : public GpuTest {};

at::TensorOptions on_gpu() { return at::device(kGpu).dtype(at::kFloat); }

std::int64_t reserved_bytes() {
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  return at::accelerator::getDeviceStats(0).reserved_bytes[0].current;
}

TEST(DeviceGraph, Is_refused_without_a_CUDA_device) {
  EXPECT_THAT([] { (void)cuda_graphs(at::kCPU); }, ThrowsMessage<ConfigError>(HasSubstr("graph")));
}

TEST_F(DeviceGraphCuda, Does_its_work_again_with_what_its_inputs_hold) {
  SideStream(kGpu)
      .run([] {
        const at::Tensor x = at::ones({4}, on_gpu());
        at::Tensor y = x * 2 + 1;
        const auto graph = cuda_graphs(kGpu)();
        graph->capture([&] { y = x * 2 + 1; });
        for (const double value : {5.0, -3.0}) {
          x.fill_(value);
          graph->replay();
          EXPECT_TRUE(at::equal(y.cpu(), at::full({4}, value * 2 + 1)));
        }
      })
      .wait();
}

TEST_F(DeviceGraphCuda, Records_a_backward_of_autograds_thread) {
  SideStream(kGpu)
      .run([] {
        const at::Tensor weight = at::ones({64, 64}, on_gpu()).requires_grad_(), x = at::ones({8, 64}, on_gpu());
        const auto backward = [&] {
          weight.mutable_grad() = at::Tensor();
          at::mm(x, weight).square().sum().backward();
        };
        backward();
        const auto graph = cuda_graphs(kGpu)();
        graph->capture(backward);
        const at::Tensor grad = weight.grad();
        x.fill_(0.5);
        graph->replay();
        const at::Tensor actual = grad.clone();
        backward();
        EXPECT_TRUE(at::equal(actual, weight.grad()));
        EXPECT_GT(actual.sum().item<float>(), 0);
      })
      .wait();
}

TEST_F(DeviceGraphCuda, Shares_its_memory_and_gives_it_back) {
  constexpr std::int64_t kFloats = std::int64_t{1} << 26;  // 256 MiB
  SideStream(kGpu)
      .run([] {
        const at::Tensor x = at::ones({kFloats}, on_gpu());
        at::Tensor sum = (x + 1).sum();
        const std::int64_t before = reserved_bytes();
        {
          const MakeDeviceGraph make_graph = cuda_graphs(kGpu);
          const auto first = make_graph(), second = make_graph();
          first->capture([&] { sum = (x + 1).sum(); });
          const at::Tensor sum_of_first = sum;
          second->capture([&] { sum = (x + 2).sum(); });
          first->replay();
          const double from_first = sum_of_first.item<double>();
          second->replay();
          EXPECT_EQ(from_first, 2.0 * kFloats);
          EXPECT_EQ(sum.item<double>(), 3.0 * kFloats);
          EXPECT_LT(reserved_bytes() - before, 6 * kFloats);  // 1.5 times the size of the temporaries
          EXPECT_GT(reserved_bytes() - before, 3 * kFloats);
          sum = at::Tensor();
        }
        at::accelerator::synchronizeDevice(0);
        EXPECT_LE(reserved_bytes(), before);
      })
      .wait();
}

TEST_F(DeviceGraphCuda, Says_what_cannot_be_captured_and_leaves_the_device_usable) {
  SideStream(kGpu)
      .run([] {
        const at::Tensor x = at::ones({4}, on_gpu());
        const auto capture = [](const std::function<void()>& work) { cuda_graphs(kGpu)()->capture(work); };
        EXPECT_THROW(capture([&] { (void)(x * 2).sum().item<float>(); }), c10::Error);
        EXPECT_THROW(capture([&] { x.copy_(at::zeros({4})); }), c10::Error);
        EXPECT_THAT([&] { capture([&] { (void)(x * 2), throw StateError("mine"); }); },
                    ThrowsMessage<StateError>(HasSubstr("mine")));
        at::Tensor y;
        const auto graph = cuda_graphs(kGpu)();
        graph->capture([&] { y = x + 1; });
        graph->replay();
        EXPECT_EQ(y.sum().item<float>(), 8);
      })
      .wait();
}

TEST_F(DeviceGraphCuda, Refuses_the_default_stream) {
  EXPECT_THAT([] { cuda_graphs(kGpu)()->capture([] {}); },
              ThrowsMessage<StateError>(HasSubstr("Capture inside SideStream::run")));
}

}  // namespace
}  // namespace d9d::test::device_graph_test
