// An accelerator that is not CUDA: PyTorch's PrivateUse1, called "npu". It has memory with a cap, pinned memory,
// streams and events that are always done, and a generator. It has no clock and looks for no races.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>

#include "call.h"
#include "operators.h"
#include "settings.h"

namespace npu {

namespace {

using at::Tensor;
using c10::Device;

constexpr c10::DeviceType NPU = c10::DeviceType::PrivateUse1;
constexpr std::size_t GRAIN = 512, PAGE = 4096;

std::size_t round_up(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }
Device only() { return Device(NPU, 0); }

// -------------------------------------------------------------------------------------------------------- memory

struct Block {
  std::size_t bytes, asked;
};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t asked) override {
    if (!asked) return {nullptr, only()};
    std::lock_guard<std::mutex> lock(mutex_);
    std::size_t bytes = round_up(asked, GRAIN);
    if (used_ + bytes > capacity_) {
      statistics_.num_ooms++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", bytes / double(card::MB),
                       " MiB. The device has ", capacity_ / double(card::MB), " MiB, of which ",
                       (capacity_ - used_) / double(card::MB), " MiB are free.");
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* start = mmap(nullptr, round_up(bytes, PAGE), PROT_READ | PROT_WRITE, flags, -1, 0);
    TORCH_CHECK(start != MAP_FAILED, "the host has no memory left for the emulated npu");
    std::memset(start, 0xFF, bytes);  // NaN
    blocks_[reinterpret_cast<std::uintptr_t>(start)] = {bytes, asked};
    used_ += bytes;
    count(1, bytes, asked);
    return {start, start, &npu::release, only()};
  }

  void release(void* start) {
    if (!start) return;
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = blocks_.find(reinterpret_cast<std::uintptr_t>(start));
    if (it == blocks_.end()) return;
    Block block = it->second;
    blocks_.erase(it);
    used_ -= block.bytes;
    munmap(start, round_up(block.bytes, PAGE));
    count(-1, -std::int64_t(block.bytes), -std::int64_t(block.asked));
  }

  bool owns(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto at = reinterpret_cast<std::uintptr_t>(address);
    auto it = blocks_.upper_bound(at);
    if (it == blocks_.begin()) return false;
    --it;
    return at < it->first + it->second.bytes;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &npu::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return statistics_; }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    for (auto* each : every()) (*each)[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    for (auto* each : every()) (*each)[0].reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override { return {capacity_ - used_, capacity_}; }

 private:
  using Statistic = c10::CachingAllocator::StatArray;  // [0] is the sum of all pools
  std::vector<Statistic*> every() {
    auto& s = statistics_;
    return {&s.allocation,      &s.segment,        &s.active,       &s.inactive_split,       &s.allocated_bytes,
            &s.reserved_bytes,  &s.active_bytes,   &s.requested_bytes, &s.inactive_split_bytes};
  }
  static void change(Statistic& statistic, std::int64_t by) {
    if (by > 0) statistic[0].increase(by);
    else statistic[0].decrease(-by);
  }
  void count(std::int64_t blocks, std::int64_t bytes, std::int64_t asked) {
    auto& s = statistics_;
    for (auto* each : {&s.allocation, &s.segment, &s.active}) change(*each, blocks);
    for (auto* each : {&s.allocated_bytes, &s.reserved_bytes, &s.active_bytes}) change(*each, bytes);
    change(s.requested_bytes, asked);
  }

  std::mutex mutex_;
  std::size_t capacity_ = card::Settings().capacity, used_ = 0;
  std::map<std::uintptr_t, Block> blocks_;
  c10::CachingDeviceAllocator::DeviceStats statistics_;
};

Memory* memory() {
  static auto* it = new Memory();
  return it;
}

struct PinnedMemory final : c10::Allocator {
  static std::map<std::uintptr_t, std::size_t>& blocks() {
    static auto* all = new std::map<std::uintptr_t, std::size_t>();
    return *all;
  }
  static void release(void* start) {
    blocks().erase(reinterpret_cast<std::uintptr_t>(start));
    std::free(start);
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* start = nullptr;
    if (bytes && posix_memalign(&start, PAGE, bytes)) start = nullptr;
    if (start) blocks()[reinterpret_cast<std::uintptr_t>(start)] = bytes;
    return {start, start, &release, Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// ------------------------------------------------------------------------------------ streams, generator, hooks

thread_local c10::StreamId current_stream = 0;
std::atomic<c10::StreamId> last_stream{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, only(), id); }
  c10::DeviceType type() const override { return NPU; }
  Device exchangeDevice(Device) const override { return only(); }
  Device getDevice() const override { return only(); }
  void setDevice(Device device) const override { TORCH_CHECK(device.index() <= 0, "there is one npu"); }
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream getStream(Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(Device, bool) const override { return stream(++last_stream); }
  c10::Stream getNewStream(Device, int) const override { return stream(++last_stream); }
  c10::Stream exchangeStream(c10::Stream other) const override {
    c10::Stream before = stream(current_stream);
    current_stream = other.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0; }
};

struct Generator final : c10::GeneratorImpl {
  std::uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
  Generator() : c10::GeneratorImpl(only(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return NPU; }
  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override {
    const auto* numbers = static_cast<const std::uint64_t*>(state.data());
    seed_ = numbers[0];
    offset_ = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor state = at::empty({2 * std::int64_t(sizeof seed_)}, at::kByte);
    auto* numbers = static_cast<std::uint64_t*>(state.data_ptr());
    numbers[0] = seed_;
    numbers[1] = offset_;
    return state.getIntrusivePtr();
  }
  c10::GeneratorImpl* clone_impl() const override {
    auto* copy = new Generator();
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto* standard = new at::Generator(c10::make_intrusive<Generator>());
    return *standard;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {  // the first that Python makes is the default one
    static bool first = true;
    if (!first) return at::Generator(c10::make_intrusive<Generator>());
    first = false;
    return getDefaultGenerator(0);
  }
  Device getDeviceFromPtr(void*) const override { return only(); }
  bool isPinnedPtr(const void* address) const override {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    auto it = PinnedMemory::blocks().upper_bound(at);
    if (it == PinnedMemory::blocks().begin()) return false;
    --it;
    return at < it->first + it->second;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* it = new PinnedMemory();
    return it;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr data = memory()->allocate(bytes);
    if (data.get() && impl->data()) std::memcpy(data.get(), impl->data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr(std::move(data));
    impl->set_nbytes(bytes);
  }
};

// ----------------------------------------------------------------------------------- operators that are the device's

c10::DispatchKeySet keys() { return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1); }

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, memory(), keys(), c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, memory(), keys(), c10::dtype_or_default(dtype));
}
Tensor& set_storage(Tensor& self, c10::Storage storage, std::int64_t offset, at::IntArrayRef size,
                    at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset, size, stride);
}
Tensor& set_whole_storage(Tensor& self, c10::Storage storage) {
  std::int64_t elements = std::int64_t(storage.nbytes() / self.itemsize());
  return at::native::set_storage_cpu_(self, storage, 0, {elements}, {});
}
Tensor copy_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}
void record_stream(Tensor&, c10::Stream) {}

// Counted for the tests: calls, bytes, calls with pinned memory, asynchronous calls.
struct Copies {
  std::size_t calls = 0, bytes = 0, pinned = 0, asynchronous = 0;
};
Copies to_device, to_host, on_device;

std::string text_of(const char* name, const Copies& c) {
  char text[200];
  std::snprintf(text, sizeof text, "\"%s\":[%zu,%zu,%zu,%zu]", name, c.calls, c.bytes, c.pinned, c.asynchronous);
  return text;
}

}  // namespace

