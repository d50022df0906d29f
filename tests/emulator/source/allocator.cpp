// The CPU's allocator, switched to the device's pool while a kernel runs for the device: what a kernel allocates for its
// result or as scratch is then counted, capped and poisoned as the device's memory is.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include "operators.h"

namespace device {

c10::DeviceType type = c10::DeviceType::CUDA;

namespace {

thread_local int depth = 0;

struct Switch final : c10::Allocator {
  c10::Allocator* cpu = c10::GetCPUAllocator();
  static Switch* only;

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!depth || !bytes) return cpu->allocate(bytes);
    c10::DataPtr data = device::allocate(bytes);
    data.unsafe_set_device(c10::Device(c10::kCPU));
    return data;
  }
  static void release(void* start) {
    if (!start) return;
    if (!owns(start)) {
      only->cpu->raw_deleter()(start);
    } else if (type == c10::DeviceType::CUDA) {
      c10::cuda::CUDACachingAllocator::raw_delete(start);
    } else {
      npu::release(start);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Switch* Switch::only;

}  // namespace

OnDevice::OnDevice() { depth++; }
OnDevice::~OnDevice() { depth--; }

void switch_cpu_allocator() {
  Switch::only = new Switch();
  c10::SetCPUAllocator(Switch::only, 255);  // above every other priority
}

c10::DispatchKey key() {
  return type == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::PrivateUse1;
}

c10::Allocator* allocator() {
  return type == c10::DeviceType::CUDA ? c10::cuda::CUDACachingAllocator::get() : npu::allocator();
}

c10::DataPtr allocate(std::size_t bytes) { return allocator()->allocate(bytes); }

bool owns(const void* address) {
  if (type != c10::DeviceType::CUDA) return npu::owns(address);
  static auto ask = reinterpret_cast<int (*)(const void*)>(dlsym(RTLD_DEFAULT, "emu_is_device"));
  return ask && ask(address);
}

void* stream() {
  return type == c10::DeviceType::CUDA ? static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()) : nullptr;
}

}  // namespace device
