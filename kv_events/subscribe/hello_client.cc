// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/hello_client.h"

#include <utility>
#include <vector>

namespace kvwire {

void HelloClient::Start(MonotonicNanos now) {
  ask_.Start(EncodeExtensionRequest({ExtensionKind::kHello, 0}), idle_, now);
}

HelloClient::Outcome HelloClient::Poll(MonotonicNanos now, Hello* hello) {
  const std::optional<InFrames> received = ask_.Poll(now);
  if (!received) {
    if (!ask_.Silent(now)) return Outcome::kNothing;
    Stop();
    return Outcome::kSilent;
  }
  Stop();
  const std::vector<FrameView> views(received->begin(), received->end());
  const std::optional<ExtensionMessage> message = ParseExtensionMessage(views);
  if (!message || message->name != kHelloName) return Outcome::kOther;
  auto decoded = DecodeHello(message->payload);
  if (!decoded) return Outcome::kOther;
  *hello = *std::move(decoded);
  return Outcome::kHello;
}

}  // namespace kvwire
