// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_calls.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/support/allocation_counter.h"

// Older headers.
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

namespace {

constexpr std::size_t kMaxNumber = 1024;
using Counts = std::array<std::uint32_t, kMaxNumber>;

// Read by the kernel at each system call of the thread; also says whether the handler counts.
constexpr char kPass = 0;
constexpr char kTrap = 1;

thread_local volatile char selector = kPass;
thread_local std::uint64_t num_locks = 0;
thread_local std::uint64_t locks_before = 0;
thread_local std::size_t allocations_before = 0;
thread_local Counts system_calls{};
thread_local Counts allocator_calls{};

}  // namespace

#if KVWIRE_COUNTS_CALLS

// Counted, and passed on to the C library.
#define KVWIRE_COUNTED_LOCK(function, type)                                                 \
  extern "C" int function(type* lock) noexcept {                                            \
    static const auto real = reinterpret_cast<int (*)(type*)>(dlsym(RTLD_NEXT, #function)); \
    ++num_locks;                                                                            \
    return real(lock);                                                                      \
  }
KVWIRE_COUNTED_LOCK(pthread_mutex_lock, pthread_mutex_t)
KVWIRE_COUNTED_LOCK(pthread_mutex_trylock, pthread_mutex_t)
KVWIRE_COUNTED_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
KVWIRE_COUNTED_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
#undef KVWIRE_COUNTED_LOCK

#endif

#if KVWIRE_COUNTS_CALLS && defined(__x86_64__)

// The only instructions whose system calls are never trapped: those of the handler, and its end.
asm(R"(
.pushsection .text
.type kvwire_calls_begin, @function
kvwire_calls_begin:
kvwire_call:
  mov %rdi, %rax
  mov %rsi, %r11
  mov 0(%r11), %rdi
  mov 8(%r11), %rsi
  mov 16(%r11), %rdx
  mov 24(%r11), %r10
  mov 32(%r11), %r8
  mov 40(%r11), %r9
  syscall
  ret
kvwire_return:
  mov $15, %eax
  syscall
  hlt
kvwire_calls_end:
.popsection
)");

extern "C" {
extern const char kvwire_calls_begin[] __attribute__((visibility("hidden")));
extern const char kvwire_calls_end[] __attribute__((visibility("hidden")));
long kvwire_call(long number, const long* arguments) __attribute__((visibility("hidden")));
void kvwire_return() __attribute__((visibility("hidden")));
}

namespace kvwire::test {
namespace {

// What sigaction() hands to the kernel; the C library would put an end of its own in `restorer`.
struct KernelAction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};
constexpr unsigned long kHasRestorer = 0x04000000;

// They would go on in the middle of the handler.
bool CannotBeMadeHere(long number) {
  return number == SYS_clone || number == SYS_clone3 || number == SYS_fork || number == SYS_vfork ||
         number == SYS_rt_sigreturn;
}

void OnSystemCall(int /*signal*/, siginfo_t* info, void* context) {
  const long number = info->si_syscall;
  if (CannotBeMadeHere(number)) {
    constexpr char kMessage[] = "a counted thread started a thread or process, or met a signal\n";
    const std::array<long, 6> message = {2, reinterpret_cast<long>(kMessage), sizeof(kMessage) - 1, 0, 0, 0};
    kvwire_call(SYS_write, message.data());
    const std::array<long, 6> code = {127, 0, 0, 0, 0, 0};
    kvwire_call(SYS_exit_group, code.data());
  }
  if (selector == kTrap && number >= 0 && number < static_cast<long>(kMaxNumber)) {
    ++(IsAllocating() ? allocator_calls : system_calls)[static_cast<std::size_t>(number)];
  }
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const std::array<long, 6> arguments = {static_cast<long>(registers[REG_RDI]), static_cast<long>(registers[REG_RSI]),
                                         static_cast<long>(registers[REG_RDX]), static_cast<long>(registers[REG_R10]),
                                         static_cast<long>(registers[REG_R8]),  static_cast<long>(registers[REG_R9])};
  registers[REG_RAX] = kvwire_call(number, arguments.data());
}

Status Refused(std::string_view what) {
  return MakeError(ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)));
}

Status HandleTraps() {
  const KernelAction action = {OnSystemCall, SA_SIGINFO | SA_NODEFER | kHasRestorer, kvwire_return, 0};
  if (syscall(SYS_rt_sigaction, SIGSYS, &action, nullptr, sizeof(action.mask)) != 0) return Refused("SIGSYS");
  sigset_t trapped;
  sigemptyset(&trapped);
  sigaddset(&trapped, SIGSYS);
  pthread_sigmask(SIG_UNBLOCK, &trapped, nullptr);
  return {};
}

Status TrapByDispatch() {
  const auto size = static_cast<unsigned long>(kvwire_calls_end - kvwire_calls_begin);
  if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, kvwire_calls_begin, size, &selector) == 0) return {};
  return Refused("PR_SET_SYSCALL_USER_DISPATCH (Linux 5.11 or later)");
}

