#include "work.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

namespace device {

namespace {

constexpr double TILE = 64;
constexpr int FIRST_WITH_BFLOAT16 = 80;  // compute capability times ten

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

bool fills(const std::string& name) {
  for (const char* each : {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_"})
    if (name == std::string("aten::") + each) return true;
  return false;
}

// Kernels that take tensors of several dtypes as they are on a card, where a CPU makes copies in a common one: elementwise
// (ATen/native/cuda/Loops.cuh, gpu_kernel's dynamic casting; TensorIterator.cpp makes its temporaries for CPUs alone), and
// reductions of 16 bits to float32 (ATen/native/ReduceOpsUtils.h, gpu_lowp_to_f32).
bool casts_inside(const std::string& name) {
  for (const char* each : {"add", "sub", "mul", "div", "addcmul", "addcdiv", "sum", "mean", "linalg_vector_norm"}) {
    const std::string plain = std::string("aten::") + each;
    if (name == plain || name == plain + "_") return true;
  }
  return false;
}

Product product_of(const std::string& name) {
  if (name == "aten::mm" || name == "aten::bmm") return Product::matrices;
  if (name == "aten::_int_mm" || name == "aten::_scaled_mm") return Product::matrices;
  if (name == "aten::addmm" || name == "aten::baddbmm") return Product::matrices_added;
  if (name == "aten::convolution" || name == "aten::_convolution") return Product::convolution;
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") return Product::attention;
  return Product::none;
}

Traits read(const c10::FunctionSchema& schema) {
  Traits traits;
  const std::string& name = schema.name();
  traits.name = name.c_str();
  for (std::size_t k = 0; k < schema.arguments().size(); k++) {
    const auto& argument = schema.arguments()[k];
    if (argument.type()->str().find("Generator") != std::string::npos) traits.generators.push_back(int(k));
    bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    traits.writes.push_back(writes);
    traits.overwrites.push_back(writes && (argument.kwarg_only() || fills(name)));
    traits.writes_any = traits.writes_any || writes;
  }
  traits.takes_cpu_tensors = starts(name, "aten::index") || starts(name, "aten::_unsafe_index") ||
                             name == "aten::_index_put_impl_" || name == "aten::copy_" || name == "aten::_copy_from";
  static const bool count_scratch = card::variable("EMU_SCRATCH", 0) != 0;
  // im2col, reordered weights and maps, a norm put together of several operators: they say nothing of a card, which has
  // one kernel. What cuDNN takes is a rule of the pack's prediction.
  traits.own_scratch = casts_inside(name) ||
                       (!count_scratch && (starts(name, "aten::convolution") || name == "aten::_convolution" ||
                                           starts(name, "aten::_scaled_dot_product_flash_attention_for_cpu") ||
                                           starts(name, "aten::upsample_nearest") ||
                                           name == "aten::_fused_rms_norm" ||
                                           name == "aten::_fused_rms_norm_backward"));
  // Statistics of the whole map, then an elementwise kernel over it (ATen/native/cuda/group_norm_kernel.cu).
  traits.reads_twice = name == "aten::native_group_norm";
  traits.product = product_of(name);
  return traits;
}

int rate_of(const at::Tensor& operand, Product product) {
  static const int capability = int(card::variable("EMU_SM", 86));
  switch (operand.scalar_type()) {
    case at::kDouble: return card::DOUBLE;
    case at::kHalf: return card::HALF;
    case at::kBFloat16: return capability >= FIRST_WITH_BFLOAT16 ? card::HALF : card::SINGLE;
    case at::kFloat:  // torch's defaults: cuDNN may use TF32, cuBLAS not
      return product == Product::convolution && capability >= FIRST_WITH_BFLOAT16 ? card::TF32 : card::SINGLE;
    default: return operand.element_size() == 1 ? card::EIGHT : card::SINGLE;
  }
}

// Each tensor once: what is read twice by one kernel comes once from memory.
double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) bytes += double(tensor.nbytes());
  return bytes;
}

double tiles(double rows, double columns, double batch = 1) {
  return std::ceil(rows / TILE) * std::ceil(columns / TILE) * batch;
}

void count_product(card::Kernel& kernel, Product product, const std::vector<at::Tensor>& in, const at::Tensor& out) {
  std::size_t first = product == Product::matrices_added ? 1 : 0;
  if (in.size() < first + 2 || out.dim() < 2) return;
  const at::Tensor &left = in[first], &right = in[first + 1];
  double results = double(out.numel());
  if (product == Product::convolution) {
    double channels = double(out.size(1));
    kernel.flops = 2 * results * double(right.numel()) / std::max<double>(1, double(right.size(0)));
    kernel.tiles = tiles(results / std::max(1.0, channels), channels);
  } else if (product == Product::attention) {
    double tokens = double(left.size(-2)), heads = double(left.numel()) / (tokens * double(left.size(-1)));
    kernel.flops = 4 * double(left.numel()) * double(right.size(-2));
    kernel.tiles = std::ceil(tokens / TILE) * heads;  // blocks of queries: Dao, FlashAttention-2 (2023), section 3.2
  } else {
    double rows = double(out.size(-2)), columns = double(out.size(-1));
    kernel.flops = 2 * results * double(left.size(-1));
    kernel.tiles = tiles(rows, columns, results / std::max(1.0, rows * columns));
  }
  kernel.rate = rate_of(left, product);
}

}  // namespace

const Traits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const void*, Traits> known;
  const auto& schema = op.schema();
  auto it = known.find(&schema);
  return it != known.end() ? it->second : known.emplace(&schema, read(schema)).first->second;
}

card::Kernel kernel_of(const Traits& traits, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
  card::Kernel kernel;
  kernel.bytes = bytes_of(inputs) + bytes_of(outputs);
  if (traits.reads_twice && !inputs.empty()) kernel.bytes += double(inputs[0].nbytes());
  if (traits.product != Product::none && !outputs.empty()) count_product(kernel, traits.product, inputs, outputs[0]);
  return kernel;
}

}  // namespace device
