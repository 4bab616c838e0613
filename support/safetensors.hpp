#ifndef EXAMPLE_SUPPORT_SAFETENSORS_HPP
#define EXAMPLE_SUPPORT_SAFETENSORS_HPP

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "output_file.hpp"

namespace example {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian values");

/// Element types of a safetensors file. Booleans are one byte each.
enum class dtype { f64, f32, bf16, f16, i64, i32, u8, boolean };

struct dtype_info {
  dtype type;
  std::string_view name;  ///< as the header spells it
  std::size_t size;       ///< bytes of one element
};

inline constexpr std::array<dtype_info, 8> dtype_table{{{dtype::f64, "F64", 8},
                                                        {dtype::f32, "F32", 4},
                                                        {dtype::bf16, "BF16", 2},
                                                        {dtype::f16, "F16", 2},
                                                        {dtype::i64, "I64", 8},
                                                        {dtype::i32, "I32", 4},
                                                        {dtype::u8, "U8", 1},
                                                        {dtype::boolean, "BOOL", 1}}};

constexpr const dtype_info& info(dtype type) { return dtype_table[static_cast<std::size_t>(type)]; }

/// A tensor whose bytes somebody else owns: row-major, contiguous.
struct tensor_view {
  dtype type = dtype::f32;
  std::vector<std::size_t> shape;
  std::span<const std::byte> bytes;

  std::size_t numel() const { return bytes.size() / info(type).size; }

  /// A typed copy. Copying also answers files whose tensors are not aligned to their elements.
  template <class T>
  std::vector<T> values() const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (sizeof(T) != info(type).size)
      throw std::runtime_error("a tensor of " + std::string(info(type).name) + " was read as elements of " +
                               std::to_string(sizeof(T)) + " bytes");
    std::vector<T> out(numel());
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

template <class T>
tensor_view view_of(dtype type, std::vector<std::size_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), std::as_bytes(std::span(values))};
}

