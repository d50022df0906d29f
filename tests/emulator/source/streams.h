// Streams and events: what must be over before what, by vector clocks (Mattern 1988), and work that waits for its turn.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace card {

// One count for each stream and, at 0, the host. a <= b in every place: all that a knows of is over before b.
using Order = std::vector<std::uint64_t>;
void join(Order& into, const Order& other);

struct Work {
  std::uint64_t number;
  std::function<void()> run;
};

struct Stream {
  int id, priority;
  double time = 0;  // of the virtual clock, when all its work is done
  Order order;
  std::uint64_t issued = 0, done = 0;  // numbers of pieces of work
  std::deque<Work> waiting;

  void begin();                          // a new piece of work that the host issues now
  void put(std::function<void()> work);  // done now, or kept until something waits for it (lazy)
  void drain(std::uint64_t upto = ~0ull);
};

// Where a stream was when an event was recorded.
struct Mark {
  Order order;
  double time;
  Stream* stream;
  std::uint64_t number;
};

struct Event {
  std::shared_ptr<Mark> mark;
};

Stream* stream_of(cudaStream_t handle);
const std::vector<Stream*>& all_streams();
Stream* new_stream(int priority);
std::shared_ptr<Mark> mark_of(Stream* stream);
void wait(Stream* stream, std::shared_ptr<Mark> mark);
void drain_all();

// The host has seen that something is over.
void host_saw(const Order& order, double time);
void host_waits_for(Stream* stream);
void host_waits_for_all();

}  // namespace card
