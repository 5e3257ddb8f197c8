// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// The blocks that nobody holds, in the order in which they will be taken: a doubly linked list through arrays indexed
// by block id. Block 0, the null block, is never in it. Bounds: every operation takes constant time per block; 8 bytes
// per block.
class FreeBlockQueue {
 public:
  // Blocks 1 to num_blocks - 1, in that order. REQUIRES: num_blocks >= 1.
  explicit FreeBlockQueue(BlockId num_blocks);

  std::size_t size() const noexcept { return size_; }

  // Takes the front. REQUIRES: size() > 0.
  BlockId PopFront();

  // REQUIRES: the block is in the queue.
  void Remove(BlockId block);

  // REQUIRES: the block is not in the queue.
  void PushBack(BlockId block);

  // REQUIRES: `next` is in the queue, or 0 for the end; the block is not.
  void InsertBefore(BlockId next, BlockId block);

  // The front, and the one behind a block of the queue; 0 at the end.
  BlockId Front() const noexcept { return links_[0].next; }
  BlockId After(BlockId block) const { return links_[block].next; }

  // The first of `blocks` becomes the front. REQUIRES: none of them is in the queue.
  void PushFront(std::span<const BlockId> blocks);

  // The first ones, `most` at most, front first. *blocks is overwritten.
  void First(std::size_t most, std::vector<BlockId>* blocks) const;

  // Front first.
  std::vector<BlockId> ToVector() const;

 private:
  struct Link {
    BlockId prev = 0;
    BlockId next = 0;
  };

  std::vector<Link> links_;  // a ring; block 0 stands before the front and behind the back
  std::size_t size_ = 0;
};

}  // namespace kvwire::scheduler
