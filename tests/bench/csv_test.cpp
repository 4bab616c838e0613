// The table of tigon_bench: its columns and keys, what is kept and what is replaced, and that no row waits for another.
#include "support/csv.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace tigon_bench;

constexpr const char* shared_columns =
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,"
    "y_value_50,y_value_20,y_value_80,extra_benchmark_config_str,gpu_name,timestamp,liger_version";

csv_row some_row(const std::string& x_value = "1024", double ms = 1.5) {
  csv_row row;
  row.kernel_name = "rms_norm";
  row.kernel_provider = "highway";
  row.kernel_operation_mode = "forward";
  row.metric_name = "speed";
  row.metric_unit = "ms";
  row.x_name = "BT";
  row.x_label = "tokens";
  row.x_value = x_value;
  row.y_value_50 = ms;
  row.y_value_20 = ms - 0.25;
  row.y_value_80 = ms + 0.25;
  row.extra_benchmark_config = R"({"dtype":"f32","threads":1})";
  row.gpu_name = "some CPU avx2 1T";
  row.timestamp = "2026-01-02 03:04:05";
  row.version = "0.1.0";
  row.gbytes_per_s = 40;
  row.gflops_per_s = std::nan("");
  row.limit_ms = 1;
  row.fraction_of_limit = 0.5;
  row.limit_kind = "stream_1r1w";
  row.shape = x_value + "x4096";
  return row;
}

class csv : public testing::Test {
 protected:
  csv()
      : folder_(std::filesystem::temp_directory_path() / ("tigon-csv-" + std::to_string(getpid()))),
        path_((folder_ / "deeper" / "table.csv").string()) {}
  ~csv() override { std::filesystem::remove_all(folder_); }

