// SPDX-License-Identifier: Apache-2.0
#include "engine/disk_blocks.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/descriptor_drought.h"
#include "tests/support/temp_dir.h"

namespace kvwire::engine {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using Words = std::vector<std::uint64_t>;

// Two workers' blocks in a directory that is not there yet.
class DiskRig {
 public:
  DiskRig() : path(directory_ / "a/b") { Open(); }

  void Open() {
    auto opened = TryOpen();
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    disk = *std::move(opened);
  }
  Result<std::unique_ptr<DiskBlocks>> TryOpen() {
    return DiskBlocks::Open({path, 4, 2, [this](LogLevel, std::string_view text) { log.emplace_back(text); }});
  }
  std::string Refusal() {
    const auto opened = TryOpen();
    REQUIRE_FALSE(opened.has_value());
    return opened.error().message;
  }
  std::string File(const std::string& name) const { return path + "/" + name; }
  // What is read of three words; none if the read fails.
  Words Read(std::uint32_t block, std::uint32_t worker = 0) {
    Words words(3);
    return disk->Read(block, worker, words) ? words : Words();
  }
  std::size_t NumFiles() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }

 private:
  const TempDir directory_;

 public:
  const std::string path;
  std::vector<std::string> log;
  std::unique_ptr<DiskBlocks> disk;
};

const Words kOne{1, 2, 3};
const Words kTwo{7, 8, 9};

TEST_CASE("a block is read as it was written last, each worker's part for itself") {
  DiskRig rig;
  CHECK(rig.Read(1).empty());
  CHECK(rig.disk->Write(1, 0, 10, kOne));
  CHECK(rig.disk->Write(1, 1, 10, kTwo));
  CHECK(rig.disk->Write(4, 1, 11, {}));
  CHECK(rig.Read(1, 0) == kOne);
  CHECK(rig.Read(1, 1) == kTwo);
  CHECK(rig.Read(2).empty());
  CHECK(rig.disk->Write(1, 0, 12, kTwo));
  CHECK(rig.Read(1, 0) == kTwo);
  Words none;
  CHECK(rig.disk->Read(4, 1, none));
  CHECK(rig.log.empty());
  CHECK(rig.NumFiles() == 4);
}

TEST_CASE("at the end the files are removed; those that an earlier life has left, at the beginning") {
  DiskRig rig;
  CHECK(rig.disk->Write(1, 0, 10, kOne));
  rig.disk.reset();
  CHECK(rig.NumFiles() == 0);
  std::ofstream(rig.File("block-3-0")) << "old";
  std::ofstream(rig.File("block-3-1.tmp")) << "half";
  std::ofstream(rig.File("kvwire.lock"));
  rig.Open();
  CHECK(rig.NumFiles() == 1);
  CHECK(rig.Read(3).empty());
}

TEST_CASE("a directory that holds anything else is refused, and nothing in it is touched") {
  for (const char* name : {"notes.txt", "block-", "block-1", "block-1-x", "block-1-2.tmp2", "block-00000000001-2"}) {
    CAPTURE(name);
    DiskRig rig;
    rig.disk.reset();
    std::ofstream(rig.File("block-1-0")) << "old";
    std::ofstream(rig.File(name)) << "mine";
    CHECK(rig.Refusal() == "disk_dir is \"" + rig.path + "\": it holds \"" + name +
                               "\", which is no regular file of blocks; allowed: a directory that holds nothing else");
    CHECK(rig.NumFiles() == 2);
  }
  DiskRig rig;
  rig.disk.reset();
  fs::create_directory(rig.File("block-1-0"));
  CHECK(rig.Refusal().find("it holds \"block-1-0\"") != std::string::npos);
  CHECK(rig.NumFiles() == 1);
}