/// A foreign name as JSON writes it: a sentence that it is part of stays one line.
inline std::string printable(const std::string& text) {
  using json = nlohmann::json;
  const std::string quoted = json(text).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

/// A file, read or mapped as a whole. Every error is one sentence that names the file.
class safetensors_file {
 public:
  /// The format's own limit; a larger claim is a damaged or foreign file.
  static constexpr std::uint64_t max_header_bytes = 100'000'000;

  static safetensors_file load(const std::filesystem::path& path) {
    safetensors_file file;
    const std::string header = file.read_header(path);
    // The data get a buffer of their own, so that they start aligned whatever the header's length.
    std::shared_ptr<std::byte[]> data;
    try {
      data = std::make_shared_for_overwrite<std::byte[]>(file.data_bytes_);
    } catch (const std::bad_alloc&) {
      file.fail("holds " + std::to_string(file.data_bytes_) + " bytes of data, more than fit into memory");
    }
    file.in_.read(reinterpret_cast<char*>(data.get()), static_cast<std::streamsize>(file.data_bytes_));
    if (!file.in_) file.fail("could not be read to its end");
    file.data_ = {data, data.get()};
    file.in_.close();
    file.parse(header);
    return file;
  }

  /// The same, with tensors that are the file's own pages: the system reads what is used and may drop it again. Nobody
  /// may shorten the file meanwhile. Tensors are aligned to their elements where the header's length is.
  static safetensors_file map(const std::filesystem::path& path) {
    safetensors_file file;
    const std::string header = file.read_header(path);
    file.in_.close();
    const std::size_t begin = sizeof(std::uint64_t) + header.size(), bytes = begin + file.data_bytes_;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) file.fail("cannot be opened");
    struct stat there;
    const bool same = ::fstat(fd, &there) == 0 && static_cast<std::uint64_t>(there.st_size) == bytes;
    void* const pages = same ? ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    ::close(fd);
    if (!same) file.fail("changes while it is read");
    if (pages == MAP_FAILED) file.fail("cannot be mapped into memory");
    const std::shared_ptr<const std::byte> all(static_cast<const std::byte*>(pages), [bytes](const std::byte* p) {
      ::munmap(const_cast<std::byte*>(p), bytes);
    });
    file.data_ = {all, all.get() + begin}, file.mapped_ = true;
    file.parse(header);
    return file;
  }
  /// Whole pages of a mapped tensor leave the memory of the process, as it has been read. They come back when it is
  /// read again.
  void release(const tensor_view& tensor) const {
    if (!mapped_) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) + page - 1) / page * page,
               end = (reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) + tensor.bytes.size()) / page * page;
    if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, tensor_view>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }

  const tensor_view& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail("holds no tensor " + quoted(name));
    return found->second;
  }

  /// A metadata text that has to be there.
  const std::string& meta(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) fail("holds no metadata entry " + quoted(key));
    return found->second;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("safetensors file " + path_.string() + " " + what);
  }

 private:
  using json = nlohmann::json;

  static std::string quoted(const std::string& name) { return '"' + printable(name) + '"'; }

  /// Opens the file, and knows its length and its header then.
  std::string read_header(const std::filesystem::path& path) {
    path_ = path;
    std::error_code code;
    // Opening a pipe would wait for somebody to write.
    if (!std::filesystem::is_regular_file(path, code)) fail("cannot be opened");
    in_.open(path, std::ios::binary);
    // Of the open file: another one may get its name meanwhile.
    const auto file_bytes = static_cast<std::uint64_t>(in_.seekg(0, std::ios::end).tellg());
    if (!in_.seekg(0)) fail("cannot be opened");

    std::uint64_t header_bytes = 0;
    if (file_bytes < sizeof header_bytes) fail("is too short for a header length");
    in_.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    if (header_bytes > max_header_bytes)
      fail("claims a header of " + std::to_string(header_bytes) + " bytes, more than the format allows");
    if (header_bytes > file_bytes - sizeof header_bytes)
      fail("claims a header of " + std::to_string(header_bytes) + " bytes, but is only " + std::to_string(file_bytes) +
           " bytes long");
    std::string header(header_bytes, '\0');
    in_.read(header.data(), static_cast<std::streamsize>(header.size()));
    if (!in_) fail("could not be read to its end");
    data_bytes_ = file_bytes - sizeof header_bytes - header_bytes;
    return header;
  }

  void parse(const std::string& header) {
    // The JSON reader skips a mark of byte order and ends at a zero; the format has neither.
    const bool plain = header.starts_with('{') && header.find('\0') == std::string::npos;
    // Of two entries of one name JSON keeps the last: either could be the one that was meant.
    std::vector<std::set<std::string>> names;
    const auto check = [&](int depth, json::parse_event_t event, const json& parsed) {
      using kind = json::parse_event_t;
      if ((event == kind::object_start || event == kind::array_start) && depth > 2) fail("nests its header too deeply");
      if (event == kind::object_start) names.emplace_back();
      if (event == kind::object_end) names.pop_back();
      if (event == kind::key && !names.back().insert(parsed.get<std::string>()).second)
        fail("has two entries " + quoted(parsed.get<std::string>()) + " in its header");
      return true;
    };
    const json root = plain ? json::parse(header, check, /*allow_exceptions=*/false) : json();
    if (!root.is_object()) fail("has a header that is not a JSON object");
    for (const auto& [name, entry] : root.items()) {
      if (name == "__metadata__")
        parse_metadata(entry);
      else
        tensors_.emplace(name, parse_tensor(name, entry));
    }
    check_layout();
  }

  void parse_metadata(const json& entry) {
    if (!entry.is_object()) fail("has a __metadata__ that is not a JSON object");
    for (const auto& [key, text] : entry.items()) {
      if (!text.is_string()) fail("has a __metadata__ entry " + quoted(key) + " that is not a string");
      metadata_.emplace(key, text.get<std::string>());
    }
  }

  tensor_view parse_tensor(const std::string& name, const json& entry) const {
    const auto type = entry.is_object() ? entry.find("dtype") : entry.end();
    if (!entry.is_object() || type == entry.end() || !type->is_string())
      fail("has an entry " + quoted(name) + " without a dtype");
    const auto known =
        std::ranges::find(dtype_table, std::string_view(type->get_ref<const std::string&>()), &dtype_info::name);
    if (known == dtype_table.end())
      fail("gives tensor " + quoted(name) + " the unknown dtype " + printable(type->get<std::string>()));

    tensor_view tensor{known->type, extents(name, entry, "shape"), {}};
    const std::vector<std::size_t> offsets = extents(name, entry, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      fail("gives tensor " + quoted(name) + " data_offsets that are not a begin and an end");
    if (offsets[1] > data_bytes_)
      fail("ends before tensor " + quoted(name) + ": its data end at byte " + std::to_string(offsets[1]) + " of " +
           std::to_string(data_bytes_));

    std::size_t bytes = known->size;
    for (const std::size_t extent : tensor.shape) {
      if (extent != 0 && bytes > std::numeric_limits<std::size_t>::max() / extent)
        fail("gives tensor " + quoted(name) + " a shape whose size overflows");
      bytes *= extent;
    }
    if (bytes != offsets[1] - offsets[0])
      fail("gives tensor " + quoted(name) + " " + std::to_string(offsets[1] - offsets[0]) +
           " bytes where its shape and dtype need " + std::to_string(bytes));
    tensor.bytes = {data_.get() + offsets[0], bytes};
    return tensor;
  }

  std::vector<std::size_t> extents(const std::string& name, const json& entry, const char* key) const {
    const auto list = entry.find(key);
    if (list == entry.end() || !list->is_array()) fail("has an entry " + quoted(name) + " without a list " + key);
    std::vector<std::size_t> out;
    for (const json& value : *list) {
      if (!value.is_number_unsigned())
        fail("gives tensor " + quoted(name) + " a " + key + " that is not made of whole numbers from 0");
      out.push_back(value.get<std::size_t>());
    }
    return out;
  }

  /// The tensors must tile the data: no overlap, no hole, nothing behind the last one.
  void check_layout() const {
    std::vector<std::pair<std::span<const std::byte>, const std::string*>> order;
    for (const auto& [name, tensor] : tensors_) order.emplace_back(tensor.bytes, &name);
    std::ranges::sort(order, [](const auto& a, const auto& b) {
      return std::pair(a.first.data(), a.first.size()) < std::pair(b.first.data(), b.first.size());
    });
    const std::byte* end = data_.get();
    for (const auto& [bytes, name] : order) {
      if (bytes.data() < end) fail("has a tensor " + quoted(*name) + " that overlaps another one");
      if (bytes.data() > end) fail("has a gap in its data before tensor " + quoted(*name));
      end = bytes.data() + bytes.size();
    }
    if (end != data_.get() + data_bytes_) fail("has data behind its last tensor");
  }

  std::filesystem::path path_;
  std::ifstream in_;
  std::shared_ptr<const std::byte> data_;
  bool mapped_ = false;
  std::size_t data_bytes_ = 0;
  std::map<std::string, tensor_view> tensors_;
  std::map<std::string, std::string> metadata_;
};

