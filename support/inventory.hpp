// What a run reads and writes, looked at as a whole before its first step.
#ifndef EXAMPLE_SUPPORT_INVENTORY_HPP
#define EXAMPLE_SUPPORT_INVENTORY_HPP

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "output_file.hpp"

namespace example {

/// A file that is written in a folder.
struct file_in_folder {
  std::string name;
  std::uintmax_t bytes;     ///< at least
  bool repeatedly = false;  ///< also before the end of the run
};

namespace detail {

/// Folders that a check makes, so that it can try what is in them. They go with it.
class passing_folders {
 public:
  passing_folders() = default;
  passing_folders(const passing_folders&) = delete;
  passing_folders& operator=(const passing_folders&) = delete;
  ~passing_folders() {
    for (; !made_.empty(); made_.pop_back()) ::rmdir(made_.back().c_str());
  }

  void make(const named_file& folder) try {
    make_folders(folder.path, [&](const std::filesystem::path& one) { made_.push_back(one); });
  } catch (const std::system_error& error) {
    throw std::runtime_error(folder.option + " " + folder.path.string() + " cannot be made: " + error.code().message());
  }

 private:
  std::vector<std::filesystem::path> made_;
};

/// Whole blocks of a disk.
inline std::uintmax_t on_disk(std::uintmax_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace detail

/// All files of a run, under the options that name them. check() refuses, by a sentence, an output that is an input,
/// two outputs that are one file, and an output that cannot be written or for which the disk has no room. It leaves all
/// files as they are, and nothing behind. An empty path is that of an option that was not given.
class inventory {
 public:
  /// A file that is read. The output of the option `by` may replace it.
  void reads(const named_file& file, const std::string& by = {}) {
    if (!file.path.empty()) inputs_.push_back({file, by});
  }

  /// All files of a folder that is read, those below other folders left out, and those that would be read there under
  /// `names`.
  void reads_folder(const named_file& folder, std::span<const char* const> names = {}) {
    if (folder.path.empty()) return;
    reads(folder);
    reads_in(folder, names, {});
    std::error_code code, none;
    for (std::filesystem::directory_iterator at(folder.path, code), end; !code && at != end; at.increment(code))
      if (!at->is_directory(none)) reads({folder.option, at->path()});
  }

  /// A file that is written, of at least so many bytes; `repeatedly`: before the end of the run, too.
  void writes(const named_file& file, std::uintmax_t bytes, bool repeatedly = false) {
    if (!file.path.empty()) outputs_.push_back({file, bytes, repeatedly});
  }

  /// Files that are written, in this order, in a folder. It is made where it is not there. `names` are those of other
  /// files that may have come there before, and that no other output may replace.
  void writes_folder(const named_file& folder, const std::vector<file_in_folder>& files,
                     std::span<const char* const> names) {
    if (folder.path.empty()) return;
    folders_.push_back(folder);
    for (const file_in_folder& file : files)
      writes({folder.option, folder.path / file.name}, file.bytes, file.repeatedly);
    reads_in(folder, names, folder.option);
    makes_folder(folder);
  }

  /// A folder that is made where it is not there, with those that it lies in.
  void makes_folder(const named_file& folder) {
    for (const auto& path : folders_to_make(folder.path)) reads({folder.option, path}, folder.option);
  }

  void check() const {
    check_apart();
    detail::passing_folders folders;
    for (const named_file& folder : folders_) folders.make(folder);
    for (const output& one : outputs_) check_writable(one.file, one.bytes);
    check_room();
  }

 private:
  struct input {
    named_file file;
    std::string by;
  };
  struct output {
    named_file file;
    std::uintmax_t bytes;
    bool repeatedly;
  };

  void reads_in(const named_file& folder, std::span<const char* const> names, const std::string& by) {
    for (const char* const name : names) reads({folder.option, folder.path / name}, by);
  }

  void check_apart() const {
    const auto apart_from_inputs = [&](const named_file& out) {
      for (const input& in : inputs_)
        if (in.by != out.option) keep_apart({out, in.file});
    };
    for (const named_file& folder : folders_) apart_from_inputs(folder);
    std::vector<named_file> outputs;
    for (const output& out : outputs_) outputs.push_back(out.file);
    keep_apart(outputs);
    for (const named_file& out : outputs) apart_from_inputs(out);
  }

  /// A file is written beside the old one, whose blocks are free afterwards, if no other name has them.
  void check_room() const {
    struct disk {
      std::filesystem::path folder;
      std::uintmax_t room = 0;
      std::intmax_t used = 0, most = 0;
      const output* at_most = nullptr;
    };
    std::map<::dev_t, disk> disks;
    std::map<const output*, std::uintmax_t> old;
    for (const bool last : {false, true})
      for (const output& one : outputs_) {
        if (!last && !one.repeatedly) continue;
        const auto target = detail::behind_links(one.file.path), folder = detail::folder_of(target);
        struct stat there, place;
        const bool exists = ::stat(target.c_str(), &there) == 0;
        if (::stat(folder.c_str(), &place) != 0 || (exists && !S_ISREG(there.st_mode))) continue;
        const auto [at, fresh] = disks.try_emplace(place.st_dev);
        disk& d = at->second;
        if (fresh) d.folder = folder, d.room = detail::room_of(folder);
        const std::uintmax_t freed =
            exists && there.st_nlink == 1 ? 512 * static_cast<std::uintmax_t>(there.st_blocks) : 0;
        const auto [before, first] = old.try_emplace(&one, freed);
        const auto bytes = static_cast<std::intmax_t>(detail::on_disk(one.bytes));
        if (d.used + bytes > d.most) d.most = d.used + bytes, d.at_most = &one;
        d.used += bytes - static_cast<std::intmax_t>(before->second);
        before->second = static_cast<std::uintmax_t>(bytes);
      }
    for (const auto& [device, d] : disks)
      if (d.most > 0 && static_cast<std::uintmax_t>(d.most) > d.room)
        throw std::runtime_error(d.at_most->file.option + " " + d.at_most->file.path.string() +
                                 " cannot be written: with what is written before it, it takes " +
                                 std::to_string(d.most) + " bytes, and the disk of " +
                                 std::filesystem::absolute(d.folder).string() + " has less space");
  }

  std::vector<input> inputs_;
  std::vector<output> outputs_;
  std::vector<named_file> folders_;
};

/// The table, the picture and the trace of a training of so many steps at least: a row, a point and ten calls a step.
template <class Options>
void writes_curves(inventory& all, const Options& o, std::uintmax_t steps) {
  all.writes(named_file{"--csv", o.csv}, 8 * steps);
  all.writes(named_file{"--svg", o.svg}, 8 * steps);
  all.writes(named_file{"--trace", o.trace}, 1024 * steps);
}

}  // namespace example
#endif
