// Mixes several datasets by weight: of any n consecutive samples, a source of weight w (weights sum to 1) gives
// approximately n * w.
//
// Example
//   MixtureDataset<TokenSample> mixture({{code, 0.7}, {prose, 0.3}});
//   mixture.get_in_epoch(5, 0);
//
// Each source is repeated as often as its weight requires and counts its own epochs: a small source may be in its fifth
// epoch while a large one is in its first. Read the mixture without shuffling, and shuffle the sources instead
// (ShuffledDataset).
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/data/order/mixture_order.h"
#include "d9d/data/sequences/dataset.h"

namespace d9d {

template <class Sample>
class MixtureDataset final : public Dataset<Sample> {
 public:
  struct Source {
    std::shared_ptr<const Dataset<Sample>> dataset;  // not empty
    double weight = 1;
  };

  // Throws the ConfigError of MixtureOrder.
  explicit MixtureDataset(std::vector<Source> sources)
      : sources_(std::move(sources)), order_(weights_of(sources_)), size_(std::numeric_limits<std::int64_t>::max()) {
    for (std::int64_t i = 0; i < std::ssize(sources_); ++i) {
      size_ = std::min(size_, order_.position_of({.source = i, .index = sources_[i].dataset->size()}));
    }
  }

  // The number of samples until one of the sources would begin its second epoch. An epoch of the mixture has this size
  // and continues where the previous epoch ended.
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Sample get(std::int64_t index) const override { return get_in_epoch(index, 0); }
  [[nodiscard]] Sample get_in_epoch(std::int64_t index, std::int64_t epoch) const override {
    const auto [source, sample] = order_(epoch * size_ + index);
    const auto& dataset = *sources_[static_cast<std::size_t>(source)].dataset;
    return dataset.get_in_epoch(sample % dataset.size(), sample / dataset.size());
  }
  [[nodiscard]] DataDescription describe() const override {
    DataDescription mixture{.line = cat("mixture of ", counted(std::ssize(sources_), "source"), ": ",
                                        counted(size_, "sample"), " in an epoch")};
    for (const Source& source : sources_) {
      mixture.inputs.push_back(source.dataset->describe());
      mixture.inputs.back().line.insert(0, cat("weight ", source.weight, ": "));
    }
    return mixture;
  }

 private:
  static std::vector<double> weights_of(const std::vector<Source>& sources) {
    std::vector<double> weights;
    for (const Source& source : sources) weights.push_back(source.weight);
    return weights;
  }

  std::vector<Source> sources_;
  MixtureOrder order_;
  std::int64_t size_;
};

}  // namespace d9d
