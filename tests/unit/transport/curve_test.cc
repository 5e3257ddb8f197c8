// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include "kv_events/transport/curve_keys.h"
#include "kv_events/transport/zmq_link.h"
#include "tests/support/key_files.h"
#include "tests/support/stream_support.h"

namespace kvwire {
namespace {

using test::Eventually;
using test::KeyFiles;
using test::LogCapture;
using test::NewKeys;

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// A publisher's socket and its clients.
struct Rig {
  explicit Rig(std::shared_ptr<CurveClients> admitted) : clients(std::move(admitted)) {
    LinkOptions options;
    options.watch_peers = true;
    options.curve_server = std::make_shared<const CurveServer>(CurveServer{server.secret_key, clients});
    Result<std::unique_ptr<ZmqLink>> bound =
        ZmqLink::Bind(context, LinkKind::kPub, *Endpoint::Parse("tcp://127.0.0.1:0", "endpoint"), options);
    REQUIRE_MESSAGE(bound.has_value(), (bound ? "" : bound.error().message));
    publisher = *std::move(bound);
  }

  std::unique_ptr<ZmqLink> Client(std::shared_ptr<const CurveClient> curve) {
    LinkOptions options;
    options.watch_peers = true;
    options.curve_client = std::move(curve);
    Result<std::unique_ptr<ZmqLink>> made =
        ZmqLink::Connect(context, LinkKind::kSub, *Endpoint::Parse(publisher->endpoint(), "endpoint"), options);
    REQUIRE(made.has_value());
    return *std::move(made);
  }

  std::unique_ptr<ZmqLink> Client(const CurveKeys& keys) {
    return Client(std::make_shared<const CurveClient>(CurveClient{keys, server.public_key}));
  }

  // Publishes until the link has something.
  bool Receives(ZmqLink& link) {
    return Eventually([&] {
      static constexpr std::uint8_t kTopic[] = {'x'};
      const OutFrame frames[] = {OutFrame::Copy(kTopic)};
      publisher->TrySend(frames);
      return link.TryReceive().has_value();
    });
  }

