// Pack streams and loaders.
#include <ATen/core/Tensor.h>

#include "d9d/data/build/make_pack_stream.h"
#include "d9d/data/loader/data_loader.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/pack/fixed_count_packer.h"
#include "d9d/data/sequences/stack_samples.h"

using Batch = at::Tensor;
using Sample = std::vector<std::int64_t>;

struct Stream {
#ifdef stream_of_another_batch
  // expect: a pack stream needs the member `std::optional<std::vector<Batch>> next()`, with the Batch of as_pack_stream
  std::optional<std::vector<Sample>> next();
#elif !defined stream_without_next
  // expect: a pack stream needs the member `std::optional<std::vector<Batch>> next()`
  std::optional<std::vector<Batch>> next();
#endif
#ifdef stream_with_plain_total_steps
  // expect: a pack stream needs the member `std::optional<std::int64_t> total_steps() const`
  std::int64_t total_steps() const;
#elif !defined stream_without_total_steps
  // expect: a pack stream needs the member `std::optional<std::int64_t> total_steps() const`
  std::optional<std::int64_t> total_steps() const;
#endif
#ifndef stream_without_state
  // expect: a pack stream needs the member `nlohmann::json state() const`
  nlohmann::json state() const;
#endif
#ifndef stream_without_load_state
  // expect: a pack stream needs the member `void load_state(const nlohmann::json& state)`
  void load_state(const nlohmann::json& state);
#endif
};

struct Texts : d9d::Dataset<Sample> {
  std::int64_t size() const override;
#ifndef dataset_without_get
  // expect: invalid new-expression of abstract class type ‘Texts’
  // expect note: get(int64_t) const
  Sample get(std::int64_t index) const override;
#endif
};

#ifdef collate_of_another_sample
// expect: collate of DataLoader<Batch> must be callable, also when it is const, with std::span<const Sample>
Batch collate(std::span<const at::Tensor> samples);
#elif defined collate_to_another_batch
// expect: collate of DataLoader<Batch> must be callable, also when it is const, with std::span<const Sample> and return
std::string collate(std::span<const Sample> samples);
#else
Batch collate(std::span<const Sample> samples);
#endif

struct Picture {
  at::Tensor pixels;
#ifdef stacked_sample_with_a_number
  // expect: every member of Sample must be a tensor, or hold tensors alone
  std::int64_t label;
#else
  at::Tensor label;
#endif
  static constexpr auto fields() {
    return d9d::record<Picture>(d9d::field("pixels", &Picture::pixels), d9d::field("label", &Picture::label));
  }
};

Picture stack(std::span<const Picture> pictures) { return d9d::stack_samples<Picture>(pictures); }

void use(const d9d::GlobalBatchSampler& sampler) {
  const std::unique_ptr<d9d::PackStream<Batch>> stream = d9d::as_pack_stream<Batch>(Stream());
  const std::shared_ptr<Texts> texts(new Texts());
  const d9d::DataLoader<Batch> loader(texts, collate, sampler, {});
}

#ifdef collate_of_a_vector
// expect: collate of make_pack_stream<Batch> must be callable, also when it is const, with std::span<const Sample>
Batch join(const std::vector<Sample>& samples);
#else
Batch join(std::span<const Sample> samples);
#endif

void make(const d9d::DistContext& context, const std::shared_ptr<Texts>& texts, const d9d::AutoDataConfig& config) {
  const auto stream = d9d::make_pack_stream<Batch>(context, texts, join, config, {.seed = 1});
}
