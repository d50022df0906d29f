// Products in 16 bits as a card computes them: exact products, summed in 32 bits and rounded once (PTX ISA, mma). Most
// CPUs have no kernels for 16 bits, and those that stand in take up to a hundred times as long.
#include <ATen/ATen.h>

#include "operators.h"
#include "work.h"

namespace device {

namespace {

using c10::IValue;
using torch::jit::Stack;

bool is_narrow(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  at::ScalarType dtype = value.toTensor().scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

}  // namespace

bool run_wide(const c10::OperatorHandle& op, const Traits& traits, Stack* stack, std::size_t count) {
  const std::size_t base = stack->size() - count;
  bool sums = traits.product != Product::none && traits.product != Product::attention;
  // Overloads give a dtype of their own, or write where they are told.
  if (!sums || !op.schema().overload_name().empty() || !is_narrow((*stack)[base])) return false;
  const at::ScalarType dtype = (*stack)[base].toTensor().scalar_type();
  for (std::size_t k = base; k < stack->size(); k++)
    if (is_narrow((*stack)[k])) (*stack)[k] = (*stack)[k].toTensor().to(at::kFloat);
  op.callBoxed(stack);
  std::optional<OnDevice> counted;
  if (!traits.own_scratch) counted.emplace();
  stack->back() = stack->back().toTensor().to(dtype);
  return true;
}

}  // namespace device