namespace detail {

/// What the shape asks for.
inline std::size_t bytes_of(const tensor_view& tensor) {
  std::size_t bytes = info(tensor.type).size;
  for (const std::size_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

using named_tensor = std::pair<const std::string, tensor_view>;

/// Wide types first, in the order of names: each tensor is then aligned to its own element.
inline std::vector<const named_tensor*> file_order(const std::map<std::string, tensor_view>& tensors) {
  std::vector<const named_tensor*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::ranges::sort(order, [](const auto* a, const auto* b) {
    const std::size_t of_a = info(a->second.type).size, of_b = info(b->second.type).size;
    return of_a != of_b ? of_a > of_b : a->first < b->first;
  });
  return order;
}

inline std::string header_of(const std::vector<const named_tensor*>& order,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    const std::size_t end = offset + bytes_of(tensor);
    header[name] = {{"dtype", info(tensor.type).name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.is_null() ? "{}" : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace detail

/// Bytes of the file that save_safetensors() makes of tensors of these types and shapes. It does not read the tensors.
inline std::uintmax_t safetensors_bytes(const std::map<std::string, tensor_view>& tensors,
                                        const std::map<std::string, std::string>& metadata = {}) {
  std::uintmax_t bytes = sizeof(std::uint64_t) + detail::header_of(detail::file_order(tensors), metadata).size();
  for (const auto& [name, tensor] : tensors) bytes += detail::bytes_of(tensor);
  return bytes;
}

/// An interrupted run leaves the previous file whole.
inline void save_safetensors(const std::filesystem::path& path, const std::map<std::string, tensor_view>& tensors,
                             const std::map<std::string, std::string>& metadata = {}) {
  const auto order = detail::file_order(tensors);
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    if (name == "__metadata__") throw std::runtime_error("a tensor cannot be saved as __metadata__");
    if (const std::size_t bytes = detail::bytes_of(tensor); bytes != tensor.bytes.size())
      throw std::runtime_error("tensor \"" + name + "\" cannot be saved: its shape needs " + std::to_string(bytes) +
                               " bytes and " + std::to_string(tensor.bytes.size()) + " were given");
  }
  const std::string text = detail::header_of(order, metadata);
  const std::uint64_t header_bytes = text.size();
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(&header_bytes, 1)),
                                                std::as_bytes(std::span(text))};
  for (const auto* entry : order) parts.push_back(entry->second.bytes);
  replace_file(path, parts);
}

}  // namespace example
#endif
