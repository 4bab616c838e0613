// How a program of one process ends.
#ifndef EXAMPLE_TRAIN_LLAMA_EXIT_CODE_HPP
#define EXAMPLE_TRAIN_LLAMA_EXIT_CODE_HPP

#include <tigon/core/error.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "../../support/output_file.hpp"

namespace example {

/// What run() returns. What it throws is a sentence on stderr instead, and 2 where the user can change something
/// (memory, text, tokenizer, checkpoint, files), otherwise 1.
template <class Run>
int exit_code_of(const char* program, Run run) {
  const auto refused = [program](const char* sentence, int code) {
    std::fprintf(stderr, "%s: %s\n", program, sentence);
    return code;
  };
  fail_at_limits();
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return refused("models of these sizes do not fit into memory", 2);
  } catch (const tigon::error& error) {  // scratch memory
    const bool memory = error.code() == tigon::error_code::workspace;
    return memory ? refused("models of these sizes do not fit into memory", 2) : refused(error.what(), 1);
  } catch (const std::runtime_error& error) {  // text, tokenizer, checkpoint, files
    return refused(error.what(), 2);
  } catch (const std::exception& error) {
    return refused(error.what(), 1);
  }
}

}  // namespace example
#endif
