#include "copies.h"

#include <cstring>
#include <string>

#include "clock.h"
#include "memory.h"
#include "races.h"
#include "watch.h"

namespace card {

namespace {

// One direction over the link: its counters, its engine, its speed.
struct Link {
  const char* name;
  Copies* counted;
  Copies* asynchronous;
  Engine* engine;
  double speed;
};

Link to_device(bool pinned) {
  return {pinned ? "copy from pinned memory" : "copy from pageable memory",
          pinned ? &counters.from_pinned : &counters.from_pageable, &counters.to_device_async, &clock.to_device,
          pinned ? settings.host_to_device : settings.pageable};
}

Link to_host(bool pinned) {
  return {pinned ? "copy to pinned memory" : "copy to pageable memory",
          pinned ? &counters.to_pinned : &counters.to_pageable, &counters.to_host_async, &clock.to_host,
          pinned ? settings.device_to_host : settings.pageable};
}

void count(Copies& copies, std::size_t bytes) {
  copies.count++;
  copies.bytes += bytes;
}

}  // namespace

cudaError_t copy(void* to, const void* from, std::size_t bytes, Stream* stream, bool asynchronous) {
  bool from_device = memory.is_device(from), into_device = memory.is_device(to);
  clock.host += settings.dispatch;
  stream->begin();
  std::string name = "copy on the host";
  bool waits = !asynchronous;
  if (from_device && into_device) {
    name = "copy on the device";
    count(counters.on_device, bytes);
    Kernel kernel;
    kernel.bytes = 2.0 * bytes;
    stream->time = clock.compute.reserve(stream->time, clock.seconds_of(kernel), clock.host);
  } else if (from_device || into_device) {
    bool pinned = memory.is_pinned(into_device ? from : to);
    Link link = into_device ? to_device(pinned) : to_host(pinned);
    name = link.name;
    count(*link.counted, bytes);
    if (asynchronous) count(*link.asynchronous, bytes);
    stream->time = link.engine->reserve(stream->time, bytes / link.speed, clock.host);
    waits = waits || !pinned;
  }
  access(stream, from, bytes, false, name);
  access(stream, to, bytes, true, name);

  bool to_the_host = from_device && !into_device;
  if (to_the_host && settings.lazy && !waits) std::memset(to, 0xFF, bytes);  // not there before the stream is waited for
  stream->put([=] { std::memmove(to, from, bytes); });
  if (waits) host_waits_for(stream);
  return cudaSuccess;
}

cudaError_t fill(void* start, int value, std::size_t bytes, Stream* stream) {
  clock.host += settings.dispatch;
  stream->begin();
  access(stream, start, bytes, true, "memset");
  count(counters.memsets, bytes);
  Kernel kernel;
  kernel.bytes = double(bytes);
  stream->time = clock.compute.reserve(stream->time, clock.seconds_of(kernel), clock.host);
  stream->put([=] { std::memset(start, value, bytes); });
  return cudaSuccess;
}

}  // namespace card
