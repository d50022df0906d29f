// What an operator is and does, read off its name, schema and shapes.
#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "clock.h"
#include "operators.h"

namespace device {

enum class Product { none, matrices, matrices_added, convolution, attention };

struct Traits {
  const char* name;
  std::vector<int> generators;  // positions of arguments
  std::vector<bool> writes;     // by argument
  std::vector<bool> overwrites;  // those whose former contents do not matter: out=, the target of a copy or a fill
  bool writes_any = false;
  bool takes_cpu_tensors = false;  // indices and sources of copies may be the CPU's
  bool own_scratch = false;        // the CPU's way needs scratch that a card's does not: not counted
  bool reads_twice = false;        // a card's way reads the first input in two kernels
  Product product = Product::none;
};

const Traits& traits_of(const c10::OperatorHandle& op);

// Instead of the arithmetic: results of the right shape. False where that is not known; the stack is then as it was.
bool run_shapes_only(const Traits& traits, torch::jit::Stack* stack, std::size_t count);

// A product in 16 bits, summed in 32, which only its result is counted of. False, and nothing done, for any other call.
bool run_wide(const c10::OperatorHandle& op, const Traits& traits, torch::jit::Stack* stack, std::size_t count);

// FLOPs, bytes and tiles of a call. Inputs as they came, outputs as they are.
card::Kernel kernel_of(const Traits& traits, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);

}  // namespace device
