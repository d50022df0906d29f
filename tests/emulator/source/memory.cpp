#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "races.h"

namespace card {

Memory memory;
Pool pool;

namespace {

constexpr std::size_t POOL_STEP = 32 * MB;  // a pool grows by this much at least
constexpr std::size_t POOL_GRAIN = 512;
constexpr std::size_t WINDOW = 16 * MB;  // of this machine's memory behind large maps whose values do not count
constexpr std::size_t LARGE = 2 * WINDOW;

bool inside(const Ranges& ranges, const void* address) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  auto it = ranges.upper_bound(at);
  if (it == ranges.begin()) return false;
  --it;
  return at < it->first + it->second;
}

// The same pages again and again, so that a map of gigabytes takes none of this machine's: where products leave out
// their arithmetic, no value of a large map counts.
void* map_window(std::size_t bytes) {
  static const int window = [] {
    int file = memfd_create("card", 0);
    return file >= 0 && ftruncate(file, WINDOW) == 0 ? file : -1;
  }();
  if (window < 0) return nullptr;
  void* start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  for (std::size_t at = 0; at < bytes; at += WINDOW) {
    std::size_t part = std::min(WINDOW, bytes - at);
    void* place = static_cast<char*>(start) + at;
    if (mmap(place, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, window, 0) == MAP_FAILED) {
      munmap(start, bytes);
      return nullptr;
    }
  }
  return start;
}

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

bool Memory::is_device(const void* address) const { return inside(device, address); }
bool Memory::is_pinned(const void* address) const { return inside(pinned, address); }

std::size_t Memory::room() const {
  std::size_t taken = used + settings.context;
  return settings.capacity > taken ? settings.capacity - taken : 0;
}

bool Memory::take(std::size_t bytes) {
  if (bytes > room()) {
    refused++;
    return false;
  }
  used += bytes;
  peak = std::max(peak, used);
  allocations++;
  return true;
}

void Memory::give(std::size_t bytes) { used -= bytes; }

void* map_pages(std::size_t bytes) {
  if (settings.shapes_alone && bytes >= LARGE) return map_window(bytes);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

// All ones are NaN in every floating-point format. At once where nothing waits in the stream: a kernel's scratch may
// become its result before the stream's next turn.
void poison(Stream* stream, void* start, std::size_t bytes) {
  if (!settings.poison) return;
  if (stream->waiting.empty()) {
    std::memset(start, 0xFF, bytes);
  } else {
    stream->put([=] { std::memset(start, 0xFF, bytes); });
  }
}

cudaError_t allocate(void** result, std::size_t bytes) {
  *result = nullptr;
  if (!bytes) return cudaSuccess;
  std::size_t rounded = round_up(bytes, GRANULE);
  if (!memory.take(rounded)) return cudaErrorMemoryAllocation;
  *result = map_pages(rounded);
  if (!*result) {
    memory.give(rounded);
    return cudaErrorMemoryAllocation;
  }
  if (settings.poison) std::memset(*result, 0xFF, rounded);  // fresh pages of the host are zeros; a card's are not
  memory.device[number(*result)] = rounded;
  return cudaSuccess;
}

cudaError_t release(void* start) {
  if (!start) return cudaSuccess;
  auto it = memory.device.find(number(start));
  if (it == memory.device.end()) return cudaErrorInvalidValue;
  host_waits_for_all();  // cudaFree waits for the device
  memory.give(it->second);
  forget(it->first, it->second);
  munmap(start, it->second);
  memory.device.erase(it);
  return cudaSuccess;
}

cudaError_t allocate_pinned(void** result, std::size_t bytes) {
  std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), PAGE);
  *result = map_pages(rounded);
  return *result ? pin(*result, rounded) : cudaErrorMemoryAllocation;
}

cudaError_t release_pinned(void* start) {
  auto it = memory.pinned.find(number(start));
  if (it == memory.pinned.end()) return cudaErrorInvalidValue;
  std::size_t bytes = it->second;
  cudaError_t error = unpin(start);
  forget(number(start), bytes);
  munmap(start, bytes);
  return error;
}

cudaError_t pin(void* start, std::size_t bytes) {
  if (memory.is_pinned(start)) return cudaErrorHostMemoryAlreadyRegistered;
  memory.pinned[number(start)] = bytes;
  memory.pinned_bytes += bytes;
  return cudaSuccess;
}

cudaError_t unpin(void* start) {
  auto it = memory.pinned.find(number(start));
  if (it == memory.pinned.end()) return cudaErrorHostMemoryNotRegistered;
  drain_all();
  memory.pinned_bytes -= it->second;
  memory.pinned.erase(it);
  return cudaSuccess;
}

bool Pool::grow(std::size_t bytes) {
  std::size_t needed = used + bytes;
  if (needed > reserved) {
    std::size_t more = round_up(needed - reserved, POOL_STEP);
    if (more > memory.room()) more = round_up(needed - reserved, GRANULE);
    if (!memory.take(more)) return false;
    reserved += more;
    reserved_high = std::max(reserved_high, reserved);
  }
  used = needed;
  used_high = std::max(used_high, used);
  return true;
}

cudaError_t allocate_in_order(void** result, std::size_t bytes, Stream* stream) {
  *result = nullptr;
  if (!bytes) return cudaSuccess;
  std::size_t rounded = round_up(bytes, POOL_GRAIN), pages = round_up(rounded, PAGE);
  if (!pool.grow(rounded)) return cudaErrorMemoryAllocation;
  *result = map_pages(pages);
  if (!*result) {
    pool.used -= rounded;
    return cudaErrorMemoryAllocation;
  }
  if (settings.poison) std::memset(*result, 0xFF, rounded);
  memory.device[number(*result)] = pages;
  pool.blocks[number(*result)] = rounded;
  return cudaSuccess;
}

cudaError_t release_in_order(void* start, Stream* stream) {
  if (!start) return cudaSuccess;
  auto it = pool.blocks.find(number(start));
  if (it == pool.blocks.end()) return release(start);
  stream->begin();
  require_quiet(stream, start, it->second, "free");  // another stream may still use it
  std::size_t pages = round_up(it->second, PAGE);
  pool.used -= it->second;
  pool.blocks.erase(it);
  forget(number(start), pages);
  memory.device.erase(number(start));
  // What still waits for its turn must find the pages; so with this allocator little is late (README, limits).
  drain_all();
  munmap(start, pages);
  return cudaSuccess;
}

void trim(std::size_t keep) {
  std::size_t least = std::max(round_up(pool.used, GRANULE), std::min(keep, pool.reserved));
  if (least >= pool.reserved) return;
  memory.give(pool.reserved - least);
  pool.reserved = least;
}

}  // namespace card
