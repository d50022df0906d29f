// Products without their arithmetic: results of the right shape, full of zeros. For what depends on shapes alone (bytes,
// launches, the clock) at sizes whose arithmetic would take the CPU minutes.
#include <ATen/ATen.h>

#include "operators.h"
#include "work.h"

namespace device {

namespace {

using c10::IValue;
using torch::jit::Stack;

at::Tensor convolution(const Stack& stack, std::size_t base) {
  at::Tensor input = stack[base].toTensor(), weight = stack[base + 1].toTensor();
  auto stride = stack[base + 3].toIntVector(), padding = stack[base + 4].toIntVector(),
       dilation = stack[base + 5].toIntVector();
  bool transposed = stack[base + 6].toBool();
  std::vector<std::int64_t> shape = {input.size(0), weight.size(0)};
  if (transposed || input.dim() != weight.dim()) return {};
  auto of = [](const std::vector<std::int64_t>& values, std::size_t d) { return values[values.size() == 1 ? 0 : d]; };
  for (std::int64_t d = 0; d < input.dim() - 2; d++) {
    std::int64_t reach = of(dilation, d) * (weight.size(d + 2) - 1) + 1;
    shape.push_back((input.size(d + 2) + 2 * of(padding, d) - reach) / of(stride, d) + 1);
  }
  return at::zeros(shape, input.options()).contiguous(input.suggest_memory_format());
}

at::Tensor matrices(const at::Tensor& left, const at::Tensor& right) {
  std::vector<std::int64_t> shape = left.sizes().vec();
  shape.back() = right.size(-1);
  return at::zeros(shape, left.options());
}

}  // namespace

bool run_shapes_only(const Traits& traits, Stack* stack, std::size_t count) {
  if (traits.writes_any) return false;
  const std::size_t base = stack->size() - count;
  auto tensor = [&](std::size_t at) { return (*stack)[base + at].toTensor(); };
  std::vector<at::Tensor> made;
  const std::string name = traits.name;
  if (traits.product == Product::convolution) {
    made = {convolution(*stack, base)};
  } else if (name == "aten::mm" || name == "aten::bmm") {
    made = {matrices(tensor(0), tensor(1))};
  } else if (traits.product == Product::matrices_added) {
    made = {matrices(tensor(1), tensor(2))};
  } else if (traits.product == Product::attention) {
    at::Tensor query = tensor(0);
    at::Tensor log_sum = at::zeros({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat));
    made = {at::zeros_like(query), log_sum};
  }
  if (made.empty() || !made[0].defined()) return false;
  torch::jit::drop(*stack, count);
  for (at::Tensor& each : made) stack->push_back(std::move(each));
  return true;
}

}  // namespace device
