// The error of every output and gradient of a golden folder, beside Liger's, as CSV.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "../../support/inventory.hpp"
#include "../../support/output_file.hpp"
#include "runners.hpp"

namespace {

using tigon::test::error_measure;

struct arguments {
  std::string golden, backend, csv;
};

/// Ours over Liger's; of the largest differences where a relative error is infinite.
double ratio(error_measure ours, error_measure liger) {
  const bool relative = std::isfinite(ours.rel_l2) && std::isfinite(liger.rel_l2);
  const double a = relative ? ours.rel_l2 : ours.max_abs, b = relative ? liger.rel_l2 : liger.max_abs;
  return a == b ? 1 : a / b;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// One case; a sentence for everything that it could not give.
void report(const golden::folder& fixtures, const golden::problem& p, const std::string& backend, std::ostream& csv,
            std::vector<std::string>& missing, std::size_t& written) {
  const std::string where = p.op + ' ' + p.name + ' ' + p.dtype;
  const auto runner = std::ranges::find_if(golden::runners(), [&](const golden::runner& r) {
    return r.op == p.op && r.backend == backend && r.dtype == p.dtype;
  });
  if (runner == golden::runners().end()) return missing.push_back(where + ": not built for this element type");
  golden::results got;
  try {
    got = runner->run(p);
  } catch (const std::exception& e) {
    return missing.push_back(where + ": " + e.what());
  }
  for (const auto& [name, reference] : p.reference) {
    if (!got.contains(name)) {
      missing.push_back(where + ' ' + name + ": not among the results of this operator");
      continue;
    }
    const error_measure ours = tigon::test::measure(got.at(name), reference.data);
    const auto liger = fixtures.error_of(p, name).liger;
    csv << p.op << ',' << p.name << ',' << p.dtype << ',' << name << ',' << number(ours.rel_l2) << ','
        << number(ours.max_abs) << ',';
    if (liger)
      csv << number(liger->rel_l2) << ',' << number(liger->max_abs) << ',' << number(ratio(ours, *liger)) << '\n';
    else
      csv << ",,\n";  // Liger's own run failed
    ++written;
  }
}

int run(const arguments& args) {
  std::set<std::string> backends, ops;
  for (const golden::runner& r : golden::runners()) {
    backends.emplace(r.backend);
    if (r.backend == args.backend) ops.emplace(r.op);
  }
  if (!backends.contains(args.backend)) {
    std::string known;
    for (const std::string& b : backends) known += (known.empty() ? "" : ", ") + b;
    throw std::invalid_argument("--backend " + args.backend + " is unknown; this build has " + known);
  }
  const golden::folder fixtures(args.golden);
  example::inventory files;
  files.writes({"--csv", args.csv}, 1);
  files.reads_folder({"--golden", args.golden});
  files.check();
  std::ostringstream csv;

  csv << "op,case,dtype,tensor,rel_l2,max_abs,liger_rel_l2,liger_max_abs,ratio\n";
  std::vector<std::string> missing;
  std::size_t written = 0;
  for (const std::string& op : fixtures.ops()) {
    if (!ops.contains(op)) {
      missing.push_back(op + ": tigon does not have this operator yet");
      continue;
    }
    try {
      for (const golden::problem& p : fixtures.problems(op)) report(fixtures, p, args.backend, csv, missing, written);
    } catch (const std::exception& e) {
      missing.push_back(op + ": " + e.what());
    }
  }
  example::replace_file(args.csv, csv.view());
  std::printf("%zu rows in %s, backend %s\n", written, args.csv.c_str(), args.backend.c_str());
  if (!missing.empty()) std::printf("not run:\n");
  for (const std::string& sentence : missing) std::printf("  %s\n", sentence.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Writes the error of every output and gradient of a golden folder, beside Liger's.");
  arguments args;
  app.add_option("--golden", args.golden, "folder of .safetensors files and liger_error.csv")->required();
  app.add_option("--backend", args.backend, "backend to run on")->required();
  app.add_option("--csv", args.csv, "file to write")->required();
  try {
    app.parse(argc, argv);
    return run(args);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accuracy_report: %s\n", e.what());
    return 2;
  }
}
