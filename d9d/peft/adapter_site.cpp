#include "d9d/peft/adapter_site.h"

#include <ATen/ATen.h>

#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/moe/grouped_linear.h"
#include "d9d/peft/adopted_linear.h"

namespace d9d {
namespace {

at::Tensor wide(const ParameterPtr& weight) {
  const at::Tensor stored = weight->stored().detach();
  return stored.to(at::promote_types(stored.scalar_type(), at::kFloat));
}

template <class L>
std::vector<ParameterPtr> weights_of(const L& module) {
  if constexpr (requires { module.weights; }) {
    return module.weights;
  } else {
    return {module.weight};
  }
}

// B A of each weight, as the weight has it.
template <class L>
std::vector<at::Tensor> products_of(const L& module) {
  return {wide(module.adapter()->b->weight).matmul(wide(module.adapter()->a->weight))};
}
std::vector<at::Tensor> products_of(const GroupedLinear& module) {  // [groups, in, out]
  return {wide(module.adapter()->a->weight).matmul(wide(module.adapter()->b->weight))};
}
std::vector<at::Tensor> products_of(const LanguageModellingHead& module) {
  std::vector<at::Tensor> products;
  for (const ParameterPtr& b : module.adapter()->b->weights) {
    products.push_back(wide(b).matmul(wide(module.adapter()->a->weight)));
  }
  return products;
}
std::vector<at::Tensor> products_of(const SplitTokenEmbeddings& module) {  // A is [rows, r], B [H, r]
  std::vector<at::Tensor> products;
  for (const ParameterPtr& a : module.adapter()->a->weights) {
    products.push_back(wide(a).matmul(wide(module.adapter()->b->weight).t()));
  }
  return products;
}

// L: a module, or AdoptedLinear. Handle: a pointer to the first, the second itself.
template <class L, class Handle>
class SiteOf final : public AdapterSite {
 public:
  explicit SiteOf(Handle module) : module_(module) {}

  [[nodiscard]] std::vector<ParameterPtr> bases() const override {
    std::vector<ParameterPtr> all = weights_of(get());
    if constexpr (requires(const L& each) { each.bias; }) {
      if (get().bias) all.push_back(get().bias);
    }
    return all;
  }
  [[nodiscard]] bool computes() const override {
    if constexpr (std::is_same_v<L, SplitTokenEmbeddings>) return get().use != EmbeddingUse::kHead;
    return true;
  }
  [[nodiscard]] bool is_tied() const override {
    if constexpr (std::is_same_v<L, SplitTokenEmbeddings>) return get().use != EmbeddingUse::kLookup;
    if constexpr (std::is_same_v<L, LanguageModellingHead>) return get().is_tied;
    return false;
  }
  [[nodiscard]] bool has_adapter() const override { return get().adapter().has_value(); }
  void add(const LowRankConfig& config) override { get().add_adapter(config); }
  [[nodiscard]] std::vector<at::Tensor> terms() const override {
    std::vector<at::Tensor> all = products_of(get());
    for (at::Tensor& term : all) term = term * get().adapter()->scale;
    return all;
  }
  [[nodiscard]] std::function<void()> take() override {
    return [module = module_, adapter = get().take_adapter()]() mutable { of(module).put_adapter(adapter); };
  }

 private:
  static L& of(L* module) { return *module; }
  static L& of(L& module) { return module; }
  [[nodiscard]] L& get() const { return of(module_); }

  mutable Handle module_;
};

template <class L>
std::unique_ptr<AdapterSite> site_if(Module& module) {
  auto* const found = dynamic_cast<L*>(&module);
  return found == nullptr ? nullptr : std::make_unique<SiteOf<L, L*>>(found);
}

}  // namespace

std::unique_ptr<AdapterSite> adapter_site(Module& module) {
  if (auto site = site_if<Linear>(module)) return site;
  if (auto site = site_if<GroupedLinear>(module)) return site;
  if (auto site = site_if<LanguageModellingHead>(module)) return site;
  if (auto site = site_if<SplitTokenEmbeddings>(module)) return site;
  auto* const adopted = dynamic_cast<detail::AdoptedModule*>(&module);
  if (adopted == nullptr || !adopted->is_linear()) return nullptr;
  return std::make_unique<SiteOf<AdoptedLinear, AdoptedLinear>>(AdoptedLinear(*adopted));
}

}  // namespace d9d
