// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "kv_events/state_source.h"

namespace kvwire {

// What a source holds, as text that two ends can compare: a line "group medium hash" per resident block, ordered by
// these; the medium canonical and escaped, of the hash the low 64 bits as 16 lower-case hexadecimal digits. The view is
// valid during the call.
//
// Threads: the thread that owns the blocks. Bounds: 24 bytes a block while it sorts.
void DumpState(const StateSource& source, const std::function<void(std::string_view line)>& write);

}  // namespace kvwire
