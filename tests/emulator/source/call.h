// One call of an operator, translated: tensors of the device into tensors of the CPU over the same memory, and back.
#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "operators.h"

namespace device {

class Call {
 public:
  // A tensor of the CPU over a device tensor's memory; other tensors as they are.
  at::Tensor to_cpu(const at::Tensor& tensor);
  // What a kernel returned, as the device's: the very tensor that went in, a view of one, or new memory.
  at::Tensor to_device(const at::Tensor& tensor);
  // After the kernel: an `out=` that it resized hands its new memory and shape to the device's tensor.
  void settle();
  // Whether a tensor has the memory of one that went in.
  bool is_of_input(const at::Tensor& tensor) const;

  std::vector<at::Tensor> inputs;  // of the device
  bool has_cpu_operand = false;    // beside them, other than a scalar

 private:
  struct Pair {
    at::Tensor device, cpu;
    void* data;  // where both were before the kernel
  };
  struct Storages {
    c10::StorageImpl* cpu;
    c10::Storage device, over;  // `over`: of the CPU, owns nothing
  };
  c10::Storage over(const c10::Storage& device);
  c10::Storage under(const at::Tensor& cpu);

  std::vector<Pair> pairs_;
  std::vector<Storages> storages_;
  std::vector<at::Tensor> from_cpu_;
};

}  // namespace device
