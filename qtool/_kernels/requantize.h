/* From a raw product to the result: zero-point corrections modulo 2^32, then equation (4) in float32.
 *
 *     multiplier form   y = saturate(rint(f32(acc) * f32(f32(sa*sb) / sy)) + zy)      what runtimes compute; the default
 *     literal form      y = saturate(rint(f32(f32(f32(acc)*sa)*sb) / sy) + zy)        the sentence of the ONNX document
 *
 * Exact as long as each float operation rounds once: no -ffast-math, no fused multiply-add (-ffp-contract=off).
 * The bounds are clamped in float before rounding, which is the same as after it because they are integers, and keeps
 * the magic constant in range: (v + 1.5*2^23) - 1.5*2^23 rounds half to even for |v| <= 2^22, and vectorises on the
 * SSE2 baseline, where rintf does not. A NaN (an infinite scale times 0) becomes the smallest code.
 */
#ifndef QT_REQUANTIZE_H
#define QT_REQUANTIZE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { QT_FORM_MULTIPLIER, QT_FORM_LITERAL } qt_form;

typedef struct {
    qt_form form;
    float y_scale;
    float lo, hi; /* bounds of the type less the zero point */
    int32_t y_zero;
} qt_requantize;

/* The end of one tile of sums on its way from the first-level cache to the result. Column arrays are padded to a panel. */
typedef struct {
    const uint32_t *acc;      /* [rows][nr] */
    ptrdiff_t rows, cols;     /* what of the tile exists */
    const uint32_t *row_term; /* [rows] K*za - rowsum, to be multiplied by zb */
    const uint32_t *b_zero;   /* [cols] or NULL: all 0 */
    const uint32_t *col_term; /* [cols] -za*colsum */
    const float *multiplier;  /* [cols] or NULL: int32 out */
    float lo, hi;             /* as in qt_requantize */
    int32_t y_zero;
    char *out;
    ptrdiff_t ld; /* bytes from row to row of out */
} qt_tile_end;

/* v must be clamped to [-2^22, 2^22] and may be NaN only before the clamp. */
static inline int32_t qt_round_clamped(float v, float lo, float hi) {
    v = v > lo ? v : lo; /* in this order NaN becomes lo */
    v = v < hi ? v : hi;
    return (int32_t)((v + 12582912.0f) - 12582912.0f);
}

/* acc[n] in place: minus za*colsum, minus zb*rowsum, plus K*za*zb, plus bias. */
static void qt_correct_row(uint32_t *restrict acc, ptrdiff_t n, uint32_t k, uint32_t za, uint32_t rowsum,
                           const uint32_t *restrict zb, const uint32_t *restrict colsum,
                           const uint32_t *restrict bias) {
    const uint32_t row = k * za - rowsum;
    for (ptrdiff_t j = 0; j < n; ++j) acc[j] += zb[j] * row - za * colsum[j] + bias[j];
}

static void qt_multipliers(float sa, const float *restrict sb, float sy, ptrdiff_t n, float *restrict multiplier) {
    for (ptrdiff_t j = 0; j < n; ++j) multiplier[j] = (sa * sb[j]) / sy;
}

/* y[n] from acc[n]; sb is read by the literal form only, multiplier by the other only. */
static void qt_requantize_row(const qt_requantize *q, const uint32_t *restrict acc, ptrdiff_t n, float sa,
                              const float *restrict sb, const float *restrict multiplier, uint8_t *restrict y) {
    const float lo = q->lo, hi = q->hi, sy = q->y_scale;
    const int32_t zy = q->y_zero;
    if (q->form == QT_FORM_MULTIPLIER) {
        for (ptrdiff_t j = 0; j < n; ++j)
            y[j] = (uint8_t)(qt_round_clamped((float)(int32_t)acc[j] * multiplier[j], lo, hi) + zy);
    } else {
        for (ptrdiff_t j = 0; j < n; ++j)
            y[j] = (uint8_t)(qt_round_clamped((((float)(int32_t)acc[j] * sa) * sb[j]) / sy, lo, hi) + zy);
    }
}

#endif
