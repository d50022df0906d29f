#include "call.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

namespace device {

namespace {

c10::StorageImpl* impl(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

c10::Storage storage(std::size_t bytes, c10::DataPtr data, c10::Allocator* allocator) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                           allocator, true));
}

// The memory of a CPU storage that holds the device's memory, taken out of it.
c10::DataPtr taken(c10::StorageImpl* from) {
  c10::DataPtr data = from->set_data_ptr(c10::DataPtr(from->mutable_data(), c10::Device(c10::kCPU)));
  data.unsafe_set_device(here());
  return data;
}

void set_shape(const at::Tensor& of, const at::Tensor& like) {
  of.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
}

bool same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

}  // namespace

c10::Storage Call::over(const c10::Storage& device) {
  c10::StorageImpl* known = device.unsafeGetStorageImpl();
  for (auto& each : storages_)
    if (each.device.unsafeGetStorageImpl() == known) return each.over;
  c10::DataPtr data(known->mutable_data(), c10::Device(c10::kCPU));
  c10::Storage made = storage(known->nbytes(), std::move(data), c10::GetCPUAllocator());
  storages_.push_back({made.unsafeGetStorageImpl(), device, made});
  return made;
}

at::Tensor Call::to_cpu(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != type) {
    if (tensor.is_cpu()) {
      from_cpu_.push_back(tensor);
      has_cpu_operand = has_cpu_operand || tensor.dim() > 0;
    }
    return tensor;
  }
  inputs.push_back(tensor);
  for (auto& pair : pairs_)
    if (pair.device.is_same(tensor)) return pair.cpu;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage(), "the emulated device has strided tensors only");
  c10::Storage data = over(tensor.storage());
  at::Tensor cpu = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(data), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  set_shape(cpu, tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) cpu.unsafeGetTensorImpl()->set_wrapped_number(true);
  pairs_.push_back({tensor, cpu, impl(cpu)->mutable_data()});
  return cpu;
}

// The device's storage under a CPU tensor: the one that it lies over, or its own memory, which is the device's.
c10::Storage Call::under(const at::Tensor& cpu) {
  c10::StorageImpl* known = impl(cpu);
  for (auto& each : storages_)
    if (each.cpu == known) return each.device;
  std::size_t bytes = known->nbytes();
  void* start = known->mutable_data();
  c10::DataPtr data(nullptr, here());
  if (bytes && start && owns(start)) {
    data = taken(known);
  } else if (bytes && start) {  // made by a kernel that does not ask the allocator, or whose scratch is not counted
    data = device::allocate(bytes);
    std::memcpy(data.get(), start, bytes);
  }
  c10::Storage made = storage(bytes, std::move(data), allocator());
  storages_.push_back({known, made, c10::Storage(cpu.storage())});
  return made;
}

at::Tensor Call::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (auto& pair : pairs_)
    if (pair.cpu.is_same(tensor)) return pair.device;
  for (auto& each : from_cpu_)
    if (each.is_same(tensor)) return tensor;
  c10::Storage data = under(tensor);
  at::Tensor made;
  for (auto& pair : pairs_)
    if (impl(pair.device) == data.unsafeGetStorageImpl()) {  // a view keeps the keys of its base: inference mode
      made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(data), pair.device.key_set(),
                                                      tensor.dtype());
      break;
    }
  if (!made.defined())
    made = at::detail::make_tensor<c10::TensorImpl>(std::move(data), c10::DispatchKeySet(key()), tensor.dtype());
  set_shape(made, tensor);
  return made;
}

void Call::settle() {
  for (auto& pair : pairs_) {
    c10::StorageImpl *cpu = impl(pair.cpu), *device = impl(pair.device);
    if (cpu->mutable_data() != pair.data && device->mutable_data() == pair.data) {
      std::size_t bytes = cpu->nbytes();
      device->set_data_ptr(taken(cpu));
      device->set_nbytes(bytes);
    }
    if (!same_shape(pair.cpu, pair.device)) set_shape(pair.device, pair.cpu);
  }
}

bool Call::is_of_input(const at::Tensor& tensor) const {
  for (const auto& pair : pairs_)
    if (impl(pair.device) == impl(tensor)) return true;
  return false;
}

}  // namespace device