// The filter stays, so what a thread needs to end with all signals blocked is left alone, and what cannot be made by
// the handler.
constexpr std::array<std::uint32_t, 11> kNeverFiltered = {
    SYS_clone,      SYS_clone3,         SYS_fork,    SYS_vfork,  SYS_rt_sigreturn, SYS_exit,
    SYS_exit_group, SYS_rt_sigprocmask, SYS_madvise, SYS_munmap, SYS_rseq};

Status TrapBySeccomp() {
  const auto begin = reinterpret_cast<std::uint64_t>(kvwire_calls_begin);
  const auto end = reinterpret_cast<std::uint64_t>(kvwire_calls_end);
  const auto low = [](std::uint64_t address) { return static_cast<std::uint32_t>(address); };
  const auto high = [](std::uint64_t address) { return static_cast<std::uint32_t>(address >> 32); };
  if (high(begin) != high(end)) return MakeError(ErrorCode::kUnavailable, "the handler lies across 4 GiB");
  constexpr std::uint32_t kAddress = offsetof(seccomp_data, instruction_pointer);
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      allow,
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAddress + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high(begin), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAddress),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(begin), 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(end), 1, 0),
      allow,
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const std::uint32_t number : kNeverFiltered) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(allow);
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Refused("PR_SET_NO_NEW_PRIVS");
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return Refused("a seccomp filter");
  return {};
}

}  // namespace

Status TrapSystemCalls(SystemCallTrap trap) {
  if (Status handled = HandleTraps(); !handled) return handled;
  switch (trap) {
    case SystemCallTrap::kAny:
      break;
    case SystemCallTrap::kDispatch:
      return TrapByDispatch();
    case SystemCallTrap::kSeccomp:
      return TrapBySeccomp();
  }
  Status dispatched = TrapByDispatch();
  if (dispatched) return dispatched;
  Status filtered = TrapBySeccomp();
  if (filtered) return filtered;
  return MakeError(ErrorCode::kUnavailable, fmt::format("system calls cannot be counted on this machine: no {}; no {}",
                                                        dispatched.error().message, filtered.error().message));
}

}  // namespace kvwire::test

#else

namespace kvwire::test {

Status TrapSystemCalls(SystemCallTrap /*trap*/) {
  return MakeError(ErrorCode::kUnavailable, "system calls are counted on x86-64 only, and under no sanitizer");
}

}  // namespace kvwire::test

#endif

namespace kvwire::test {

CallCounter::CallCounter() noexcept {
  system_calls.fill(0);
  allocator_calls.fill(0);
  locks_before = num_locks;
  allocations_before = AllocationCountOfThread();
  selector = kTrap;
}

CallCounter::~CallCounter() { selector = kPass; }

ThreadCalls CallCounter::Stop() {
  selector = kPass;
  ThreadCalls calls;
  calls.locks = num_locks - locks_before;
  calls.allocations = AllocationCountOfThread() - allocations_before;
  for (std::size_t number = 0; number < kMaxNumber; ++number) {
    if (system_calls[number] > 0) calls.system_calls[static_cast<long>(number)] = system_calls[number];
    if (allocator_calls[number] > 0) calls.allocator_calls[static_cast<long>(number)] = allocator_calls[number];
  }
  return calls;
}

void ThreadCalls::Add(const ThreadCalls& more) {
  locks += more.locks;
  allocations += more.allocations;
  for (const auto& [number, times] : more.system_calls) system_calls[number] += times;
  for (const auto& [number, times] : more.allocator_calls) allocator_calls[number] += times;
}

std::string ThreadCalls::ToString() const {
  std::string text = fmt::format("{} locks, {} allocations", locks, allocations);
  for (const auto& [number, times] : system_calls) text += fmt::format(", system call {} x{}", number, times);
  for (const auto& [number, times] : allocator_calls) text += fmt::format(", in new or delete {} x{}", number, times);
  return text;
}

}  // namespace kvwire::test
