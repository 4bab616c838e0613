// Files that a program writes: looked at before the run, and replaced as a whole after it.
#ifndef EXAMPLE_SUPPORT_OUTPUT_FILE_HPP
#define EXAMPLE_SUPPORT_OUTPUT_FILE_HPP

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace example {

/// A file of the command line under the option that names it. An empty path is a file that was not asked for.
struct named_file {
  std::string option;
  std::filesystem::path path;
};

namespace detail {

[[noreturn]] inline void fail(int code) { throw std::system_error(code, std::generic_category()); }

/// What a chain of symbolic links leads to, whether it is there or not.
inline std::filesystem::path behind_links(std::filesystem::path path) {
  std::error_code code;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, code); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, code);  // an absolute one stands for itself
  return path;
}

inline std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// Of ASCII's letters.
inline char upper_case(char c) { return 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

/// Bytes that may still be written to the disk of a folder.
inline std::uintmax_t room_of(const std::filesystem::path& folder) {
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::numeric_limits<std::uintmax_t>::max();
  return static_cast<std::uintmax_t>(::geteuid() == 0 ? disk.f_bfree : disk.f_bavail) * disk.f_frsize;
}

/// An open file; throws if it cannot be opened.
struct descriptor {
  int fd;

  descriptor(const std::filesystem::path& path, int flags) : fd(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd < 0) fail(errno);
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() { ::close(fd); }
};

/// A new file of a name that no other run has, in the folder of `target`. Removed again unless it becomes the target.
class partial_file {
 public:
  explicit partial_file(const std::filesystem::path& target) : target_(target) {
    std::random_device random;
    for (int tries = 0; fd_ < 0; ++tries) {
      char name[64];
      std::snprintf(name, sizeof name, ".tigon-%ld-%08x.partial", static_cast<long>(::getpid()), random());
      path_ = folder_of(target) / name;
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && (errno != EEXIST || tries == 100)) fail(errno);
    }
  }
  partial_file(const partial_file&) = delete;
  partial_file& operator=(const partial_file&) = delete;
  ~partial_file() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
  }

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }

  /// The bytes are on the disk before they have the name, and the name is there before this returns.
  void become_target() {
    const bool kept = ::fsync(fd_) == 0 || errno == EINVAL;  // EINVAL: this file system has no such thing
    const int failed = errno;
    if (::close(std::exchange(fd_, -1)) != 0 || !kept) fail(kept ? errno : failed);
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail(errno);
    renamed_ = true;
    const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;  // a folder that may be written and not read
    const bool named = ::fsync(folder) == 0 || errno == EINVAL;
    const int code = errno;
    ::close(folder);
    if (!named) fail(code);
  }

 private:
  std::filesystem::path target_, path_;
  int fd_ = -1;
  bool renamed_ = false;
};

inline void write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t done = ::write(fd, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail(done < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

}  // namespace detail

/// Where a file is: all names of it, such as ./a and a, or links of both kinds, have one place. A file that is not
/// there yet has the innermost folder that is there, and the names below it.
struct file_place {
  ::dev_t device;
  ::ino_t inode;
  std::filesystem::path folder, below;
};

/// None for a device, which is nobody's file, and for what cannot be looked up.
inline std::optional<file_place> place_of(const std::filesystem::path& path) {
  struct stat there;
  if (::stat(path.c_str(), &there) == 0) {
    if (!S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) return {};
    return file_place{there.st_dev, there.st_ino, {}, {}};
  }
  std::error_code code;
  const auto whole = std::filesystem::absolute(detail::behind_links(path), code);
  auto folder = std::filesystem::weakly_canonical(whole.parent_path(), code);
  auto below = whole.filename();
  for (; ::stat(folder.c_str(), &there) != 0; folder = folder.parent_path()) {
    if (!folder.has_relative_path()) return {};
    below = folder.filename() / below;
  }
  return file_place{there.st_dev, there.st_ino, folder, below};
}

/// Whether the file system takes names that differ in upper and lower case for one.
inline bool ignores_case(const std::filesystem::path& folder) try {
  const detail::partial_file probe(folder / "probe");
  std::string name = probe.path().filename().string();
  std::ranges::transform(name, name.begin(), detail::upper_case);
  return std::filesystem::exists(folder / name);
} catch (const std::system_error&) {  // nothing can be written there
  return false;
}

/// Whether both are one file.
inline bool same_place(const std::optional<file_place>& a, const std::optional<file_place>& b) {
  if (!a || !b || a->device != b->device || a->inode != b->inode) return false;
  if (a->below == b->below) return true;
  return std::ranges::equal(a->below.native(), b->below.native(), {}, detail::upper_case, detail::upper_case) &&
         ignores_case(a->folder);
}

/// Whether both are one file, whatever their names.
inline bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  return same_place(place_of(a), place_of(b));
}