TEST_CASE("a directory that another engine uses is refused, in this process or another; when it ended, it is free") {
  DiskRig rig;
  CHECK(rig.disk->Write(1, 0, 10, kOne));
  const std::string reason = "another engine uses it; allowed: a directory for each engine";
  CHECK(rig.Refusal().find(reason) != std::string::npos);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto opened = rig.TryOpen();
    _exit(!opened && opened.error().message.find(reason) != std::string::npos ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(rig.Read(1) == kOne);
  rig.disk.reset();
  rig.Open();
}

TEST_CASE("a directory that cannot be made or written to is refused by name") {
  const auto refusal = [](const std::string& path) {
    const auto opened = DiskBlocks::Open({path, 4, 1, {}});
    REQUIRE_FALSE(opened.has_value());
    return opened.error().message;
  };
  CHECK(refusal("") == "disk_dir is \"\": no name; allowed: that of a directory");
  CHECK(refusal("/dev/null/x").starts_with("disk_dir is \"/dev/null/x\": it cannot be made: "));
  CHECK(refusal("/dev/null").starts_with("disk_dir is \"/dev/null\": it cannot be "));
  CHECK(refusal("/proc/kvwire").starts_with("disk_dir is \"/proc/kvwire\": it cannot be made: "));
  const TempDir directory;
  const std::string path = directory / "locked";
  fs::create_directory(path);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
  if (geteuid() != 0) CHECK(refusal(path).find("it cannot be written to: ") != std::string::npos);
}

TEST_CASE("D11: a file that was deleted, cut, extended, damaged, exchanged or put back is not read") {
  DiskRig rig;
  const std::string name = rig.File("block-1-0");
  const auto spoil = [&](const char* how, const auto& change) {
    CAPTURE(how);
    CHECK(rig.disk->Write(1, 0, 10, kOne));
    CHECK(rig.disk->Write(2, 0, 11, kTwo));
    CHECK(rig.disk->Write(1, 1, 10, kTwo));
    CHECK(rig.Read(1) == kOne);
    change();
    CHECK(rig.Read(1).empty());
    CHECK(rig.Read(1).empty());
    CHECK(rig.Read(1, 1) == kTwo);
    fs::remove_all(name);
  };
  spoil("deleted", [&] { fs::remove(name); });
  spoil("cut", [&] { fs::resize_file(name, fs::file_size(name) - 8); });
  spoil("empty", [&] { fs::resize_file(name, 0); });
  spoil("extended", [&] { fs::resize_file(name, fs::file_size(name) + 8); });
  for (std::size_t byte = 0; byte < 9 * 8; ++byte) {
    spoil("a bit is another", [&] {
      std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(byte));
      const char changed = static_cast<char>(file.get() ^ 4);
      file.seekp(static_cast<std::streamoff>(byte));
      file.put(changed);
    });
  }
  spoil("exchanged with another block", [&] {
    fs::rename(name, rig.File("block-3-0"));
    fs::rename(rig.File("block-2-0"), name);
    fs::rename(rig.File("block-3-0"), rig.File("block-2-0"));
    CHECK(rig.Read(2).empty());
  });
  spoil("that of another worker",
        [&] { fs::copy_file(rig.File("block-1-1"), name, fs::copy_options::overwrite_existing); });
  spoil("that of an earlier store", [&] {
    fs::copy_file(name, rig.File("block-3-0"));
    CHECK(rig.disk->Write(1, 0, 12, kTwo));
    fs::rename(rig.File("block-3-0"), name);
  });
  spoil("a pipe", [&] {
    fs::remove(name);
    REQUIRE(mkfifo(name.c_str(), 0600) == 0);
  });
  // Each episode is told once: it ends with the first block that can be read again.
  CHECK(rig.log[0] == "disk tier in \"" + rig.path.substr(0, 60) +
                          "\": block-1-0 cannot be read: No such file or directory (more of the same is only counted)");
  CHECK(rig.log[1].find("blocks are read again") != std::string::npos);
}

TEST_CASE("G3: when the directory is removed under way stores and loads fail, and it can end") {
  DiskRig rig;
  CHECK(rig.disk->Write(1, 0, 10, kOne));
  fs::remove_all(rig.path);
  CHECK(rig.Read(1).empty());
  CHECK_FALSE(rig.disk->Write(2, 0, 11, kOne));
  // Another directory of the same name is another one.
  fs::create_directories(rig.path);
  CHECK_FALSE(rig.disk->Write(2, 0, 12, kOne));
  CHECK(rig.log.size() == 2);
  rig.disk.reset();
  CHECK(fs::exists(rig.path));
}

TEST_CASE("G3: a store that finds the disk full, or no descriptor, fails; the log says once that it begins and ends") {
  DiskRig rig;
  CHECK(rig.disk->Write(1, 0, 10, kOne));
  {
    const test::DescriptorDrought drought;
    CHECK_FALSE(rig.disk->Write(1, 0, 11, kTwo));
    CHECK_FALSE(rig.disk->Write(2, 0, 12, kTwo));
  }
  REQUIRE(rig.log.size() == 1);
  CHECK(rig.log[0].find("block-1-0 cannot be written: Too many open files") != std::string::npos);
  // What was there before is no more.
  CHECK(rig.Read(1).empty());

  const auto before_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit low = before;
  low.rlim_cur = 60;  // ends within a file
  setrlimit(RLIMIT_FSIZE, &low);
  CHECK_FALSE(rig.disk->Write(2, 0, 13, kTwo));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, before_handler);
  CHECK(rig.log.size() == 1);
  CHECK(rig.Read(2).empty());
  CHECK_FALSE(fs::exists(rig.File("block-2-0.tmp")));

  CHECK(rig.disk->Write(2, 0, 14, kTwo));
  CHECK(rig.Read(2) == kTwo);
  REQUIRE(rig.log.size() == 2);
  CHECK(rig.log[1].find("blocks are written again") != std::string::npos);
}

}  // namespace
}  // namespace kvwire::engine
