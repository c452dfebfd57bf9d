#pragma once
/// \file simt.hpp
/// A simulated device: it runs the device branches of OneBit on the host, as strictly as a GPU may take them and with
/// checks that a GPU lacks. A test tool and no backend: it is slow by design, and its times mean nothing.

#include "simt/kernels.hpp"
