// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kv_events/error.h"
#include "kv_events/transport/curve_allow_list.h"

namespace kvwire {

// Keys of ZeroMQ's CURVE, as its text form Z85 writes them: 40 characters for 32 bytes. Values; who logs or prints one
// prints the public key only.
// Threads: any. Errors: name the setting, the file and what is allowed; never a secret.
// Source: https://rfc.zeromq.org/spec/26 (CURVE), spec/32 (Z85); the files are those of CZMQ and of pyzmq's zmq.auth.
struct CurveKeys {
  std::string public_key;
  std::string secret_key;
};

inline constexpr std::size_t kCurveKeyLength = 40;

// Whether this is the text of a key.
bool IsCurveKey(std::string_view text) noexcept;

// A pair that nobody has. Errors: kUnsupported if libzmq cannot do CURVE.
Result<CurveKeys> MakeCurveKeys();

// What stands in a certificate file: of a secret one both keys, of a public one only the public key.
std::string SecretCurveCertificate(const CurveKeys& keys);
std::string PublicCurveCertificate(const CurveKeys& keys);

// From a file with the line `secret-key = "..."`. A public key beside it must be the secret one's.
Result<CurveKeys> ReadCurveKeys(const std::string& path, std::string_view setting);

// From a file with the line `public-key = "..."`.
Result<std::string> ReadCurvePublicKey(const std::string& path, std::string_view setting);

// What a binding socket is closed with: only who has a key that `clients` admits connects.
struct CurveServer {
  std::string secret_key;
  std::shared_ptr<CurveClients> clients;
};

// What a connecting socket shows, and whom it believes.
struct CurveClient {
  CurveKeys keys;
  std::string server_key;  // public
};

}  // namespace kvwire
