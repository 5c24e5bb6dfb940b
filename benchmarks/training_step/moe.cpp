#include "d9d/models/qwen3_moe/huggingface.h"

#include "benchmarks/training_step/train.h"

int main(int argc, char** argv) { return benchmarks::run(d9d::kQwen3MoE, argc, argv); }
