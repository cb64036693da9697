/* Depthwise kernel c2__scalar: portable C over 16 bits, any stride and dilation.
 *
 * Products of int16 added to int32 are what compilers vectorise on the SSE2 baseline (PMULLW and PMULHW) without a flag.
 * Exact: |x - zx| and |w - zw| are at most 255, and the sum wraps modulo 2^32 as the accumulator does.
 */
#ifndef QT_DEPTHWISE_SCALAR_H
#define QT_DEPTHWISE_SCALAR_H

static void qt_depthwise_run_c2__scalar(const qt_depthwise_line *t) {
    enum { N = QT_DEPTHWISE_STEP };
    const ptrdiff_t groups = (t->taps + 1) / 2, s = t->stride;
    uint32_t part[N];
    float scale[N], multiplier[N];
    for (int i = 0; i < N; ++i) scale[i] = t->w_scale, multiplier[i] = t->multiplier;
    for (ptrdiff_t f = 0; f < t->n; f += N) {
        uint32_t *acc = t->q ? part : t->acc + f;
        for (int i = 0; i < N; ++i) acc[i] = t->init;
        for (ptrdiff_t r = 0; r < t->lines; ++r) {
            const uint32_t *w = t->weights + r * groups;
            const int16_t *x = (const int16_t *)t->copy + t->line[r] + f * s;
            for (ptrdiff_t k = 0; k < t->taps; ++k, x += t->dilation) {
                const int16_t weight = (int16_t)(w[k / 2] >> (16 * (k & 1)));
                if (s == 1)
                    for (int i = 0; i < N; ++i) acc[i] += (uint32_t)((int32_t)x[i] * weight);
                else if (s == 2)
                    for (int i = 0; i < N; ++i) acc[i] += (uint32_t)((int32_t)x[2 * i] * weight);
                else
                    for (int i = 0; i < N; ++i) acc[i] += (uint32_t)((int32_t)x[i * s] * weight);
            }
        }
        if (t->q) qt_requantize_row(t->q, acc, N, t->x_scale, scale, multiplier, t->codes + f);
    }
}

static const qt_depthwise qt_depthwise_c2__scalar = {
    .name = "c2__scalar",
    .isa = QT_ISA_SCALAR,
    .kr = 2,
    .max_stride = 1,
    .any = 1,
    .run = qt_depthwise_run_c2__scalar,
};

#endif
