// The function that stands in the place of every kernel: the CPU's kernel, on the device's memory, told to the card.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <mutex>

#include "call.h"
#include "operators.h"
#include "watch.h"
#include "work.h"

namespace device {

namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr int MOST_RANGES = 64;
constexpr std::uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;  // 2**64 over the golden ratio: spreads successive numbers

// The card's functions; none of them is there for a device without a clock (npu).
struct Card {
  template <class Function>
  static void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
  decltype(&emu_begin) begin;
  decltype(&emu_end) end;
  decltype(&emu_alloc) allocated;
  decltype(&emu_free) freed;
  decltype(&emu_shapes_alone) shapes_alone;
  decltype(&emu_workspace) workspace;
  Card() {
    find(begin, "emu_begin");
    find(end, "emu_end");
    find(allocated, "emu_alloc");
    find(freed, "emu_free");
    find(shapes_alone, "emu_shapes_alone");
    find(workspace, "emu_workspace");
  }
};
const Card& card_of() {
  static const Card it;
  return it;
}

// The caching allocator's blocks change hands without the runtime's knowledge; the stream-ordered one asks it each time.
void follow_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    using namespace c10::cuda::CUDACachingAllocator;
    if (type != c10::DeviceType::CUDA || !card_of().allocated || name() == "cudaMallocAsync") return;
    attachAllocatorTraceTracker([](const TraceEntry& entry) {
      void* start = reinterpret_cast<void*>(entry.addr_);
      if (entry.action_ == TraceEntry::ALLOC) card_of().allocated(entry.stream_, start, entry.size_);
      if (entry.action_ == TraceEntry::FREE_COMPLETED) card_of().freed(entry.stream_, start, entry.size_);
    });
  });
}

// The CPU's generator in the place of the device's: its first draw after a seed is the CPU's own.
at::Generator cpu_generator(const IValue& given) {
  bool standard = !given.isGenerator();
  at::Generator generator = !standard                          ? given.toGenerator()
                            : type == c10::DeviceType::CUDA    ? at::cuda::detail::getDefaultCUDAGenerator()
                                                               : npu::generator();
  if (generator.device().type() == c10::kCPU) return generator;
  std::uint64_t seed = generator.current_seed(), offset = generator.get_offset();
  generator.set_offset(offset + 4);  // CUDA's offsets are multiples of four
  return at::make_generator<at::CPUGeneratorImpl>(seed + offset * GOLDEN);
}