  csv_file open(existing_row policy = existing_row::keep) const { return csv_file(path_, policy); }
  std::string text() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t lines() const {
    const std::string all = text();
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), '\n'));
  }
  void put(const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    std::ofstream(path_, std::ios::binary) << content;
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(csv, has_the_fifteen_columns_first_and_a_row_below) {
  EXPECT_TRUE(open().add(some_row()));
  EXPECT_EQ(text(), std::string(shared_columns) +
                        ",gbytes_per_s,gflops_per_s,limit_ms,fraction_of_limit,limit_kind,shape,reason\n"
                        "rms_norm,highway,forward,speed,ms,BT,tokens,1024,1.5,1.25,1.75,"
                        "\"{\"\"dtype\"\":\"\"f32\"\",\"\"threads\"\":1}\",some CPU avx2 1T,2026-01-02 03:04:05,0.1.0,"
                        "40,NaN,1,0.5,stream_1r1w,1024x4096,\n");
}

TEST_F(csv, every_row_is_in_the_file_as_soon_as_it_is_added) {
  csv_file file = open();
  for (std::size_t n = 1; n <= 5; ++n) {
    file.add(some_row(std::to_string(n)));
    EXPECT_EQ(lines(), 1 + n);
  }
}

TEST_F(csv, the_key_is_eight_columns) {
  csv_file file = open();
  file.add(some_row());
  const std::vector<std::function<void(csv_row&)>> in_the_key{
      [](csv_row& r) { r.kernel_name = "softmax"; },
      [](csv_row& r) { r.kernel_provider = "eigen"; },
      [](csv_row& r) { r.kernel_operation_mode = ""; },
      [](csv_row& r) { r.metric_name = "memory"; },
      [](csv_row& r) { r.x_name = "T"; },
      [](csv_row& r) { r.x_value = "1024.0"; },
      [](csv_row& r) { r.extra_benchmark_config = ""; },
      [](csv_row& r) { r.gpu_name = "some CPU avx2 2T"; },
  };
  std::size_t expected = 2;
  for (const auto& change : in_the_key) {
    csv_row row = some_row();
    change(row);
    EXPECT_FALSE(file.keeps(row));
    EXPECT_TRUE(file.add(row));
    EXPECT_EQ(lines(), ++expected);
    EXPECT_TRUE(file.keeps(row));
  }
  const std::vector<std::function<void(csv_row&)>> outside{
      [](csv_row& r) { r.metric_unit = "s"; },  [](csv_row& r) { r.x_label = "sequence length"; },
      [](csv_row& r) { r.y_value_50 = 9; },     [](csv_row& r) { r.timestamp = "2027-01-02 03:04:05"; },
      [](csv_row& r) { r.version = "0.2.0"; },  [](csv_row& r) { r.limit_ms = 9; },
      [](csv_row& r) { r.shape = "2048x4096"; }};
  const std::string before = text();
  for (const auto& change : outside) {
    csv_row row = some_row();
    change(row);
    EXPECT_TRUE(file.keeps(row));
    EXPECT_FALSE(file.add(row));
    EXPECT_EQ(text(), before);
  }
}

TEST_F(csv, overwrite_replaces_in_its_place_across_runs) {
  {
    csv_file first = open();
    first.add(some_row("1024", 1.5)), first.add(some_row("2048", 3));
  }
  const std::string before = text();
  EXPECT_FALSE(open().add(some_row("1024", 7)));
  EXPECT_EQ(text(), before);
  csv_file again = open(existing_row::replace);
  EXPECT_FALSE(again.keeps(some_row("1024", 7)));
  EXPECT_TRUE(again.add(some_row("1024", 7)));
  EXPECT_EQ(lines(), 3u);
  EXPECT_LT(text().find(",1024,7,6.75,7.25,"), text().find(",2048,3,2.75,3.25,"));
  EXPECT_EQ(text().find(",1.5,"), std::string::npos);
}

TEST_F(csv, a_case_that_was_not_measured_is_a_row_with_a_reason_and_gives_way_to_one_that_was) {
  csv_row refused = some_row();
  refused.y_value_50 = refused.y_value_20 = refused.y_value_80 = std::nan("");
  refused.reason = "too much memory, says \"it\",\nin two lines";
  EXPECT_TRUE(open().add(refused));
  EXPECT_NE(text().find(",NaN,NaN,NaN,"), std::string::npos);
  EXPECT_NE(text().find("\"too much memory, says \"\"it\"\",\nin two lines\"\n"), std::string::npos);

  csv_file file = open();
  EXPECT_FALSE(file.keeps(some_row()));
  EXPECT_TRUE(file.add(some_row()));
  EXPECT_EQ(text().find("NaN,NaN,NaN"), std::string::npos);
  EXPECT_EQ(lines(), 2u);
  EXPECT_FALSE(file.add(refused));  // and not the other way round
}

TEST_F(csv, keeps_every_character_of_a_field) {
  for (const char* const odd : {"a,b", "a\"b", "a\nb", "a\r\nb", "\"", " a "}) {
    csv_row row = some_row(odd);
    EXPECT_TRUE(open().add(row));
    EXPECT_TRUE(open().keeps(row)) << odd;  // read back
  }
}

TEST_F(csv, reads_the_fifteen_columns_alone_and_adds_its_own) {
  const std::string old =
      "rms_norm,liger,full,speed,ms,BT,tokens,1024,0.2,0.1,0.3,\"{\"\"dtype\"\":\"\"torch.bfloat16\"\"}\",some GPU,"
      "2026-01-02 03:04:05,0.8.2";
  put(std::string(shared_columns) + "\n" + old + "\n");
  EXPECT_TRUE(open().add(some_row()));
  EXPECT_EQ(lines(), 3u);
  EXPECT_NE(text().find(old + ",,,,,,,\n"), std::string::npos);
}

TEST_F(csv, refuses_what_is_no_such_table_and_leaves_it) {
  for (const std::string& content :
       {std::string("a,b,c\n1,2,3\n"), std::string(shared_columns).substr(12) + "\n",
        std::string(shared_columns) + "\nrms_norm,highway\n", std::string(shared_columns) + ",gbytes_per_hour\n"}) {
    put(content);
    EXPECT_THROW(open(), std::runtime_error) << content;
    EXPECT_EQ(text(), content);
  }
}

TEST_F(csv, an_empty_file_is_an_empty_table) {
  put("");
  EXPECT_TRUE(open().add(some_row()));
  EXPECT_EQ(lines(), 2u);
}

TEST_F(csv, a_table_that_cannot_be_written_is_refused_before_a_row_is_measured) {
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      csv_file(path, existing_row::keep);
    } catch (const std::exception& e) {
      return e.what();
    }
    return {};
  };
  put("");
  EXPECT_EQ(refusal(path_), "");
  EXPECT_NE(refusal(folder_.string()).find("it is a folder"), std::string::npos) << refusal(folder_.string());
  EXPECT_NE(refusal(path_ + "/table.csv"), "");
  EXPECT_NE(refusal("/dev/full").find("No space left on device"), std::string::npos) << refusal("/dev/full");
  EXPECT_EQ(refusal("/dev/null"), "");
}

TEST_F(csv, two_programs_do_not_write_one_partial_file) {
  put("");
  csv_file first = open();
  // The name of a partial file that another program could hold.
  std::filesystem::create_directory(path_ + ".part");
  EXPECT_TRUE(first.add(some_row()));
  EXPECT_EQ(lines(), 2u);
}

}  // namespace
