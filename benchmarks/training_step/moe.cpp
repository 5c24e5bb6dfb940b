#include "d9d/models/qwen3_moe/model.h"

#include "benchmarks/training_step/train.h"

int main(int argc, char** argv) { return benchmarks::run<d9d::Qwen3MoEModel, d9d::Qwen3MoEParameters>(argc, argv); }
