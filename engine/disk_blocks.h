// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/log.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::engine {

// The words of blocks in files: one per block and worker, named block-BLOCK-WORKER, in a directory of its own. A file
// says what it is of and carries a checksum. One that is missing, cut, damaged, of another block or of an earlier store
// is not read; none is ever seen half-written under its name.
//
// The files are of one life: those of an earlier one are removed at the beginning, and all of them at the end. The
// directory stays.
//
// Threads: one thread at a time.
// Errors: a file that cannot be written or read is a result, and is logged once until one can be again.
// Bounds: num_blocks * num_workers files, and 8 bytes of memory for each.
class DiskBlocks {
 public:
  struct Options {
    std::string directory;         // is made if there is none
    std::uint32_t num_blocks = 0;  // numbered from 1
    std::uint32_t num_workers = 1;
    LogSink log;
  };

  // Errors: kInvalidArgument for a directory that holds anything but such files; kUnavailable when it cannot be made or
  // read, or another engine uses it. Then it is left as it was.
  static Result<std::unique_ptr<DiskBlocks>> Open(Options options);
  ~DiskBlocks();
  DiskBlocks(const DiskBlocks&) = delete;
  DiskBlocks& operator=(const DiskBlocks&) = delete;

  // A worker's words of a block. `job`, not 0, is of no other store. False if they could not be written; then the block
  // cannot be read. REQUIRES: block <= num_blocks, worker < num_workers.
  bool Write(std::uint32_t block, std::uint32_t worker, scheduler::StoreJobId job,
             std::span<const std::uint64_t> words);

  // What was written last. False, and no words, if the file is not exactly that. REQUIRES: as Write().
  bool Read(std::uint32_t block, std::uint32_t worker, std::span<std::uint64_t> words);

 private:
  // Closes what it holds.
  class Descriptor {
   public:
    explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~Descriptor();
    int get() const noexcept { return fd_; }
    int Release() noexcept { return std::exchange(fd_, -1); }

   private:
    int fd_;
  };

  struct Content {
    std::vector<std::string> blocks;  // names of files
    std::string foreign;              // something else; empty: there is nothing
  };

  DiskBlocks(Options options, Descriptor directory, Descriptor lock);

  static tl::unexpected<Error> Refused(ErrorCode code, const std::string& directory, std::string_view reason);
  static tl::unexpected<Error> Foreign(const std::string& path, const Result<Content>& content);
  static Result<Content> Look(int directory, const std::string& path);
  static Result<Descriptor> Lock(int directory, const std::string& path);

  std::size_t PartOf(std::uint32_t block, std::uint32_t worker) const noexcept {
    return std::size_t{block - 1} * options_.num_workers + worker;
  }
  void Frame(std::uint32_t block, std::uint32_t worker, scheduler::StoreJobId job, std::size_t num_words);
  Status WriteFile(const std::string& name);
  Status ReadFile(const std::string& name, std::size_t num_words);
  bool Note(bool* failing, std::string_view verb, const std::string& name, const Status& done);

  const Options options_;
  const Descriptor directory_;
  const Descriptor lock_;
  std::vector<scheduler::StoreJobId> written_;  // by block and worker; 0: not readable
  std::vector<std::uint64_t> frame_;            // the file being written or read
  bool writes_fail_ = false;
  bool reads_fail_ = false;
};

}  // namespace kvwire::engine
