#include "d9d/tokenizer/unicode/normalization_tables.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace d9d::detail {
namespace {

constexpr std::uint32_t kCombiningClasses[] = {
#include "d9d/tokenizer/unicode/combining_classes.inc"
};
constexpr std::uint32_t kDecompositions[] = {
#include "d9d/tokenizer/unicode/decompositions.inc"
};
constexpr std::uint32_t kCompositions[] = {
#include "d9d/tokenizer/unicode/compositions.inc"
};

constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;
constexpr char32_t kNumSyllables = kNumLeading * kNumVowels * kNumTrailing;

bool is_syllable(char32_t code) { return code - kSyllables < kNumSyllables; }

TwoStageTable<std::uint8_t> read_combining_classes() {
  std::vector<std::uint8_t> flat(kNumCodePoints);
  for (std::size_t i = 0; i < std::size(kCombiningClasses); ++i) {
    const char32_t end = i + 1 < std::size(kCombiningClasses) ? kCombiningClasses[i + 1] >> 8 : kNumCodePoints;
    std::fill(flat.begin() + (kCombiningClasses[i] >> 8), flat.begin() + end, kCombiningClasses[i] & 0xFF);
  }
  return TwoStageTable<std::uint8_t>(flat);
}

std::u32string take(const std::uint32_t*& number, std::size_t count) {
  const std::u32string result(number, number + count);
  number += count;
  return result;
}

std::uint8_t bit(NormalForm form) { return static_cast<std::uint8_t>(1 << static_cast<int>(form)); }

}  // namespace

NormalizationTables::NormalizationTables()
    : classes_(read_combining_classes()), inert_(std::vector<std::uint8_t>(kNumCodePoints)) {
  using enum NormalForm;
  const std::uint8_t composed = bit(kNfc) | bit(kNfkc);
  const std::uint8_t decomposed = bit(kNfd) | bit(kNfkd);
  std::vector<std::uint8_t> inert(kNumCodePoints, composed | decomposed);
  for (const std::uint32_t* number = kDecompositions; number != std::end(kDecompositions);) {
    const std::uint32_t head = *number++;
    const char32_t code = head & 0x1FFFFF;
    Decomposition& entry = decompositions_[code];
    entry.canonical = take(number, head >> 21 & 31);
    entry.compatible = take(number, head >> 26);
    inert[code] &= entry.canonical == std::u32string(1, code) ? bit(kNfc) | bit(kNfd) : 0;
  }
  std::vector<char32_t> seconds;
  for (const std::uint32_t* triple = kCompositions; triple != std::end(kCompositions); triple += 3) {
    compositions_.emplace(std::uint64_t{triple[0]} << 32 | triple[1], triple[2]);
    const Decomposition& entry = decompositions_.at(triple[2]);  // it composes again, so NFC does not change it
    inert[triple[2]] |= entry.canonical == entry.compatible ? composed : bit(kNfc);
    seconds.push_back(triple[1]);
  }
  for (char32_t i = 0; i < kNumSyllables; ++i) inert[kSyllables + i] = composed;
  for (char32_t i = 0; i < kNumVowels; ++i) seconds.push_back(kVowels + i);
  for (char32_t i = 1; i < kNumTrailing; ++i) seconds.push_back(kTrailing + i);
  for (const char32_t second : seconds) inert[second] &= decomposed;
  for (char32_t code = 0; code < kNumCodePoints; ++code) {
    if (classes_[code] != 0) inert[code] = 0;
  }
  inert_ = TwoStageTable<std::uint8_t>(inert);
}

void NormalizationTables::append_decomposition(NormalForm form, char32_t code, std::u32string& result) const {
  if (is_syllable(code)) {
    const char32_t index = code - kSyllables;
    result.push_back(kLeading + index / (kNumVowels * kNumTrailing));
    result.push_back(kVowels + index / kNumTrailing % kNumVowels);
    if (index % kNumTrailing != 0) result.push_back(kTrailing + index % kNumTrailing);
    return;
  }
  const auto entry = decompositions_.find(code);
  if (entry == decompositions_.end()) return result.push_back(code);
  const bool is_canonical = form == NormalForm::kNfc || form == NormalForm::kNfd;
  result += is_canonical ? entry->second.canonical : entry->second.compatible;
}

char32_t NormalizationTables::compose(char32_t first, char32_t second) const {
  if (first - kLeading < kNumLeading && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeading) * kNumVowels + (second - kVowels)) * kNumTrailing;
  }
  if (is_syllable(first) && (first - kSyllables) % kNumTrailing == 0 && second - kTrailing - 1 < kNumTrailing - 1) {
    return first + (second - kTrailing);
  }
  const auto entry = compositions_.find(std::uint64_t{first} << 32 | second);
  return entry == compositions_.end() ? 0 : entry->second;
}

const NormalizationTables& normalization_tables() {
  static const NormalizationTables kTables;
  return kTables;
}

}  // namespace d9d::detail
