// SPDX-License-Identifier: Apache-2.0
#include "engine/disk_blocks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv_events/digest.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

// A file: magic, block, worker and number of workers, job, number of words, checksum of all the others; the words.
namespace {

constexpr const char* kLockName = "kvwire.lock";
constexpr std::string_view kPrefix = "block-";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::uint64_t kMagic = 0x316b736964776b76;  // "vkwdisk1"
constexpr std::size_t kHeaderWords = 6;
constexpr std::size_t kChecksum = 5;  // its place

std::string NameOf(std::uint32_t block, std::uint32_t worker) { return fmt::format("{}{}-{}", kPrefix, block, worker); }

// Whether it is the name of a block's file, finished or not.
bool IsBlockName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with(kUnfinished)) name.remove_suffix(kUnfinished.size());
  const std::size_t dash = name.find('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.size() <= 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dash != std::string_view::npos && is_number(name.substr(0, dash)) && is_number(name.substr(dash + 1));
}

// A change of any one word changes it.
std::uint64_t ChecksumOf(std::span<const std::uint64_t> frame) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < frame.size(); ++i) {
    if (i != kChecksum) sum = StateDigest::Mix(sum ^ frame[i]);
  }
  return sum;
}

tl::unexpected<Error> Failed(std::string reason) { return MakeError(ErrorCode::kUnavailable, std::move(reason)); }
tl::unexpected<Error> FailedCall() { return Failed(std::strerror(errno)); }

bool IsRegular(int directory, const char* name) {
  struct stat status {};
  return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode);
}

// Nobody has removed the file that is open, and put another one in its place.
bool IsStill(int directory, const char* name, int fd) {
  struct stat open_file {};
  struct stat named {};
  return fstat(fd, &open_file) == 0 && fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

}  // namespace

DiskBlocks::Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

tl::unexpected<Error> DiskBlocks::Refused(ErrorCode code, const std::string& directory, std::string_view reason) {
  return MakeError(code, fmt::format("disk_dir is \"{}\": {}", ShortText(directory), reason));
}

Result<std::unique_ptr<DiskBlocks>> DiskBlocks::Open(Options options) {
  const std::string& path = options.directory;
  if (path.empty()) return Refused(ErrorCode::kInvalidArgument, path, "no name; allowed: that of a directory");
  if (options.num_blocks == 0) return MakeError(ErrorCode::kInvalidArgument, "disk_blocks is 0; allowed: 1 or more");
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) {
    return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be made: {}", failure.message()));
  }
  Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) {
    return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be opened: {}", std::strerror(errno)));
  }
  // Before anything is written to it, and again when nobody else can.
  if (auto content = Look(directory.get(), path); !content || !content->foreign.empty()) return Foreign(path, content);
  auto lock = Lock(directory.get(), path);
  if (!lock) return tl::unexpected<Error>(std::move(lock).error());
  const auto content = Look(directory.get(), path);
  if (!content || !content->foreign.empty()) return Foreign(path, content);
  for (const std::string& name : content->blocks) {
    if (::unlinkat(directory.get(), name.c_str(), 0) == 0) continue;
    return Refused(ErrorCode::kUnavailable, path, fmt::format("cannot remove {}: {}", name, std::strerror(errno)));
  }
  return std::unique_ptr<DiskBlocks>(new DiskBlocks(std::move(options), std::move(directory), *std::move(lock)));
}

DiskBlocks::DiskBlocks(Options options, Descriptor directory, Descriptor lock)
    : options_(std::move(options)),
      directory_(std::move(directory)),
      lock_(std::move(lock)),
      written_(std::size_t{options_.num_blocks} * options_.num_workers) {}

// The lock's file goes while it is held: who opens it before that finds out that it is gone.
DiskBlocks::~DiskBlocks() {
  if (const auto content = Look(directory_.get(), options_.directory)) {
    for (const std::string& name : content->blocks) ::unlinkat(directory_.get(), name.c_str(), 0);
  } else {
    Log(options_.log, LogLevel::kWarning, content.error().message + "; the blocks in it are left");
  }
  if (IsStill(directory_.get(), kLockName, lock_.get())) ::unlinkat(directory_.get(), kLockName, 0);
}

// Why a directory cannot be used.
tl::unexpected<Error> DiskBlocks::Foreign(const std::string& path, const Result<Content>& content) {
  if (!content) return tl::unexpected<Error>(content.error());
  return Refused(
      ErrorCode::kInvalidArgument, path,
      fmt::format("it holds \"{}\", which is no regular file of blocks; allowed: a directory that holds nothing else",
                  ShortText(content->foreign)));
}