IValue translated(Call& call, const IValue& value, bool writes, bool overwrites, std::vector<at::Tensor>& written) {
  if (value.isTensor()) {
    if (writes) written.push_back(value.toTensor());
    std::size_t read = call.inputs.size();
    at::Tensor cpu = call.to_cpu(value.toTensor());
    if (overwrites) call.inputs.resize(read);
    return cpu;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (writes) written.push_back(tensor);
      list.push_back(call.to_cpu(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(call.to_cpu(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == type) return c10::Device(c10::kCPU);
  return value;
}

// CUDA's fused kernels write (B, N, H, D) and give a view of it, so that joining the heads copies nothing.
void lay_out_as_cuda(Stack* stack) {
  IValue& attended = (*stack)[stack->size() - 2];
  attended = attended.toTensor().transpose(1, 2).contiguous().transpose(1, 2);
}

void translate_results(Call& call, Stack* stack, std::size_t count, std::vector<at::Tensor>& outputs) {
  auto keep = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device().type() == type) outputs.push_back(tensor);
  };
  for (std::size_t k = stack->size() - count; k < stack->size(); k++) {
    IValue& value = (*stack)[k];
    if (value.isTensor()) {
      at::Tensor tensor = call.to_device(value.toTensor());
      keep(tensor);
      value = tensor;
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(call.to_device(tensor));
        keep(list.get(list.size() - 1));
      }
      value = list;
    }
  }
}

struct Ranges {
  void* starts[MOST_RANGES];
  std::size_t sizes[MOST_RANGES];
  int count = 0;
  void add(const at::Tensor& tensor) {
    if (count == MOST_RANGES) return;
    starts[count] = static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
                    tensor.storage_offset() * tensor.itemsize();
    std::int64_t last = tensor.numel() ? 1 : 0;
    for (std::int64_t d = 0; last && d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
    sizes[count++] = std::size_t(last) * tensor.itemsize();
  }
};

bool shapes_alone() { return card_of().shapes_alone && card_of().shapes_alone(); }

// What cuDNN's kernels hold while they run, beside input and result: by a rule, since here is no cuDNN.
std::size_t workspace_of(const Traits& traits, const Call& call, const std::vector<at::Tensor>& outputs) {
  if (traits.product != Product::convolution || !card_of().workspace) return 0;
  if (call.inputs.size() < 2 || outputs.empty()) return 0;
  return std::size_t(card_of().workspace() *
                     double(call.inputs[0].nbytes() + call.inputs[1].nbytes() + outputs[0].nbytes()));
}

void tell_begin(const Traits& traits, const Call& call) {
  if (!card_of().begin) return;
  Ranges ranges;
  for (const at::Tensor& tensor : call.inputs) ranges.add(tensor);
  card_of().begin(stream(), traits.name, ranges.count, ranges.starts, ranges.sizes);
}

// Views launch no kernel: nothing that is new or was written.
void tell_end(const Traits& traits, const Call& call, const std::vector<at::Tensor>& outputs) {
  if (!card_of().end) return;
  Ranges ranges;
  std::vector<at::Tensor> made;
  for (const at::Tensor& tensor : outputs)
    if (traits.writes_any || !call.is_of_input(tensor)) {
      ranges.add(tensor);
      made.push_back(tensor);
    }
  if (made.empty()) return;
  card::Kernel kernel = kernel_of(traits, call.inputs, made);
  card_of().end(stream(), traits.name, ranges.count, ranges.starts, ranges.sizes, &kernel);
}

}  // namespace

void run(const c10::OperatorHandle& op, Stack* stack) {
  follow_allocator();
  const Traits& traits = traits_of(op);
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  Call call;
  std::vector<at::Tensor> outputs;  // first what is written in place
  for (std::size_t k = 0; k < count; k++)
    (*stack)[base + k] = translated(call, (*stack)[base + k], traits.writes[k], traits.overwrites[k], outputs);
  TORCH_CHECK(traits.takes_cpu_tensors || !call.has_cpu_operand || call.inputs.empty(),
              "Expected all tensors to be on the same device, but found at least two devices, ", here(),
              " and cpu! (when checking ", traits.name, ")");
  for (int k : traits.generators) (*stack)[base + k] = cpu_generator((*stack)[base + k]);
  tell_begin(traits, call);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    bool alone = shapes_alone(), done = !alone && run_wide(op, traits, stack, count);
    std::optional<OnDevice> counted;
    if (!traits.own_scratch) counted.emplace();
    if (!done && !(alone && run_shapes_only(traits, stack, count))) op.callBoxed(stack);
    if (traits.product == Product::attention && type == c10::DeviceType::CUDA) lay_out_as_cuda(stack);
  }
  call.settle();
  OnDevice counted;
  translate_results(call, stack, op.schema().returns().size(), outputs);
  c10::DataPtr workspace;
  if (std::size_t held = workspace_of(traits, call, outputs)) workspace = device::allocate(held);
  tell_end(traits, call, outputs);
}

// Copies are PyTorch's own, with its pinned, pageable and temporary memory and its events; but those that change dtype
// or strides on the device are a kernel.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  follow_allocator();
  bool plain = self.scalar_type() == source.scalar_type() && self.sizes() == source.sizes() &&
               self.strides() == source.strides() && self.is_non_overlapping_and_dense() &&
               self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
  if (!self.is_cuda() || !source.is_cuda() || plain) return at::native::copy_(self, source, non_blocking);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Stack stack{self, source, non_blocking};
  run(op, &stack);
  return self;
}

}  // namespace device