c10::Allocator* allocator() { return memory(); }
bool owns(const void* address) { return memory()->owns(address); }
void release(void* start) { memory()->release(start); }
at::Generator generator() { return at::detail::getPrivateUse1Hooks().getDefaultGenerator(0); }

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  Copies& copies = source.is_cpu() ? to_device : target.is_cpu() ? to_host : on_device;
  copies.calls++;
  copies.bytes += target.nbytes();
  copies.asynchronous += non_blocking;
  copies.pinned += (source.is_cpu() && source.is_pinned()) || (target.is_cpu() && target.is_pinned());
  device::Call call;
  Tensor from = call.to_cpu(source), to = call.to_cpu(target);
  device::OnDevice counted;
  at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
  return target;
}

}  // namespace npu

namespace at::native {

static int64_t choose_attention(const Tensor& query, const Tensor&, const Tensor& value, const std::optional<Tensor>&,
                                double dropout, bool, std::optional<double>, bool) {
  bool fused = query.size(-1) == value.size(-1) && dropout == 0;
  return int64_t(fused ? sdp::SDPBackend::flash_attention : sdp::SDPBackend::math);
}
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)

}  // namespace at::native

void npu::init() {
  static Hooks hooks;
  static Guard guard;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::impl::device_guard_impl_registry[std::size_t(NPU)].store(&guard);
  c10::SetAllocator(NPU, memory(), 0);

  const auto key = c10::DispatchKey::PrivateUse1;
  static torch::Library every(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&device::run>());
  static torch::Library aten(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  std::set<std::string> own;
  auto put = [&](const char* name, auto function) {
    own.insert(std::string("aten::") + name);
    aten.impl(name, function);
  };
  put("empty.memory_format", TORCH_FN(empty));
  put("empty_strided", TORCH_FN(empty_strided));
  put("_copy_from", TORCH_FN(copy_from));
  put("_copy_from_and_resize", TORCH_FN(copy_and_resize));
  put("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  put("set_.source_Storage", TORCH_FN(set_whole_storage));
  put("record_stream", TORCH_FN(record_stream));

  // An operator with a CPU kernel of its own runs that, not the decomposition that other backends get: other bits.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    std::string full = device::full_name(name);
    auto op = dispatcher.findOp(name);
    if (full.rfind("aten::", 0) != 0 || !op || !op->hasSchema() || own.count(full)) continue;
    bool whole = full == "aten::convolution" || full == "aten::_convolution" || full == "aten::convolution_backward";
    if (whole || op->hasKernelForDispatchKey(c10::DispatchKey::CPU))
      aten.impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&device::run>());
  }
}

extern "C" __attribute__((visibility("default"))) const char* emu_npu_stats() {
  static std::string text;
  text = "{" + npu::text_of("h2d", npu::to_device) + "," + npu::text_of("d2h", npu::to_host) + "," +
         npu::text_of("d2d", npu::on_device) + "}";
  return text.c_str();
}
