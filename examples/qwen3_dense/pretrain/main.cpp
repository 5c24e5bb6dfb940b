// Trains a small dense Qwen3 language model on byte-level text and exports it for Hugging Face transformers.
//
//   qwen3_dense_pretrain examples/qwen3_dense/pretrain/pretrain.json [key.path=value ...]
#include "d9d/models/qwen3_dense/huggingface.h"

#include "examples/common/pretrain.h"

int main(int argc, char** argv) { return examples::run_pretraining(d9d::kQwen3Dense, argc, argv); }
