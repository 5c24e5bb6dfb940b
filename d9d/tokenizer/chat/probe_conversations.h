// Conversations by which chat templates are compared.
//
// Example
//   if (const auto difference = d9d::detail::first_difference(own, other)) throw ConfigError(*difference);
#pragma once

#include <optional>
#include <string>

#include "d9d/tokenizer/chat/chat_renderer.h"

namespace d9d::detail {

// Where two renderers write different texts for one conversation, as a part of a sentence; nullopt: nowhere. What one
// refuses the other must refuse too.
[[nodiscard]] std::optional<std::string> first_difference(const ChatRenderer& own, const ChatRenderer& other);

// Throws ConfigError if what the template takes for answers contains what the system or the user says, or not what the
// assistant says.
void check_answers(const JinjaTemplate& jinja);

}  // namespace d9d::detail