  const CurveKeys server = NewKeys();
  std::shared_ptr<CurveClients> clients;
  std::shared_ptr<ZmqContext> context = ZmqContext::Create();
  std::unique_ptr<ZmqLink> publisher;
};

TEST_CASE("a certificate is read as it was written, and pyzmq's form is") {
  const KeyFiles directory;
  const CurveKeys keys = NewKeys();
  CHECK(keys.public_key.size() == kCurveKeyLength);
  const std::string secret = directory.Write("a.key_secret", SecretCurveCertificate(keys));
  const std::string open = directory.Write("a.key", PublicCurveCertificate(keys));
  CHECK_FALSE(Contains(PublicCurveCertificate(keys), keys.secret_key));
  const Result<CurveKeys> read = ReadCurveKeys(secret, "curve.secret_key_file");
  REQUIRE(read.has_value());
  CHECK(read->secret_key == keys.secret_key);
  CHECK(read->public_key == keys.public_key);
  CHECK(ReadCurvePublicKey(open, "server key").value() == keys.public_key);
  CHECK(ReadCurvePublicKey(secret, "server key").value() == keys.public_key);
  const std::string theirs = directory.Write(
      "b", "# comment\r\nmetadata\r\n    name=\"b\"\r\ncurve\r\n    public-key=\"" + keys.public_key + "\"\r\n");
  CHECK(ReadCurvePublicKey(theirs, "server key").value() == keys.public_key);
}

TEST_CASE("a key file that cannot be used is refused by setting and path, and no secret is shown") {
  const KeyFiles directory;
  const CurveKeys keys = NewKeys();
  const auto error_of = [&](const std::string& text) {
    const Result<CurveKeys> read = ReadCurveKeys(directory.Write("f", text), "curve.secret_key_file");
    REQUIRE_FALSE(read.has_value());
    CHECK(Contains(read.error().message, "curve.secret_key_file: "));
    CHECK_FALSE(Contains(read.error().message, keys.secret_key.substr(0, 20)));
    return read.error().message;
  };
  CHECK(Contains(error_of(""), "has no secret-key; allowed: a file with a line secret-key"));
  CHECK(Contains(error_of(PublicCurveCertificate(keys)), "has no secret-key"));
  CHECK(Contains(error_of("secret-key = \"" + keys.secret_key.substr(1) + "\"\n"), "has a malformed secret-key"));
  CHECK(Contains(error_of(SecretCurveCertificate({NewKeys().public_key, keys.secret_key})), "are not of one pair"));
  CHECK(ReadCurveKeys(keys.secret_key, "curve.secret_key_file").error().message ==
        "curve.secret_key_file: this is a key; allowed: the path of a file that holds it");
  CHECK(Contains(ReadCurveKeys("/nowhere/key", "curve.secret_key_file").error().message, "No such file"));
}

TEST_CASE("J7: a key of the list receives; another key, a wrong server key and no key receive nothing") {
  const KeyFiles directory;
  const CurveKeys friend_keys = NewKeys();
  const CurveKeys stranger_keys = NewKeys();
  LogCapture diary;
  const std::string path = directory.Write("allowed", "# who may read\n\n" + friend_keys.public_key + " a router\n");
  Result<std::shared_ptr<CurveAllowList>> list = CurveAllowList::Open(path, "curve.allowed_keys_file", diary.sink());
  REQUIRE(list.has_value());
  Rig rig(*list);
  const auto stranger = rig.Client(stranger_keys);
  const auto misled = rig.Client(std::make_shared<const CurveClient>(CurveClient{friend_keys, NewKeys().public_key}));
  const auto open = rig.Client(std::shared_ptr<const CurveClient>());
  CHECK(Eventually([&] { return rig.clients->denied() > 0; }));
  const auto invited = rig.Client(friend_keys);
  REQUIRE(rig.Receives(*invited));
  CHECK_FALSE(stranger->TryReceive());
  CHECK_FALSE(misled->TryReceive());
  CHECK_FALSE(open->TryReceive());
  CHECK(rig.clients->admitted() == 1);
  // It comes again, and is told of once.
  const std::uint64_t denied = rig.clients->denied();
  const auto again = rig.Client(stranger_keys);
  CHECK(Eventually([&] { return rig.clients->denied() > denied; }));
  CHECK(diary.Count(LogLevel::kWarning, "the key " + stranger_keys.public_key + " was turned away") == 1);
  CHECK(diary.Count(LogLevel::kWarning, "") == 1);
  CHECK(rig.publisher->peers().connected == 1);
}

TEST_CASE("J7: a list is read again when its file changes; one that cannot be read changes nothing") {
  const KeyFiles directory;
  const CurveKeys first = NewKeys();
  const CurveKeys second = NewKeys();
  LogCapture diary;
  const std::string path = directory.Write("allowed", first.public_key + "\n");
  auto list = CurveAllowList::Open(path, "curve.allowed_keys_file", diary.sink()).value();
  CHECK(list->Admit(first.public_key, "10.0.0.1"));
  CHECK_FALSE(list->Admit(second.public_key, "10.0.0.2"));
  directory.Write("allowed", first.public_key + "\n" + second.public_key + " the second\n");
  CHECK(list->Admit(second.public_key, "10.0.0.2"));
  directory.Write("allowed", "nonsense\n");
  CHECK(list->Admit(second.public_key, "10.0.0.2"));
  CHECK(list->Admit(first.public_key, "10.0.0.1"));
  directory.Write("allowed", second.public_key + "\n");
  CHECK_FALSE(list->Admit(first.public_key, "10.0.0.1"));
  std::filesystem::remove(path);
  CHECK(list->Admit(second.public_key, "10.0.0.2"));
  CHECK(diary.Count(LogLevel::kInfo, "was read again: 2 keys") == 1);
  CHECK(diary.Count(LogLevel::kError, "line 1: it begins with no key") == 1);
  CHECK(diary.Count(LogLevel::kError, "No such file or directory; the 1 keys from before stay in force") == 1);
  CHECK(diary.Count(LogLevel::kError, "") == 2);
  CHECK(list->denied() == 2);
}

TEST_CASE("a list is refused by setting, path and line") {
  const KeyFiles directory;
  const auto error_of = [&](const std::string& text) {
    const auto opened = CurveAllowList::Open(directory.Write("allowed", text), "curve.allowed_keys_file", {});
    REQUIRE_FALSE(opened.has_value());
    CHECK(Contains(opened.error().message, "curve.allowed_keys_file: \""));
    return opened.error().message;
  };
  CHECK(
      Contains(error_of("# good\n\nshort\n"), "line 3: it begins with no key; allowed: a public key of 40 characters"));
  CHECK(Contains(error_of("#nocomment\n"), "line 1"));
  CHECK(Contains(CurveAllowList::Open("/nowhere/list", "curve.allowed_keys_file", {}).error().message, "No such file"));
}

TEST_CASE("J7: any client may come where that is said") {
  Rig rig(std::make_shared<AnyCurveClient>());
  const auto client = rig.Client(NewKeys());
  CHECK(rig.Receives(*client));
  CHECK(rig.clients->admitted() == 1);
  CHECK(rig.clients->denied() == 0);
}

TEST_CASE("J7: two publishers of one context have each their own list") {
  const KeyFiles directory;
  const CurveKeys first = NewKeys();
  const CurveKeys second = NewKeys();
  Rig one(CurveAllowList::Open(directory.Write("one", first.public_key), "one", {}).value());
  Rig two(CurveAllowList::Open(directory.Write("two", second.public_key), "two", {}).value());
  const auto wrong = two.Client(first);
  const auto right_one = one.Client(first);
  const auto right_two = two.Client(second);
  CHECK(one.Receives(*right_one));
  CHECK(two.Receives(*right_two));
  CHECK(Eventually([&] { return two.clients->denied() > 0; }));
  CHECK_FALSE(wrong->TryReceive());
}

}  // namespace
}  // namespace kvwire
