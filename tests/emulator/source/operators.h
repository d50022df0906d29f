// The operators of an emulated device: every kernel is the CPU's, run on the device's own memory.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>

#include <set>
#include <string>

namespace device {

// CUDA (over runtime.cpp, with PyTorch's own allocator, streams and events) or PrivateUse1 (npu.cpp).
extern c10::DeviceType type;
inline c10::Device here() { return c10::Device(type, 0); }
c10::DispatchKey key();

c10::Allocator* allocator();
c10::DataPtr allocate(std::size_t bytes);
bool owns(const void* address);
void* stream();

// While one of these lives, what the CPU's allocator hands out on this thread is the device's memory.
struct OnDevice {
  OnDevice();
  ~OnDevice();
};
void switch_cpu_allocator();

// The boxed function that stands in the place of every kernel of the device.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Kernels that only CUDA has: fused attention, cuDNN's batch norm, the gradient of a fused norm.
void run_attention(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, bool, double, double);
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm_backward(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, double,
    const at::Tensor&);
// Of tensors on the CPU, whose autograd takes another way.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                                                     const at::Tensor&, const std::optional<at::Tensor>&,
                                                     std::array<bool, 2>);
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking);

// "aten::add.Tensor" and the like, of every operator that torch knows.
std::string full_name(const c10::OperatorName& name);

}  // namespace device

namespace npu {

void init();
c10::Allocator* allocator();
bool owns(const void* address);
void release(void* start);
at::Generator generator();
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

}  // namespace npu
