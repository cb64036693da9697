/* DynamicQuantizeLinear on one thread's share: the range, and y = saturate(rint(x / s) + z) with true division.
 *
 * NaN never enters the range (a comparison with NaN is false) and becomes code 0, the rule of QuantizeLinear.
 */
#ifndef QT_DYNAMIC_QUANTIZE_H
#define QT_DYNAMIC_QUANTIZE_H

#include "requantize.h"

/* Widens [*lo, *hi] by x[n]. Eight lanes: a reduction over one float may not be reordered by the compiler. */
static void qt_widen_range(const float *restrict x, ptrdiff_t n, float *lo, float *hi) {
    float l[8], h[8];
    for (int j = 0; j < 8; ++j) l[j] = *lo, h[j] = *hi;
    ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) {
            l[j] = x[i + j] < l[j] ? x[i + j] : l[j];
            h[j] = x[i + j] > h[j] ? x[i + j] : h[j];
        }
    for (; i < n; ++i) {
        l[0] = x[i] < l[0] ? x[i] : l[0];
        h[0] = x[i] > h[0] ? x[i] : h[0];
    }
    for (int j = 0; j < 8; ++j) {
        *lo = l[j] < *lo ? l[j] : *lo;
        *hi = h[j] > *hi ? h[j] : *hi;
    }
}

static void qt_quantize_u8(const float *restrict x, ptrdiff_t n, float scale, int32_t zero, uint8_t *restrict y) {
    const float lo = (float)-zero, hi = (float)(255 - zero);
    for (ptrdiff_t i = 0; i < n; ++i) y[i] = (uint8_t)(qt_round_clamped(x[i] / scale, lo, hi) + zero);
}

#endif
