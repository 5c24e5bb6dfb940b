#include "d9d/data/text/pair_encoder.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/data/text/chat_encoder.h"

#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::pair_encoder_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Pair : public test::SourceTest {
 protected:
  using Columns = std::vector<std::string_view>;

  static std::shared_ptr<const TextEncoder> bytes() { return std::make_shared<const ByteEncoder>(); }
  EncodedRow of_texts(const Columns& columns, std::optional<std::int64_t> end = {}) const {
    return PairEncoder(bytes(), {.has_prompt = true}).encode_row(columns, end);
  }
  PairEncoder of_conversations(bool has_prompt, const ChatRenderer& chat = ChatRenderer(ChatFamily::kChatMl),
                               bool has_tools = false) const {
    const std::string tokenizer = write("tokenizer.json", test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
    return {std::make_shared<const ChatEncoder>(tokenizer, chat),
            {.has_prompt = has_prompt, .has_tools = has_tools, .chat = chat}};
  }
  static std::string text_of(const PairEncoder& encoder, const EncodedRow& row, std::int64_t begin, std::int64_t end) {
    return encoder.decode(
        std::span(row.tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  }
  // Prompt, chosen and rejected answer; or the problem.
  static std::vector<std::string> parts_of(const PairEncoder& encoder, const Columns& columns,
                                           std::optional<std::int64_t> end = {}) {
    const EncodedRow row = encoder.encode_row(columns, end);
    if (!row.problem.empty()) return {row.problem};
    const std::vector<TokenRange>& targets = row.targets.value();
    EXPECT_EQ(targets.size(), 2);
    EXPECT_EQ(targets[0].end, targets[1].begin);
    EXPECT_EQ(targets[1].end, std::ssize(row.tokens));
    return {text_of(encoder, row, 0, targets[0].begin), text_of(encoder, row, targets[0].begin, targets[0].end),
            text_of(encoder, row, targets[1].begin, targets[1].end)};
  }
};

TEST_F(Pair, Of_texts_has_the_prompt_once_and_both_answers_with_their_end) {
  const PairEncoder encoder(bytes(), {.has_prompt = true});
  EXPECT_THAT(parts_of(encoder, {"4", "five", "2 + 2 = "}, '.'), ElementsAre("2 + 2 = ", "4.", "five."));
  EXPECT_THAT(parts_of(encoder, {"4", "5", "2 + 2 = "}), ElementsAre("2 + 2 = ", "4", "5"));
}

TEST_F(Pair, Of_texts_that_end_with_the_end_has_it_once) {
  const PairEncoder encoder(bytes(), {.has_prompt = true});
  EXPECT_THAT(parts_of(encoder, {"4.", "five", "2 + 2 = "}, '.'), ElementsAre("2 + 2 = ", "4.", "five."));
  EXPECT_THAT(of_texts({"4.", "4", "?"}, '.').problem, HasSubstr("equal answers"));
}

TEST_F(Pair, Without_two_answers_to_a_prompt_is_a_problem_of_its_row) {
  EXPECT_THAT(of_texts({"", "5", "?"}, '.').problem, HasSubstr("one answer is empty"));
  EXPECT_THAT(of_texts({"4", "4", "?"}).problem, HasSubstr("equal answers"));
  EXPECT_THAT(of_texts({"4", "5", ""}).problem, HasSubstr("prompt is empty"));
}

constexpr std::string_view kAsked = R"([{"role": "user", "content": "a?"}])";
constexpr std::string_view kGood = R"([{"role": "assistant", "content": "b"}])";
constexpr std::string_view kBad = R"([{"role": "assistant", "content": "c"}])";

TEST_F(Pair, Of_conversations_has_the_header_of_the_answer_in_its_prompt) {
  const std::vector<std::string> expected = {"<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n", "b<|im_end|>\n",
                                             "c<|im_end|>\n"};
  EXPECT_EQ(parts_of(of_conversations(true), {kGood, kBad, kAsked}), expected);
  EXPECT_EQ(parts_of(of_conversations(false),
                     {R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}])",
                      R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "c"}])"}),
            expected);
}

TEST_F(Pair, Of_conversations_begins_where_they_differ) {
  const auto parts = parts_of(
      of_conversations(false),
      {R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "d?"},
           {"role": "assistant", "content": "e"}])",
       R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "d?"},
           {"role": "assistant", "content": "f"}, {"role": "user", "content": "g?"},
           {"role": "assistant", "content": "h"}])"});
  EXPECT_THAT(parts.at(0), HasSubstr("d?<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(parts.at(1), "e<|im_end|>\n");
  EXPECT_THAT(parts.at(2), HasSubstr("h<|im_end|>\n"));
}

TEST_F(Pair, Of_conversations_has_a_prompt_whose_keys_are_in_any_order) {
  EXPECT_THAT(parts_of(of_conversations(false),
                       {R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}])",
                        R"([{"content": "a?", "role": "user"}, {"role": "assistant", "content": "c"}])"}),
              ElementsAre("<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n", "b<|im_end|>\n", "c<|im_end|>\n"));
}

