// Kernels that only CUDA has, by the CPU's: fused attention with CUDA's many results, cuDNN's batch norm, the
// gradient of a fused norm.
#include <ATen/ATen.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <unordered_map>

#include "operators.h"

namespace device {

namespace {

using at::Tensor;

// Arguments by name: the kernels differ in their order.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
    std::size_t count = schema.arguments().size();
    for (std::size_t k = 0; k < count; k++)
      values_[schema.arguments()[k].name()] = (*stack)[stack->size() - count + k];
    torch::jit::drop(*stack, count);
  }
  Tensor tensor(const char* name) { return values_.at(name).toTensor(); }
  std::optional<Tensor> optional(const char* name) {
    auto it = values_.find(name);
    if (it == values_.end() || !it->second.isTensor() || !it->second.toTensor().defined()) return std::nullopt;
    return it->second.toTensor();
  }
  std::optional<double> scale() {
    auto it = values_.find("scale");
    return it != values_.end() && it->second.isDouble() ? std::optional<double>(it->second.toDouble()) : std::nullopt;
  }
  bool has(const char* name) { return values_.count(name) != 0; }
  bool flag(const char* name) { return values_.at(name).toBool(); }
  double dropout() { return values_.at("dropout_p").toDouble(); }
  bool causal() { return values_.at("is_causal").toBool(); }

 private:
  std::unordered_map<std::string, c10::IValue> values_;
};

std::vector<Tensor> forward(Arguments& a) {
  Tensor query = a.tensor("query"), key = a.tensor("key"), value = a.tensor("value");
  auto mask = a.optional("attn_bias");
  if (a.dropout() > 0 || query.size(-1) != value.size(-1)) {  // the CPU's fused kernel has neither
    auto result = at::_scaled_dot_product_attention_math(query, key, value, mask, a.dropout(), a.causal(), std::nullopt,
                                                         a.scale());
    Tensor log_sum = at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat));
    return {std::get<0>(result), log_sum};
  }
  auto result =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, a.dropout(), a.causal(), mask, a.scale());
  // The memory-efficient kernel keeps the sums of exponentials only for a backward.
  bool keeps_sums = !a.has("compute_log_sumexp") || a.flag("compute_log_sumexp");
  Tensor sums = keeps_sums ? std::get<1>(result)
                           : at::empty({query.size(0), query.size(1), 0}, query.options().dtype(at::kFloat));
  return {std::get<0>(result), sums};
}

std::vector<Tensor> backward(Arguments& a) {
  auto gradient = a.optional("grad_out");
  auto result = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient ? *gradient : a.tensor("grad_out_"), a.tensor("query"), a.tensor("key"), a.tensor("value"), a.tensor("out"),
      a.tensor("logsumexp"), a.dropout(), a.causal(), a.optional("attn_bias"), a.scale());
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

}  // namespace

void run_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Arguments arguments(schema, stack);
  bool backwards = schema.name().find("_backward") != std::string::npos;
  std::vector<Tensor> made = backwards ? backward(arguments) : forward(arguments);
  std::size_t next = 0;
  for (const auto& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType) {
      stack->push_back(std::int64_t(0));
    } else if (next < made.size()) {
      stack->push_back(made[next++]);
    } else {  // what only the backward of the real kernel reads
      stack->push_back(backwards ? Tensor() : at::empty({0}, at::dtype(at::kLong).device(here())));
    }
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const Tensor& weight,
                                                      const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
                                                      const std::optional<Tensor>& variance, bool training, double momentum,
                                                      double epsilon) {
  auto result = at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, epsilon);
  Tensor reserve = at::empty({0}, input.options().dtype(at::kByte));
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result), reserve};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& input, const Tensor& gradient, const Tensor& weight,
                                                       const std::optional<Tensor>& mean,
                                                       const std::optional<Tensor>& variance,
                                                       const std::optional<Tensor>& saved_mean,
                                                       const std::optional<Tensor>& saved_variance, double epsilon,
                                                       const Tensor&) {
  return at::native_batch_norm_backward(gradient, input, weight, mean, variance, saved_mean, saved_variance, true, epsilon,
                                        {true, true, true});
}

// Zhang & Sennrich, "Root mean square layer normalization" (arXiv 1910.07467), equation 4, differentiated.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& gradient, const Tensor& input, at::IntArrayRef shape,
                                             const Tensor& scale, const std::optional<Tensor>& weight,
                                             std::array<bool, 2> wanted) {
  std::vector<std::int64_t> last, others;
  const std::int64_t behind = std::int64_t(shape.size());
  for (std::int64_t d = 0; d < input.dim(); d++) (d < input.dim() - behind ? others : last).push_back(d);
  const at::ScalarType wide = at::promote_types(input.scalar_type(), at::kFloat);
  Tensor normed = input.to(wide) * scale, outer = gradient.to(wide), of_input, of_weight;
  const bool has_weight = weight && weight->defined();
  if (wanted[1] && has_weight) {
    Tensor each = outer * normed;
    of_weight = (others.empty() ? each : each.sum(others)).to(weight->scalar_type());
  }
  if (wanted[0]) {
    if (has_weight) outer = outer * weight->to(wide);
    of_input = (scale * (outer - normed * (outer * normed).mean(last, true))).to(input.scalar_type());
  }
  return {of_input, of_weight};
}

}  // namespace device
