// How documents become samples: "view" and "sequence_length" of a source.
//
// Example
//   {"sequence_length": 2048, "view": {"kind": "packed", "buffer_size": 4096, "long_documents": "split"}}
#pragma once

#include <cstdint>
#include <variant>

#include "d9d/base/record.h"
#include "d9d/data/sequences/long_documents.h"

namespace d9d {

// Concatenates the documents and splits them into sequences of sequence_length: TokenDataset.
struct ConcatenatedViewConfig {
  static constexpr Tag kTag = {"kind", "concatenated"};
  static constexpr auto fields() { return record<ConcatenatedViewConfig>(); }
};

// One document per sample, of at most sequence_length positions: DocumentDataset.
struct DocumentsViewConfig {
  // Longer than a sequence: an error, or cut off, or cut into several, or left out.
  LongDocuments long_documents = LongDocuments::kRefuse;
  // If > 0, documents are sorted by length within buffers of this size, so that batches need little padding
  // (BufferSortedDataset). Must be a multiple of global_batch_size. 0: no sorting.
  std::int64_t sort_buffer_size = 0;

  static constexpr Tag kTag = {"kind", "documents"};
  static constexpr auto fields() {
    using View = DocumentsViewConfig;
    return record<View>(defaulted("long_documents", &View::long_documents),
                        defaulted("sort_buffer_size", &View::sort_buffer_size, at_least(0)));
  }
};

// Packs several documents, which do not attend to each other, into each sequence of sequence_length: PackedDataset.
struct PackedViewConfig {
  // Longer than a sequence: an error, or cut off, or cut into several, or left out.
  LongDocuments long_documents = LongDocuments::kRefuse;
  std::int64_t buffer_size = 1024;  // number of documents that are packed at a time

  static constexpr Tag kTag = {"kind", "packed"};
  static constexpr auto fields() {
    using View = PackedViewConfig;
    return record<View>(defaulted("long_documents", &View::long_documents),
                        defaulted("buffer_size", &View::buffer_size, at_least(1)));
  }
};

// Packs documents as PackedViewConfig does, but tokenises them while the job runs, for data that is read once:
// StreamedPacks.
struct StreamedViewConfig {
  // Longer than a sequence: an error, or cut off, or cut into several, or left out.
  LongDocuments long_documents = LongDocuments::kRefuse;
  std::int64_t buffer_size = 1024;  // number of documents that are packed at a time
  // Positions without padding of a step over all ranks; 0: global_batch_size sequences.
  std::int64_t tokens_per_step = 0;

  static constexpr Tag kTag = {"kind", "streamed"};
  static constexpr auto fields() {
    using View = StreamedViewConfig;
    return record<View>(defaulted("long_documents", &View::long_documents),
                        defaulted("buffer_size", &View::buffer_size, at_least(1)),
                        defaulted("tokens_per_step", &View::tokens_per_step, at_least(0)));
  }
};

using ViewConfig = std::variant<ConcatenatedViewConfig, DocumentsViewConfig, PackedViewConfig, StreamedViewConfig>;

struct SequenceConfig {
  std::int64_t sequence_length = 1;  // positions
  ViewConfig view = {};              // how documents become samples

  static constexpr auto fields() {
    using Config = SequenceConfig;
    return record<Config>(required("sequence_length", &Config::sequence_length, at_least(1)),
                          defaulted("view", &Config::view));
  }
};

}  // namespace d9d
