#include "d9d/peft/without_adapters.h"

#include <set>

#include "d9d/peft/adapter_site.h"

namespace d9d {

WithoutAdapters::WithoutAdapters(const std::vector<std::shared_ptr<Module>>& models) {
  std::vector<std::unique_ptr<AdapterSite>> sites;
  std::set<const Module*> seen;
  for (const auto& model : models) {
    model->for_each_module([&](const std::string&, Module& module) {
      std::unique_ptr<AdapterSite> site = adapter_site(module);
      if (site != nullptr && site->has_adapter() && seen.insert(&module).second) sites.push_back(std::move(site));
    });
  }
  for (const auto& site : sites) put_back_.push_back(site->take());
}

WithoutAdapters::~WithoutAdapters() {
  for (const auto& put_back : put_back_) put_back();
}

}  // namespace d9d
