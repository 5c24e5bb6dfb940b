// Prints the perplexity of a Qwen3 mixture of experts on text.
//
//   qwen3_moe_perplexity CONFIG.json inference.model_stage_factory.source_checkpoint=FOLDER [key.path=value ...]
#include "d9d/models/qwen3_moe/huggingface.h"

#include "examples/common/perplexity.h"

int main(int argc, char** argv) { return examples::run_perplexity(d9d::kQwen3MoE, argc, argv); }
