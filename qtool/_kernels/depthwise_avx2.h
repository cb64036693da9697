/* Depthwise kernel 16c2__avx2: 16 bits, two taps per VPMADDWD ymm, 16 outputs (stride 2: 8) at a time.
 *
 * Lane i of a load at element 2i holds x[2i], x[2i+1]: two taps of output 2i with stride 1, of output i with stride 2. With
 * stride 1 a second load, one element on, gives the outputs 2i+1.
 *
 * Exact: |x - zx| and |w - zw| are at most 255, so VPMADDWD, which is exact but for (-32768)^2 twice, gives at most
 * 130 050 in size; sums wrap modulo 2^32. Not VPMADDUBSW on the bytes: it saturates pairs.
 */
#ifndef QT_DEPTHWISE_AVX2_H
#define QT_DEPTHWISE_AVX2_H

#include <immintrin.h>

#define QT_TARGET __attribute__((target("avx2")))

QT_TARGET static inline __m256i qt_dw_codes__avx2(const qt_depthwise_line *t, __m256i acc) {
    __m256 v = _mm256_cvtepi32_ps(acc);
    if (t->q->form == QT_FORM_MULTIPLIER) {
        v = _mm256_mul_ps(v, _mm256_set1_ps(t->multiplier));
    } else {
        v = _mm256_mul_ps(_mm256_mul_ps(v, _mm256_set1_ps(t->x_scale)), _mm256_set1_ps(t->w_scale));
        v = _mm256_div_ps(v, _mm256_set1_ps(t->q->y_scale));
    }
    v = _mm256_max_ps(v, _mm256_set1_ps(t->q->lo)); /* in this order NaN becomes lo */
    v = _mm256_min_ps(v, _mm256_set1_ps(t->q->hi));
    return _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(t->q->y_zero));
}

QT_TARGET static inline __attribute__((always_inline)) void
qt_dw_body__avx2(const qt_depthwise_line *t, const ptrdiff_t lines, const ptrdiff_t groups, const int s) {
    const __m256i init = _mm256_set1_epi32((int32_t)t->init), low = _mm256_set1_epi32(0xFF);
    for (ptrdiff_t f = 0; f < t->n; f += 16 / s) {
        const int16_t *x = (const int16_t *)t->copy + f * s;
        __m256i a0 = init, a1 = init;
        for (ptrdiff_t r = 0; r < lines; ++r) {
            const int16_t *p = x + t->line[r];
            for (ptrdiff_t k = 0; k < groups; ++k, p += 2) {
                const __m256i w = _mm256_set1_epi32((int32_t)t->weights[r * groups + k]);
                a0 = _mm256_add_epi32(a0, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)p), w));
                if (s == 1)
                    a1 = _mm256_add_epi32(a1, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)(p + 1)), w));
            }
        }
        if (t->q) { /* masked codes are 0..255, which both packs keep */
            __m256i c = _mm256_and_si256(qt_dw_codes__avx2(t, a0), low);
            if (s == 1) {
                const __m256i odd = _mm256_and_si256(qt_dw_codes__avx2(t, a1), low);
                c = _mm256_or_si256(c, _mm256_slli_epi32(odd, 16));
                c = _mm256_permute4x64_epi64(_mm256_packus_epi16(c, c), 0x08);
                _mm_storeu_si128((__m128i *)(t->codes + f), _mm256_castsi256_si128(c));
            } else {
                c = _mm256_packus_epi32(c, c);
                c = _mm256_permute4x64_epi64(_mm256_packus_epi16(c, c), 0x08);
                const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(c),
                                                        _mm_srli_si128(_mm256_castsi256_si128(c), 8));
                _mm_storel_epi64((__m128i *)(t->codes + f), both);
            }
        } else if (s == 1) {
            const __m256i lo = _mm256_unpacklo_epi32(a0, a1), hi = _mm256_unpackhi_epi32(a0, a1);
            _mm256_storeu_si256((__m256i *)(t->acc + f), _mm256_permute2x128_si256(lo, hi, 0x20));
            _mm256_storeu_si256((__m256i *)(t->acc + f + 8), _mm256_permute2x128_si256(lo, hi, 0x31));
        } else {
            _mm256_storeu_si256((__m256i *)(t->acc + f), a0);
        }
    }
}

QT_TARGET static void qt_depthwise_run__avx2(const qt_depthwise_line *t) {
    const ptrdiff_t groups = (t->taps + 1) / 2;
    if (t->lines == 3 && groups == 2 && t->stride == 1) qt_dw_body__avx2(t, 3, 2, 1);
    else if (t->lines == 3 && groups == 2) qt_dw_body__avx2(t, 3, 2, 2);
    else if (t->lines == 5 && groups == 3 && t->stride == 1) qt_dw_body__avx2(t, 5, 3, 1);
    else if (t->lines == 5 && groups == 3) qt_dw_body__avx2(t, 5, 3, 2);
    else if (t->stride == 1) qt_dw_body__avx2(t, t->lines, groups, 1);
    else qt_dw_body__avx2(t, t->lines, groups, 2);
}

#undef QT_TARGET

static const qt_depthwise qt_depthwise_16c2__avx2 = {
    .name = "16c2__avx2",
    .isa = QT_ISA_AVX2,
    .kr = 2,
    .max_stride = 2,
    .run = qt_depthwise_run__avx2,
};

#endif
