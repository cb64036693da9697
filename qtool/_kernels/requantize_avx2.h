/* The end of a tile, 16 columns: corrections modulo 2^32, then int32 out, or equation (4) and 8 bits out.
 *
 * The same operations as qt_correct_row and qt_requantize_row, in the same order, each rounded once: one product, clamp,
 * rounding half to even (by VCVTPS2DQ), zero point. max(v, lo) returns lo if v is a NaN, because VMAXPS returns its second
 * operand then. The packing saturates, but nothing is left to saturate after the clamp.
 */
#ifndef QT_REQUANTIZE_AVX2_H
#define QT_REQUANTIZE_AVX2_H

#include "gemm_pack_avx2.h"
#include "requantize.h"

QT_INLINE_AVX2 __m256i qt_load_lanes__avx2(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }

QT_INLINE_AVX2 __m256i qt_codes__avx2(__m256i v, __m256 multiplier, __m256 lo, __m256 hi, __m256i y_zero) {
    const __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(v), multiplier);
    return _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(f, lo), hi)), y_zero);
}

static QT_TARGET_AVX2 void qt_finish__avx2(const qt_tile_end *e) {
    const __m256i none = _mm256_setzero_si256(), index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i zero_0 = e->b_zero ? qt_load_lanes__avx2(e->b_zero) : none;
    const __m256i zero_1 = e->b_zero ? qt_load_lanes__avx2(e->b_zero + 8) : none;
    const __m256i term_0 = qt_load_lanes__avx2(e->col_term), term_1 = qt_load_lanes__avx2(e->col_term + 8);
    const __m256i y_zero = _mm256_set1_epi32(e->y_zero);
    const __m256 lo = _mm256_set1_ps(e->lo), hi = _mm256_set1_ps(e->hi);
    const __m256 mul_0 = e->multiplier ? _mm256_loadu_ps(e->multiplier) : _mm256_setzero_ps();
    const __m256 mul_1 = e->multiplier ? _mm256_loadu_ps(e->multiplier + 8) : _mm256_setzero_ps();
    const __m256i cols = _mm256_set1_epi32((int)(e->cols < 16 ? e->cols : 16));
    const __m256i mask_0 = _mm256_cmpgt_epi32(cols, index);
    const __m256i mask_1 = _mm256_cmpgt_epi32(cols, _mm256_add_epi32(index, _mm256_set1_epi32(8)));
    const int codes = e->multiplier != NULL, shifted = e->b_zero != NULL;
    char *out = e->out;
    for (ptrdiff_t i = 0; i < e->rows; ++i, out += e->ld) {
        __m256i v_0 = _mm256_add_epi32(qt_load_lanes__avx2(e->acc + 16 * i), term_0);
        __m256i v_1 = _mm256_add_epi32(qt_load_lanes__avx2(e->acc + 16 * i + 8), term_1);
        if (shifted) {
            const __m256i row = _mm256_set1_epi32((int32_t)e->row_term[i]);
            v_0 = _mm256_add_epi32(v_0, _mm256_mullo_epi32(row, zero_0));
            v_1 = _mm256_add_epi32(v_1, _mm256_mullo_epi32(row, zero_1));
        }
        if (codes) {
            v_0 = qt_codes__avx2(v_0, mul_0, lo, hi, y_zero);
            v_1 = qt_codes__avx2(v_1, mul_1, lo, hi, y_zero);
            __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v_0, v_1), 0xD8);
            words = _mm256_and_si256(words, _mm256_set1_epi16(0xFF));
            const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
            if (e->cols >= 16) _mm_storeu_si128((__m128i *)out, bytes);
            else {
                uint8_t row[16];
                _mm_storeu_si128((__m128i *)row, bytes);
                memcpy(out, row, (size_t)e->cols);
            }
        } else if (e->cols >= 16) {
            _mm256_storeu_si256((__m256i *)out, v_0);
            _mm256_storeu_si256((__m256i *)(out + 32), v_1);
        } else {
            _mm256_maskstore_epi32((int *)(void *)out, mask_0, v_0);
            _mm256_maskstore_epi32((int *)(void *)(out + 32), mask_1, v_1);
        }
    }
}

#endif
