/* The end of a tile, 32 columns: corrections modulo 2^32, then int32 out, or equation (4) and 8 bits out.
 *
 * The same operations as qt_correct_row and qt_requantize_row, in the same order, each rounded once: one product, clamp,
 * rounding half to even (by the conversion, with its mode in the instruction), zero point. max(v, lo) returns lo if v is
 * a NaN, because VMAXPS returns its second operand then.
 *
 * The state of the columns is loaded once per tile and stays in registers, so that a row can be finished anywhere in the
 * loop over K of the next tile.
 */
#ifndef QT_REQUANTIZE_AVX512VNNI_H
#define QT_REQUANTIZE_AVX512VNNI_H

#include "gemm_pack_c4.h"
#include "requantize.h"

typedef struct {
    __m512i b_zero[2], col_term[2], y_zero;
    __m512 multiplier[2], lo, hi;
    __mmask32 columns;
} qt_end_state__avx512vnni;

QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_load__avx512vnni(
    const qt_tile_end *e, qt_end_state__avx512vnni *s) {
    for (int h = 0; h < 2; ++h) {
        s->b_zero[h] = e->b_zero ? _mm512_loadu_si512(e->b_zero + 16 * h) : _mm512_setzero_si512();
        s->col_term[h] = _mm512_loadu_si512(e->col_term + 16 * h);
        s->multiplier[h] = e->multiplier ? _mm512_loadu_ps(e->multiplier + 16 * h) : _mm512_setzero_ps();
    }
    s->lo = _mm512_set1_ps(e->lo), s->hi = _mm512_set1_ps(e->hi), s->y_zero = _mm512_set1_epi32(e->y_zero);
    s->columns = e->cols >= 32 ? 0xFFFFFFFFu : (1u << e->cols) - 1;
}

QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_end_row__avx512vnni(
    const qt_tile_end *e, const qt_end_state__avx512vnni *s, ptrdiff_t i) {
    __m512i v[2];
    for (int h = 0; h < 2; ++h) v[h] = _mm512_add_epi32(_mm512_loadu_si512(e->acc + i * 32 + 16 * h), s->col_term[h]);
    if (e->b_zero) {
        const __m512i row = _mm512_set1_epi32((int32_t)e->row_term[i]);
        for (int h = 0; h < 2; ++h) v[h] = _mm512_add_epi32(v[h], _mm512_mullo_epi32(row, s->b_zero[h]));
    }
    char *out = e->out + i * e->ld;
    if (e->multiplier) {
        __m128i code[2];
        for (int h = 0; h < 2; ++h) {
            __m512 f = _mm512_mul_ps(_mm512_cvt_roundepi32_ps(v[h], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                                     s->multiplier[h]);
            f = _mm512_min_ps(_mm512_max_ps(f, s->lo), s->hi);
            const __m512i q = _mm512_cvt_roundps_epi32(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            code[h] = _mm512_cvtepi32_epi8(_mm512_add_epi32(q, s->y_zero));
        }
        _mm256_mask_storeu_epi8(out, s->columns, _mm256_inserti128_si256(_mm256_castsi128_si256(code[0]), code[1], 1));
    } else {
        _mm512_mask_storeu_epi32(out, (__mmask16)s->columns, v[0]);
        _mm512_mask_storeu_epi32(out + 64, (__mmask16)(s->columns >> 16), v[1]);
    }
}

QT_TARGET_AVX512VNNI static void qt_finish__avx512vnni(const qt_tile_end *e) {
    qt_end_state__avx512vnni s;
    qt_end_load__avx512vnni(e, &s);
    for (ptrdiff_t i = 0; i < e->rows; ++i) qt_end_row__avx512vnni(e, &s, i);
}

#endif
