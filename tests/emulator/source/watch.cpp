#include "watch.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_map>

#include "lock.h"
#include "memory.h"
#include "races.h"
#include "streams.h"

namespace card {

Settings settings;
Counters counters;
std::recursive_mutex mutex;

bool Settings::set(const std::string& key, double value) {
  const std::unordered_map<std::string, std::pair<double*, double>> numbers = {
      {"h2d", {&host_to_device, 1e9}},          {"d2h", {&device_to_host, 1e9}},
      {"pageable", {&pageable, 1e9}},           {"hbm", {&memory, 1e9}},
      {"tflops_double", {&flops[DOUBLE], 1e12}}, {"tflops_tf32", {&flops[TF32], 1e12}},
      {"tflops_half", {&flops[HALF], 1e12}},     {"tflops_eight", {&flops[EIGHT], 1e12}},
      {"dispatch_us", {&dispatch, 1e-6}},       {"kernel_us", {&kernel, 1e-6}},
      {"workspace", {&workspace, 1}}};
  if (auto it = numbers.find(key); it != numbers.end()) {
    *it->second.first = value * it->second.second;
  } else if (key == "tflops") {  // of float32; the others keep their ratios to it
    double ratio = value * 1e12 / flops[SINGLE];
    for (double& rate : flops) rate *= ratio;
  } else if (key == "vram_mb") {
    capacity = std::size_t(value * MB);
  } else if (key == "context_mb") {
    context = std::size_t(value * MB);
  } else if (key == "multiprocessors") {
    multiprocessors = int(value);
  } else if (key == "waves") {
    waves = value != 0;
  } else if (key == "shapes") {
    shapes_alone = value != 0;
  } else if (key == "poison") {
    poison = value != 0;
  } else if (key == "lazy") {
    drain_all();
    lazy = value != 0;
  } else if (key == "race") {
    races = int(value);
    forget_all();
  } else {
    return false;
  }
  return true;
}

namespace {

std::string copies(const char* name, const Copies& of) {
  return std::string("\"") + name + "\":[" + std::to_string(of.count) + "," + std::to_string(of.bytes) + "],";
}

std::string count(const char* name, std::size_t value) {
  return std::string("\"") + name + "\":" + std::to_string(value) + ",";
}

std::string seconds(const char* name, double value) {
  char text[80];
  std::snprintf(text, sizeof text, "\"%s\":%.9f,", name, value);
  return text;
}

}  // namespace

}  // namespace card

using namespace card;

extern "C" __attribute__((visibility("default"))) void emu_begin(void* handle, const char* name, int count, void** starts,
                                                                 std::size_t* sizes) {
  Lock lock(mutex);
  Stream* stream = stream_of(static_cast<cudaStream_t>(handle));
  stream->drain();
  stream->begin();
  for (int i = 0; i < count; i++) access(stream, starts[i], sizes[i], false, name);
}

extern "C" __attribute__((visibility("default"))) void emu_end(void* handle, const char* name, int count, void** starts,
                                                               std::size_t* sizes, const Kernel* kernel) {
  Lock lock(mutex);
  Stream* stream = stream_of(static_cast<cudaStream_t>(handle));
  for (int i = 0; i < count; i++) access(stream, starts[i], sizes[i], true, name);
  card::clock.host += settings.dispatch;
  double ready = std::max(stream->time, card::clock.host);
  stream->time = card::clock.compute.reserve(ready, card::clock.seconds_of(*kernel), card::clock.host);
  stream->done = ++stream->issued;
  counters.kernels++;
  counters.kernel_flops += kernel->flops;
  counters.kernel_bytes += kernel->bytes;
}

extern "C" __attribute__((visibility("default"))) void emu_alloc(void* handle, void* start, std::size_t size) {
  if (!settings.races) return;
  Lock lock(mutex);
  Stream* stream = stream_of(static_cast<cudaStream_t>(handle));
  stream->begin();
  require_quiet(stream, start, size, "allocation");
}

extern "C" __attribute__((visibility("default"))) void emu_free(void* handle, void* start, std::size_t size) {
  Lock lock(mutex);
  poison(stream_of(static_cast<cudaStream_t>(handle)), start, size);
}

extern "C" __attribute__((visibility("default"))) int emu_is_device(const void* address) {
  Lock lock(mutex);
  return memory.is_device(address);
}

extern "C" __attribute__((visibility("default"))) int emu_shapes_alone() { return settings.shapes_alone; }

extern "C" __attribute__((visibility("default"))) double emu_workspace() { return settings.workspace; }

extern "C" __attribute__((visibility("default"))) void emu_refuse_kernel(const char* name) {
  Lock lock(mutex);
  counters.unknown_kernels++;
  std::fprintf(stderr, "emulated card: no kernel is emulated for %s\n", name);
}

extern "C" __attribute__((visibility("default"))) const char* emu_stats() {
  Lock lock(mutex);
  static std::string text;
  const Counters& c = counters;
  text = "{" + count("cap", settings.capacity) + count("used", memory.used) + count("peak", memory.peak) +
         count("mallocs", memory.allocations) + count("refused", memory.refused) +
         count("pinned_bytes", memory.pinned_bytes) + copies("h2d_pinned", c.from_pinned) +
         copies("h2d_pageable", c.from_pageable) + copies("d2h_pinned", c.to_pinned) +
         copies("d2h_pageable", c.to_pageable) + copies("d2d", c.on_device) + copies("memset", c.memsets) +
         copies("h2d_async", c.to_device_async) + copies("d2h_async", c.to_host_async) + count("syncs", c.synchronisations) +
         count("computes", c.kernels) + count("races", races_found) + count("launches", c.unknown_kernels) +
         count("streams", all_streams().size()) + seconds("flops", c.kernel_flops) + seconds("bytes", c.kernel_bytes) +
         seconds("host_s", card::clock.host) + seconds("compute_s", card::clock.compute.total) +
         seconds("h2d_s", card::clock.to_device.total) + seconds("d2h_s", card::clock.to_host.total) +
         seconds("virtual_s", card::clock.end());
  text.back() = '}';
  return text.c_str();
}

extern "C" __attribute__((visibility("default"))) const char* emu_races() {
  Lock lock(mutex);
  static std::string text;
  text.clear();
  for (const std::string& line : race_texts) text += line + "\n";
  return text.c_str();
}

extern "C" __attribute__((visibility("default"))) void emu_reset() {
  Lock lock(mutex);
  counters = Counters();
  memory.peak = memory.used;
  memory.allocations = memory.refused = 0;
  races_found = 0;
  race_texts.clear();
  card::clock.compute.total = card::clock.to_device.total = card::clock.to_host.total = 0;
}

extern "C" __attribute__((visibility("default"))) int emu_set(const char* key, double value) {
  Lock lock(mutex);
  return settings.set(key, value);
}

extern "C" __attribute__((visibility("default"))) void emu_default_settings() {
  Lock lock(mutex);
  drain_all();
  forget_all();
  settings = Settings();
}
