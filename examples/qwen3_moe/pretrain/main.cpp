// Trains a small Qwen3 mixture-of-experts language model on byte-level text and exports it for Hugging Face
// transformers.
//
//   qwen3_moe_pretrain examples/qwen3_moe/pretrain/pretrain.json [key.path=value ...]
#include "d9d/models/qwen3_moe/huggingface.h"

#include "examples/common/pretrain.h"

int main(int argc, char** argv) { return examples::run_pretraining(d9d::kQwen3MoE, argc, argv); }
