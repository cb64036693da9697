/* The portable row of quantize.h: quantize_loops.h as the compiler vectorises it for the baseline (SSE2 on x86-64). */
#ifndef QT_QUANTIZE_SCALAR_H
#define QT_QUANTIZE_SCALAR_H

#define QT_TARGET
#define QT_FN(name) name##__scalar
#include "quantize_loops.h"
#undef QT_FN
#undef QT_TARGET

static const qt_quantize qt_quantize_scalar = {
    "quantize__scalar", QT_ISA_SCALAR, qt_load__scalar, qt_codes8__scalar, qt_codes16__scalar, qt_floats__scalar,
    qt_range__scalar, qt_pack__scalar,
};

#endif
