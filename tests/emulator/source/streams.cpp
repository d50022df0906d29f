#include "streams.h"

#include <algorithm>

#include "clock.h"

namespace card {

namespace {
std::vector<Stream*> streams;  // never freed: their ids are places in an Order
Order host_order(1, 0);
}  // namespace

void join(Order& into, const Order& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); i++) into[i] = std::max(into[i], other[i]);
}

void Stream::begin() {
  join(order, host_order);
  if (order.size() <= std::size_t(id)) order.resize(id + 1);
  order[id]++;
  time = std::max(time, clock.host);
}

void Stream::put(std::function<void()> work) {
  std::uint64_t number = ++issued;
  if (settings.lazy) {
    waiting.push_back({number, std::move(work)});
  } else {
    work();
    done = number;
  }
}

void Stream::drain(std::uint64_t upto) {
  while (!waiting.empty() && waiting.front().number <= upto) {
    Work work = std::move(waiting.front());
    waiting.pop_front();
    work.run();
    done = work.number;
  }
}

Stream* new_stream(int priority) {
  streams.push_back(new Stream{int(streams.size()) + 1, priority});
  return streams.back();
}

Stream* stream_of(cudaStream_t handle) {
  if (streams.empty()) new_stream(0);
  bool standard = handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  return standard ? streams[0] : reinterpret_cast<Stream*>(handle);
}

const std::vector<Stream*>& all_streams() { return streams; }

std::shared_ptr<Mark> mark_of(Stream* stream) {
  stream->begin();
  stream->put([] {});
  return std::make_shared<Mark>(Mark{stream->order, stream->time, stream, stream->issued});
}

void wait(Stream* stream, std::shared_ptr<Mark> mark) {
  join(stream->order, mark->order);
  stream->time = std::max(stream->time, mark->time);
  stream->put([mark] { mark->stream->drain(mark->number); });
}

void drain_all() {
  for (Stream* stream : streams) stream->drain();
}

void host_saw(const Order& order, double time) {
  join(host_order, order);
  clock.host = std::max(clock.host, time);
}

void host_waits_for(Stream* stream) {
  stream->drain();
  host_saw(stream->order, stream->time);
}

void host_waits_for_all() {
  for (Stream* stream : streams) host_waits_for(stream);
}

}  // namespace card
