// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvwire::engine {

// Lets the process open as many descriptors as the system allows it: an engine takes about twenty and its clients one
// each, a watched stream about eight.
void RaiseDescriptorLimit() noexcept;

}  // namespace kvwire::engine
