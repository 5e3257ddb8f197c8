// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvwire {

// A walk over blocks in numbered places, parents first, that goes on piece by piece while blocks come, move and go. It
// meets whatever was there when it began and still is at its end, once; what came since it may meet.
//
// `Blocks` is what the owner lends to Some():
//   bool Wants(Place) const      whether the block in the place is to be visited by this walk
//   Key KeyOf(Place) const       names the block, wherever it moves
//   Place Find(const Key&, Place last_seen) const   where the block is now; 0: nowhere
//   Place ParentOf(Place) const  where the block's parent is; 0: nowhere
//   void Visit(Place)
//
// The way up from a block is a stack of keys, so that a climb of any length goes on in the next piece. A block is
// marked when it is put on the stack: chains that lead back to themselves end.
//
// Bounds: a bit a place, a key for each block of the longest climb, and a place for each Move and Add since the last
// pieces. A piece visits up to max_blocks and looks at up
// to kLooksPerBlock times as many places.
template <class Key>
class ResumableWalk {
 public:
  using Place = std::uint32_t;  // from 1 on
  static constexpr std::size_t kLooksPerBlock = 16;

  // Over the places 1 to num_places; gives up the walk under way.
  void Begin(std::size_t num_places) {
    marks_.assign(num_places + 1, false);
    ways_up_.clear();
    climbs_ = false;
    behind_.clear();
    next_ = 1;
  }

  // Nothing that was there is there any more.
  void End() noexcept {
    ways_up_.clear();
    climbs_ = false;
    behind_.clear();
    next_ = marks_.size();
  }

  // Also without one.
  bool IsOver() const noexcept { return ways_up_.empty() && behind_.empty() && next_ >= marks_.size(); }

  // The block in `from` is found in `to` from now on. REQUIRES: of a walk under way, both are among its places.
  void Move(Place from, Place to) {
    if (IsOver()) return;
    marks_[to] = marks_[from];
    if (!marks_[to] && to < next_) behind_.push_back(to);
  }

  // What came to the place since the walk began is to be met as well, next. Nothing without a walk under way.
  // REQUIRES: the place is among its places.
  void Add(Place place) {
    if (IsOver()) return;
    marks_[place] = false;
    behind_.push_back(place);
  }

  // False when the walk is over, and without one.
  template <class Blocks>
  bool Some(std::size_t max_blocks, Blocks&& blocks) {
    std::size_t visits_left = max_blocks;
    for (std::size_t looks_left = kLooksPerBlock * max_blocks; looks_left > 0 && visits_left > 0; --looks_left) {
      if (climbs_) {
        Climb(blocks);
      } else if (!ways_up_.empty()) {
        if (Descend(blocks)) --visits_left;
      } else if (!behind_.empty()) {
        const Place place = behind_.back();
        behind_.pop_back();
        climbs_ = Push(place, blocks);
      } else if (next_ < marks_.size()) {
        climbs_ = Push(static_cast<Place>(next_++), blocks);
      } else {
        break;
      }
    }
    return !IsOver();
  }

 private:
  struct Step {
    Key key;
    Place last_seen = 0;
  };

  template <class Blocks>
  bool Push(Place place, const Blocks& blocks) {
    if (place >= marks_.size() || marks_[place] || !blocks.Wants(place)) return false;
    marks_[place] = true;
    ways_up_.push_back(Step{blocks.KeyOf(place), place});
    return true;
  }

  template <class Blocks>
  void Climb(const Blocks& blocks) {
    const Place top = blocks.Find(ways_up_.back().key, ways_up_.back().last_seen);
    const Place parent = top == 0 ? 0 : blocks.ParentOf(top);
    climbs_ = parent != 0 && Push(parent, blocks);
  }

  // False if the block is gone, or was announced by an event in between.
  template <class Blocks>
  bool Descend(Blocks& blocks) {
    const Place place = blocks.Find(ways_up_.back().key, ways_up_.back().last_seen);
    ways_up_.pop_back();
    if (place == 0 || !blocks.Wants(place)) return false;
    blocks.Visit(place);
    return true;
  }

  std::vector<bool> marks_;  // by place
  std::vector<Step> ways_up_;
  bool climbs_ = false;
  std::vector<Place> behind_;  // to be met before the next place: blocks that moved, or came
  std::size_t next_ = 0;
};

}  // namespace kvwire