// What is learned is what follows the prompt: the template need not say what the assistant says.
TEST_F(Pair, Of_conversations_needs_no_template_that_tells_answers) {
  const ChatRenderer forgetful(std::make_shared<const JinjaTemplate>(
      JinjaSource{.text = "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}<|im_start|>{{ m.role }}:"
                          "{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
                          "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
                  .place = "forgetful.jinja"}));
  constexpr std::string_view kLong = R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"},
                                         {"role": "user", "content": "d?"}])";
  EXPECT_THAT(parts_of(of_conversations(true, forgetful), {kGood, kBad, kLong}),
              ElementsAre("<|im_start|>user:a?<|im_end|><|im_start|>user:d?<|im_end|><|im_start|>assistant:",
                          "b<|im_end|>", "c<|im_end|>"));
}

TEST_F(Pair, Of_conversations_that_cannot_be_compared_is_a_problem_of_its_row) {
  const auto problem = [&](bool has_prompt, const Columns& columns) {
    return of_conversations(has_prompt).encode_row(columns, {}).problem;
  };
  EXPECT_THAT(problem(true, {kGood, kGood, kAsked}), HasSubstr("equal answers"));
  EXPECT_THAT(problem(true, {kGood, "\"c\"", kAsked}), HasSubstr("a rejected answer that is no list of messages"));
  EXPECT_THAT(problem(true, {kGood, kBad, "a?"}), HasSubstr("a prompt that is no list of messages"));
  EXPECT_THAT(problem(true, {"[]", kBad, kAsked}), HasSubstr("one answer has no messages"));
  EXPECT_THAT(problem(false, {kGood, kBad}), HasSubstr("differ from the first message on"));
  EXPECT_THAT(problem(true, {kGood, kBad, kGood}), HasSubstr("ends with what the assistant says"));
  for (const char* const empty : {R"("content": null)", R"("content": "")", R"("content": [], "tool_calls": [])"}) {
    const std::string answer = cat(R"([{"role": "assistant", )", empty, "}]");
    EXPECT_THAT(problem(true, {kGood, answer, kAsked}), HasSubstr("one answer is empty")) << empty;
  }
}

TEST_F(Pair, Of_which_the_prompt_is_rendered_otherwise_alone_is_a_problem_of_its_row) {
  const ChatRenderer other(std::make_shared<const JinjaTemplate>(JinjaSource{
      .text = "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
              "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>bot:{% endif %}",
      .place = "other.jinja"}));
  EXPECT_THAT(of_conversations(true, other).encode_row(Columns{kGood, kBad, kAsked}, {}).problem,
              HasSubstr("is not how its conversations begin, by the chat template 'other.jinja'"));
}

TEST_F(Pair, Of_which_the_answer_takes_the_end_of_the_prompt_is_a_problem_of_its_row) {
  const ChatRenderer spaced(std::make_shared<const JinjaTemplate>(
      JinjaSource{.text = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
                          "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}",
                  .place = "spaced.jinja"}));
  const std::string tokenizer = write("tokenizer.json", test::byte_tokenizer({"<|im_start|>", "<|im_end|>", " c"}));
  const PairEncoder encoder(std::make_shared<const ChatEncoder>(tokenizer, spaced),
                            {.has_prompt = true, .chat = spaced});
  EXPECT_THAT(encoder.encode_row(Columns{kGood, kBad, kAsked}, {}).problem,
              AllOf(HasSubstr("the answer's first token takes the prompt's end"), HasSubstr("'spaced.jinja'")));
  EXPECT_EQ(encoder.encode_row(Columns{kGood, R"([{"role": "assistant", "content": "d"}])", kAsked}, {}).problem, "");
}

TEST_F(Pair, Of_conversations_with_tools_shows_them_to_the_template) {
  const ChatRenderer own(std::make_shared<const JinjaTemplate>(JinjaSource{
      .text = "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>"
              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
      .place = "own.jinja"}));
  EXPECT_THAT(parts_of(of_conversations(true, own, /*has_tools=*/true), {kGood, kBad, kAsked, R"([{"name": "f"}])"}),
              ElementsAre("[{\"name\": \"f\"}]<|im_start|>user:a?<|im_end|><|im_start|>assistant:", "b<|im_end|>",
                          "c<|im_end|>"));
}

TEST_F(Pair, Has_a_fingerprint_of_its_own) {
  const std::string texts = PairEncoder(bytes(), {.has_prompt = true}).fingerprint();
  EXPECT_NE(texts, bytes()->fingerprint());
  EXPECT_NE(of_conversations(true).fingerprint(), of_conversations(false).fingerprint());
}

}  // namespace
}  // namespace d9d::pair_encoder_test
