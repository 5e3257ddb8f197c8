// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/doctor_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Outcome = Finding::Outcome;

const char* MarkOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kWell:
      return "\u2713";
    case Outcome::kIll:
      return "\u2717";
    case Outcome::kUnknown:
      return "-";
  }
  return "?";
}

const char* NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kWell:
      return "well";
    case Outcome::kIll:
      return "ill";
    case Outcome::kUnknown:
      return "unknown";
  }
  return "?";
}

}  // namespace

void DoctorReport::Well(std::string check, std::string detail) {
  findings_.push_back({std::move(check), Outcome::kWell, std::move(detail), {}});
}

void DoctorReport::Ill(std::string check, std::string detail, std::string advice) {
  findings_.push_back({std::move(check), Outcome::kIll, std::move(detail), std::move(advice)});
}

void DoctorReport::Unknown(std::string check, std::string detail, std::string advice) {
  findings_.push_back({std::move(check), Outcome::kUnknown, std::move(detail), std::move(advice)});
}

std::size_t DoctorReport::NumIll() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      findings_.begin(), findings_.end(), [](const Finding& finding) { return finding.outcome == Outcome::kIll; }));
}

std::string DoctorReport::Text() const {
  std::string text;
  for (const Finding& finding : findings_) {
    text += fmt::format("{} {:<17} {}\n", MarkOf(finding.outcome), finding.check, EscapeText(finding.detail));
    if (!finding.advice.empty()) text += fmt::format("  {:<17} -> {}\n", "", EscapeText(finding.advice));
  }
  const std::size_t ill = NumIll();
  return text +
         (ill == 0 ? std::string("all is well\n") : fmt::format("{} of {} checks failed\n", ill, findings_.size()));
}

Json DoctorReport::AsJson() const {
  Json checks = Json::array();
  for (const Finding& finding : findings_) {
    Json check{{"check", finding.check}, {"outcome", NameOf(finding.outcome)}, {"detail", finding.detail}};
    if (!finding.advice.empty()) check["advice"] = finding.advice;
    checks.push_back(std::move(check));
  }
  return Json{{"well", NumIll() == 0}, {"checks", std::move(checks)}};
}

}  // namespace kvwire::engine