/// Of a path of folders those that are not there, the innermost first.
inline std::vector<std::filesystem::path> folders_to_make(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> out;
  std::error_code code;
  auto folder = (std::filesystem::absolute(path, code) / "").lexically_normal().parent_path();
  for (; folder.has_relative_path() && !std::filesystem::exists(folder, code); folder = folder.parent_path())
    out.push_back(folder);
  return out;
}

/// Refuses files of which two are one.
inline void keep_apart(const std::vector<named_file>& files) {
  for (std::size_t j = 0; j < files.size(); ++j)
    for (std::size_t i = 0; i < j; ++i)
      if (!files[i].path.empty() && !files[j].path.empty() && same_file(files[i].path, files[j].path))
        throw std::runtime_error(files[i].option + " and " + files[j].option + " name one file, " +
                                 files[j].path.string());
}

/// Refuses a file that replace_file() could not write now, with at least so many bytes. What is there stays as it is,
/// and nothing is left behind.
inline void check_writable(const named_file& file, std::uintmax_t bytes = 4096) try {
  const std::filesystem::path& path = file.path;
  if (path.empty()) return;
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(file.option + " " + path.string() + " cannot be written: " + why);
  };
  struct stat there;
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) detail::fail(errno);
  if (!path.has_filename() || (exists && S_ISDIR(there.st_mode))) refuse("it is a folder");
  // Files that only this user may not change stay so, although a folder's owner could replace them.
  if (exists && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) detail::fail(errno);
  if (exists && !S_ISREG(there.st_mode)) {  // /dev/full refuses even to write nothing
    if (S_ISCHR(there.st_mode) && ::write(detail::descriptor(path, O_WRONLY | O_NONBLOCK | O_NOCTTY).fd, "", 0) != 0)
      detail::fail(errno);
    return;
  }

  const auto target = detail::behind_links(path);
  const auto folder = detail::folder_of(target);
  struct stat place;
  if (::stat(folder.c_str(), &place) != 0 || !S_ISDIR(place.st_mode))
    refuse("the folder " + std::filesystem::absolute(folder).string() + " does not exist");
  const bool others = exists && there.st_uid != ::geteuid() && place.st_uid != ::geteuid() && ::geteuid() != 0;
  if (others && (place.st_mode & S_ISVTX) != 0) detail::fail(EPERM);
  struct rlimit most;
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && most.rlim_cur < bytes)
    detail::fail(EFBIG);
  if (detail::room_of(folder) < bytes)
    refuse("it takes " + std::to_string(bytes) + " bytes, and the disk of " +
           std::filesystem::absolute(folder).string() + " has less space");
  const detail::partial_file probe(target);
  detail::write_all(probe.fd(), std::as_bytes(std::span("", 1)));
} catch (const std::system_error& error) {
  throw std::runtime_error(file.option + " " + file.path.string() + " cannot be written: " + error.code().message());
}

/// The file holds these parts, one after the other, or what it held before: they are written to a file beside it, which
/// then gets its name. Several programs that write one file at once leave the bytes of one of them. A device or a pipe
/// is written to as it is.
inline void replace_file(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts) try {
  struct stat there;
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode)) detail::fail(EISDIR);
  if (exists && !S_ISREG(there.st_mode)) {
    const detail::descriptor device(path, O_WRONLY | O_NOCTTY);
    for (const auto part : parts) detail::write_all(device.fd, part);
    return;
  }
  detail::partial_file partial(detail::behind_links(path));
  for (const auto part : parts) detail::write_all(partial.fd(), part);
  if (exists) (void)::fchmod(partial.fd(), there.st_mode & 0777);
  partial.become_target();
} catch (const std::system_error& error) {
  throw std::runtime_error(path.string() + " cannot be written: " + error.code().message());
}

inline void replace_file(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  replace_file(path, std::span(&part, 1));
}

/// Makes a folder and those that it lies in, where they are not there. made(path) is called after each.
template <class Made>
void make_folders(const std::filesystem::path& path, const Made& made) {
  const auto missing = folders_to_make(path);
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) == 0)
      made(*folder);
    else if (errno != EEXIST)
      detail::fail(errno);
  }
  std::error_code code;
  if (!std::filesystem::is_directory(path, code)) detail::fail(code ? code.value() : ENOTDIR);
}

/// A write beyond the largest size that files may have fails, as one to a full disk does, and does not end the program.
inline void fail_at_limits() { (void)std::signal(SIGXFSZ, SIG_IGN); }

/// A number of a CSV table; nothing for NaN.
inline std::string csv_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return std::isnan(v) ? std::string() : std::string(text);
}

}  // namespace example
#endif
