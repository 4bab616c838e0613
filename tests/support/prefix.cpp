// The one source of the precompiled header.
#include "prefix.hpp"
