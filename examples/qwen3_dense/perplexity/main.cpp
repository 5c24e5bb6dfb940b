// Prints the perplexity of a dense Qwen3 on text.
//
//   qwen3_dense_perplexity CONFIG.json inference.model_stage_factory.source_checkpoint=FOLDER [key.path=value ...]
#include "d9d/models/qwen3_dense/huggingface.h"

#include "examples/common/perplexity.h"

int main(int argc, char** argv) { return examples::run_perplexity(d9d::kQwen3Dense, argc, argv); }
