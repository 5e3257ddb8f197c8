// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvwire::test {

// A TCP endpoint on loopback that passes connections on to another one, and breaks them on command.
//
// A stopped proxy reads no more, so that after the kernel's buffers the sender blocks: a peer that neither answers nor
// closes. A refusing one has no listener: to connect fails; its port stays its own. Commands hold when they return.
//
// Threads: any; the connections live on a thread of the proxy's own.
// Errors: what the system refuses throws in the constructor and ends the connection elsewhere.
// Bounds: 64 KiB wait in each direction of a connection, times what a delay keeps.
class TcpProxy {
 public:
  // What happens to all connections when a byte is reached.
  enum class Fault : std::uint8_t {
    kClose,   // they end, without the bytes after it
    kStop,    // as Stop()
    kRefuse,  // they end, and as Refuse()
  };

  // `target`: port of 127.0.0.1; 0: none yet, connections end at once.
  explicit TcpProxy(std::uint16_t target = 0);
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;
  ~TcpProxy();

  std::uint16_t port() const noexcept { return port_; }
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

  // Where connections that come from now on go.
  void SetTarget(std::uint16_t target);

  // Ends all connections; new ones are accepted.
  void Close();
  // Passes nothing on, in either direction, and closes nothing, until Resume.
  void Stop();
  void Refuse();  // also ends all connections, until Resume
  void Resume();
  // From now on bytes arrive so much later, in order.
  void Delay(std::chrono::milliseconds delay);
  // After `bytes` more bytes from the target, of all connections together, the fault happens, once.
  void After(std::size_t bytes, Fault fault);

  struct Counts {
    std::size_t accepted = 0;
    std::size_t open = 0;
    std::size_t faults = 0;       // of After
    std::size_t from_target = 0;  // bytes passed on
    std::size_t to_target = 0;
  };
  Counts counts();

 private:
  struct Chunk {
    std::vector<std::uint8_t> bytes;
    std::size_t sent = 0;
    std::chrono::steady_clock::time_point due;
  };
  struct Direction {
    std::deque<Chunk> chunks;
    std::size_t waiting = 0;
    bool ended = false;  // the sender has closed
    bool told = false;   // ... and the receiver knows
  };
  struct Connection {
    int client = -1;
    int target = -1;
    Direction to_target;
    Direction from_target;
    bool broken = false;
  };

  void Run();
  void Listen();
  void Accept();
  void End(Connection* connection);
  void EndAll();
  void Happen(Fault fault);
  void Read(int from, Direction* direction, Connection* connection);
  void Write(int to, Direction* direction, Connection* connection);
  int PollTimeout() const;
  void Step();
  // On the proxy's thread; returns when it is done.
  void Do(const std::function<void()>& command);

  int listener_ = -1;
  int keeper_ = -1;  // bound and never listening: the port stays ours
  int wake_ = -1;
  std::uint16_t port_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* command_ = nullptr;  // guarded by mutex_
  bool over_ = false;                               // guarded by mutex_

  // The thread's.
  std::uint16_t target_ = 0;
  bool stopped_ = false;
  std::chrono::milliseconds delay_{0};
  std::optional<std::size_t> until_fault_;
  Fault fault_ = Fault::kClose;
  Counts counts_;
  std::vector<Connection> connections_;

  std::thread thread_;
};

}  // namespace kvwire::test
