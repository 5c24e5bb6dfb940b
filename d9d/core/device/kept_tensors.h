// Keeps tensors alive that another stream still reads, until the stream that computed them has waited for the reader.
// The device waits, never the host, so later work of the computing stream can reuse the memory however far the host is
// ahead. (keep_for_current_stream() alone would block the memory until the host notices that the reader is done.)
//
// Example
//   KeptTensors kept;
//   for (...) {
//     kept.wait_for_all_but(2);                        // the current stream waits; at most two outputs are kept
//     const at::Tensor output = compute();
//     kept.keep({output}, sends.run([&] { send(output); }));
//   }
//   kept.wait_for_all();
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {

class KeptTensors {
 public:
  // Keeps tensors that were computed on the current stream. read: the event after which they may be dropped; on a CPU
  // they may be dropped immediately.
  void keep(std::vector<at::Tensor> tensors, StreamEvent read);
  // Drops the oldest tensors that were kept from the current stream, until at most `most` entries are left; the current
  // stream waits until they have been read.
  void wait_for_all_but(std::size_t most);
  // Drops all tensors; the current stream waits until they have been read.
  void wait_for_all();

 private:
  struct Kept {
    std::vector<at::Tensor> tensors;
    StreamEvent read;
    c10::Stream made_on;
  };
  static void drop(const Kept& kept);

  std::deque<Kept> kept_;  // the oldest first
};

}  // namespace d9d
