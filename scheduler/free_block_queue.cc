// SPDX-License-Identifier: Apache-2.0
#include "scheduler/free_block_queue.h"

#include <cassert>

namespace kvwire::scheduler {

namespace {

constexpr BlockId kEnd = 0;

}  // namespace

FreeBlockQueue::FreeBlockQueue(BlockId num_blocks) : links_(num_blocks), size_(num_blocks - 1) {
  for (BlockId block = 0; block < num_blocks; ++block) {
    links_[block].prev = block == 0 ? num_blocks - 1 : block - 1;
    links_[block].next = block + 1 == num_blocks ? kEnd : block + 1;
  }
}

BlockId FreeBlockQueue::PopFront() {
  assert(size_ > 0);
  const BlockId block = links_[kEnd].next;
  Remove(block);
  return block;
}

void FreeBlockQueue::Remove(BlockId block) {
  const Link link = links_[block];
  links_[link.prev].next = link.next;
  links_[link.next].prev = link.prev;
  --size_;
}

void FreeBlockQueue::InsertBefore(BlockId next, BlockId block) {
  const BlockId previous = links_[next].prev;
  links_[block] = Link{previous, next};
  links_[previous].next = block;
  links_[next].prev = block;
  ++size_;
}

void FreeBlockQueue::PushBack(BlockId block) { InsertBefore(kEnd, block); }

void FreeBlockQueue::PushFront(std::span<const BlockId> blocks) {
  for (std::size_t i = blocks.size(); i-- > 0;) InsertBefore(Front(), blocks[i]);
}

void FreeBlockQueue::First(std::size_t most, std::vector<BlockId>* blocks) const {
  blocks->clear();
  for (BlockId block = links_[kEnd].next; block != kEnd && blocks->size() < most; block = links_[block].next) {
    blocks->push_back(block);
  }
}

std::vector<BlockId> FreeBlockQueue::ToVector() const {
  std::vector<BlockId> blocks;
  blocks.reserve(size_);
  First(size_, &blocks);
  return blocks;
}

}  // namespace kvwire::scheduler
