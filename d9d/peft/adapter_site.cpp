#include "d9d/peft/adapter_site.h"

#include <set>

#include <ATen/ATen.h>

#include "d9d/blocks/embedding/split_token_embeddings.h"
#include "d9d/blocks/head/language_modelling_head.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/moe/grouped_linear.h"
#include "d9d/peft/adopted_linear.h"

namespace d9d {
namespace {

template <class L>
std::vector<ParameterPtr> weights_of(const L& module) {
  if constexpr (requires { module.weights; }) {
    return module.weights;
  } else {
    return {module.weight};
  }
}

template <class L>
constexpr LowRankProduct kProductOf = LowRankProduct::kLinear;
template <>
constexpr LowRankProduct kProductOf<GroupedLinear> = LowRankProduct::kExperts;
template <>
constexpr LowRankProduct kProductOf<SplitTokenEmbeddings> = LowRankProduct::kTable;

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
  [[nodiscard]] bool can_have_magnitude() const override {
    if constexpr (std::is_same_v<L, Linear>) return get().config.role == ParameterRole::kLinear;
    return false;
  }
  [[nodiscard]] bool has_adapter() const override { return get().adapter().has_value(); }
  void add(const LowRankConfig& config) override { get().add_adapter(config); }
  [[nodiscard]] LowRankTerms terms() const override {
    const auto adapter = get().adapter();
    return {.product = kProductOf<L>,
            .weights = weights_of(get()),
            .a = weights_of(*adapter->a),
            .b = weights_of(*adapter->b),
            .scale = adapter->scale,
            .magnitude = adapter->magnitude ? adapter->magnitude->weight : nullptr};
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

using Visit = std::function<void(const std::string& name, const Module& module, const AdapterSite& site)>;

void visit_sites(const Module& module, const std::string& prefix, std::set<const Module*>& seen, const Visit& visit) {
  for (const auto& [name, child] : module.named_children()) {
    if (!seen.insert(child.get()).second) continue;
    if (const auto site = adapter_site(*child)) visit(prefix + name, *child, *site);
    visit_sites(*child, name.empty() ? prefix : prefix + name + ".", seen, visit);  // stages have no name
  }
}

}  // namespace

at::Tensor low_rank_term(LowRankProduct product, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (product == LowRankProduct::kExperts) return a.matmul(b) * scale;
  if (product == LowRankProduct::kTable) return a.matmul(b.t()) * scale;
  return b.matmul(a) * scale;
}

std::unique_ptr<AdapterSite> adapter_site(Module& module) {
  if (auto site = site_if<Linear>(module)) return site;
  if (auto site = site_if<GroupedLinear>(module)) return site;
  if (auto site = site_if<LanguageModellingHead>(module)) return site;
  if (auto site = site_if<SplitTokenEmbeddings>(module)) return site;
  auto* const adopted = dynamic_cast<detail::AdoptedModule*>(&module);
  if (adopted == nullptr || !adopted->is_linear()) return nullptr;
  return std::make_unique<SiteOf<AdoptedLinear, AdoptedLinear>>(AdoptedLinear(*adopted));
}

void for_each_adapter_site(const Module& model, const Visit& visit) {
  std::set<const Module*> seen;
  visit_sites(model, "", seen, visit);
}

}  // namespace d9d
