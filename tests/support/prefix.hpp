// Precompiled for the tests of operators: what most of them include, and nothing that one of them must do without.
#ifndef TIGON_TESTS_SUPPORT_PREFIX_HPP
#define TIGON_TESTS_SUPPORT_PREFIX_HPP

#include <gtest/gtest.h>

#include <tigon/backend/operator.hpp>
#include <tigon/gemm/gemm.hpp>
#include <tigon/rows/row.hpp>

#include "backends.hpp"
#include "errors.hpp"
#include "guarded.hpp"
#include "problem.hpp"
#include "threads.hpp"

#endif  // TIGON_TESTS_SUPPORT_PREFIX_HPP
