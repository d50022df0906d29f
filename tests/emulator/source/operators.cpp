// Registers the device's operators with PyTorch's dispatcher.
#include "operators.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <memory>
#include <string>

namespace device {

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

namespace {

// CUDA's own, which launch no kernel: storage, views, streams, the choice of an attention kernel.
const std::set<std::string> KEPT = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view", "aten::view.dtype",
    "aten::_reshape_alias", "aten::set_", "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor", "aten::set_.source_Tensor_storage_offset", "aten::resize_", "aten::unfold",
    "aten::is_set_to", "aten::record_stream", "aten::_local_scalar_dense", "aten::view_as_real", "aten::view_as_complex",
    "aten::_efficientzerotensor", "aten::_lazy_clone", "aten::_has_compatible_shallow_copy_type", "aten::is_pinned",
    "aten::_pin_memory", "aten::copy_", "aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward", "aten::alias",
    "aten::_to_copy", "aten::_fused_sdp_choice"};

// Decomposed before they reach CUDA; here they are one kernel, whose work can be counted.
const std::set<std::string> WHOLE = {"aten::convolution", "aten::_convolution", "aten::convolution_backward",
                                     "aten::_scaled_dot_product_flash_attention_for_cpu",
                                     "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

bool is_fused_attention(const std::string& name) {
  if (name.find("for_cpu") != std::string::npos) return false;
  for (const char* kind : {"flash", "efficient", "cudnn"})
    if (name.rfind(std::string("aten::_scaled_dot_product_") + kind + "_attention", 0) == 0) return true;
  return false;
}

int replace_kernels() {
  // Never destroyed: tensors outlive this library's own end.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int replaced = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    std::string full = full_name(name);
    auto op = dispatcher.findOp(name);
    if (full.rfind("aten::", 0) != 0 || !op || !op->hasSchema() || KEPT.count(full)) continue;
    if (!WHOLE.count(full) && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    auto function = is_fused_attention(name.name) ? torch::CppFunction::makeFromBoxedFunction<&run_attention>()
                                                  : torch::CppFunction::makeFromBoxedFunction<&run>();
    library->impl(full.substr(6).c_str(), std::move(function));
    replaced++;
  }
  library->impl("copy_", TORCH_FN(copy));
  library->impl("cudnn_batch_norm", TORCH_FN(batch_norm));
  library->impl("cudnn_batch_norm_backward", TORCH_FN(batch_norm_backward));
  static auto* on_cpu = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  on_cpu->impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
  return replaced;
}

}  // namespace

}  // namespace device

// Called once, when torch is imported. Returns how many kernels were replaced.
extern "C" __attribute__((visibility("default"))) int emu_core_init() {
  const char* kind = std::getenv("EMU_DEVICE");
  bool npu_wanted = kind && std::string(kind) == "npu";
  device::type = npu_wanted ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CUDA;
  device::switch_cpu_allocator();
  if (!npu_wanted) return device::replace_kernels();
  npu::init();
  return 0;
}