Result<DiskBlocks::Content> DiskBlocks::Look(int directory, const std::string& path) {
  Descriptor again(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const entries = again.get() < 0 ? nullptr : ::fdopendir(again.get());
  if (entries == nullptr) {
    return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be read: {}", std::strerror(errno)));
  }
  again.Release();
  const std::unique_ptr<DIR, int (*)(DIR*)> closes(entries, ::closedir);
  Content content;
  for (errno = 0; const dirent* entry = ::readdir(entries); errno = 0) {
    const std::string_view name(entry->d_name);
    if (name == "." || name == "..") continue;
    const bool is_file = IsRegular(directory, entry->d_name);
    if (is_file && IsBlockName(name)) {
      content.blocks.emplace_back(name);
    } else if (!is_file || name != kLockName) {
      content.foreign = name;
    }
  }
  if (errno == 0) return content;
  return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be read: {}", std::strerror(errno)));
}

Result<DiskBlocks::Descriptor> DiskBlocks::Lock(int directory, const std::string& path) {
  constexpr int kTries = 10;  // each time somebody has just ended
  for (int i = 0; i < kTries; ++i) {
    Descriptor lock(::openat(directory, kLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (lock.get() < 0) {
      return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be written to: {}", std::strerror(errno)));
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) break;
      return Refused(ErrorCode::kUnavailable, path, fmt::format("it cannot be locked: {}", std::strerror(errno)));
    }
    if (IsStill(directory, kLockName, lock.get())) return lock;
  }
  return Refused(ErrorCode::kUnavailable, path, "another engine uses it; allowed: a directory for each engine");
}

// Makes frame_ what the file is to be, but for the words.
void DiskBlocks::Frame(std::uint32_t block, std::uint32_t worker, scheduler::StoreJobId job, std::size_t num_words) {
  frame_.resize(kHeaderWords + num_words);
  frame_[0] = kMagic;
  frame_[1] = block;
  frame_[2] = (std::uint64_t{worker} << 32) | options_.num_workers;
  frame_[3] = job;
  frame_[4] = num_words;
}

bool DiskBlocks::Write(std::uint32_t block, std::uint32_t worker, scheduler::StoreJobId job,
                       std::span<const std::uint64_t> words) {
  scheduler::StoreJobId& written = written_[PartOf(block, worker)];
  written = 0;
  Frame(block, worker, job, words.size());
  std::copy(words.begin(), words.end(), frame_.begin() + kHeaderWords);
  frame_[kChecksum] = ChecksumOf(frame_);
  const std::string name = NameOf(block, worker);
  // A file that replaces another one would be sent to the disk at once.
  ::unlinkat(directory_.get(), name.c_str(), 0);
  if (!Note(&writes_fail_, "written", name, WriteFile(name))) return false;
  written = job;
  return true;
}

bool DiskBlocks::Read(std::uint32_t block, std::uint32_t worker, std::span<std::uint64_t> words) {
  const scheduler::StoreJobId job = written_[PartOf(block, worker)];
  if (job == 0) return false;
  const std::string name = NameOf(block, worker);
  Status done = ReadFile(name, words.size());
  if (done) {
    const std::vector<std::uint64_t> header(frame_.begin(), frame_.begin() + kHeaderWords);
    const bool is_whole = header[kChecksum] == ChecksumOf(frame_);
    Frame(block, worker, job, words.size());
    const bool is_it = std::equal(header.begin(), header.begin() + kChecksum, frame_.begin());
    if (!is_whole || !is_it) done = Failed(is_whole ? "it is of another block or an earlier store" : "it is damaged");
  }
  if (!Note(&reads_fail_, "read", name, done)) return false;
  std::copy(frame_.begin() + kHeaderWords, frame_.end(), words.begin());
  return true;
}

// Writes frame_.
Status DiskBlocks::WriteFile(const std::string& name) {
  const std::string unfinished = name + std::string(kUnfinished);
  Descriptor file(::openat(directory_.get(), unfinished.c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (file.get() < 0) return FailedCall();
  Status done;
  const char* next = reinterpret_cast<const char*>(frame_.data());
  for (std::size_t left = frame_.size() * sizeof(std::uint64_t); left > 0 && done;) {
    const ssize_t count = ::write(file.get(), next, left);
    if (count > 0) {
      next += count;
      left -= static_cast<std::size_t>(count);
    } else if (count == 0) {
      done = Failed("nothing is taken");
    } else if (errno != EINTR) {
      done = FailedCall();
    }
  }
  if (::close(file.Release()) != 0 && done) done = FailedCall();
  if (done && ::renameat(directory_.get(), unfinished.c_str(), directory_.get(), name.c_str()) != 0) {
    done = FailedCall();
  }
  if (!done) ::unlinkat(directory_.get(), unfinished.c_str(), 0);
  return done;
}

// Fills frame_ with a file of that many words.
Status DiskBlocks::ReadFile(const std::string& name, std::size_t num_words) {
  const Descriptor file(::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return FailedCall();
  frame_.resize(kHeaderWords + num_words);
  const std::size_t wanted = frame_.size() * sizeof(std::uint64_t);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return FailedCall();
  if (!S_ISREG(status.st_mode)) return Failed("it is not a file");
  if (static_cast<std::size_t>(status.st_size) != wanted) {
    return Failed(fmt::format("it has {} bytes, not {}", status.st_size, wanted));
  }
  char* next = reinterpret_cast<char*>(frame_.data());
  for (std::size_t left = wanted; left > 0;) {
    const ssize_t count = ::read(file.get(), next, left);
    if (count > 0) {
      next += count;
      left -= static_cast<std::size_t>(count);
    } else if (count == 0) {
      return Failed("it ends early");
    } else if (errno != EINTR) {
      return FailedCall();
    }
  }
  return {};
}

// Says when it begins and when it is over. True if it was done.
bool DiskBlocks::Note(bool* failing, std::string_view verb, const std::string& name, const Status& done) {
  if (done.has_value() != *failing) return done.has_value();
  *failing = !done;
  const std::string directory = ShortText(options_.directory);
  if (done) {
    Log(options_.log, LogLevel::kInfo, fmt::format("disk tier in \"{}\": blocks are {} again", directory, verb));
  } else {
    Log(options_.log, LogLevel::kWarning,
        fmt::format("disk tier in \"{}\": {} cannot be {}: {} (more of the same is only counted)", directory, name,
                    verb, done.error().message));
  }
  return done.has_value();
}

}  // namespace kvwire::engine
