/* The AVX-512 row of dequantize.h (F, BW, DQ, VL; no VNNI instruction).
 *
 * 16 codes a turn: vpmovsx/vpmovzx, vcvtdq2ps, vsubps, vmulps. The difference of two integers of up to 16 bits is exact
 * in float32, so that the product is the only rounding. Table types of four bits and fewer are one vpermps, which reads
 * the low four bits of an index as the spec does; the others are gathered from the table, which stays in L1.
 *
 * The result is four times as large as the codes: writing it is the cost, and a normal store first reads the line that
 * it overwrites. A long run goes to the next cache line of y by a masked store: a store that crosses lines costs 15 %.
 * With `stream` the rest passes the cache by vmovntps, and the run ends with sfence: another thread may read y as soon
 * as the task is done.
 */
#ifndef QT_DEQUANTIZE_AVX512VNNI_H
#define QT_DEQUANTIZE_AVX512VNNI_H

#include <immintrin.h>

#define QT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define QT_FN(name) name##__avx512vnni

#define QT_OWN_SINGLES
#include "dequantize_loops.h"
#undef QT_OWN_SINGLES

/* load(k, p): 16 codes under a mask; value(v): as floats. */
#define QT_SINGLES(name, type, load, value)                                                                            \
    QT_TARGET static void name##__avx512vnni(const type *x, const float *table, const float *s, const float *z,        \
                                             ptrdiff_t block, int stream, ptrdiff_t n, float *y) {                     \
        const __m512 low16 = _mm512_loadu_ps(table);                                                                   \
        (void)low16;                                                                                                   \
        if (block == 1) {                                                                                              \
            for (ptrdiff_t i = 0; i < n; i += 16) {                                                                    \
                const __mmask16 k = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;                 \
                const __m512 d = _mm512_sub_ps(value(load(k, x + i)), _mm512_maskz_loadu_ps(k, z + i));                \
                _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(d, _mm512_maskz_loadu_ps(k, s + i)));                    \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (; n > 0; x += block, y += block, n -= block, ++s, ++z) {                                                  \
            const ptrdiff_t m = n < block ? n : block;                                                                 \
            const __m512 s0 = _mm512_set1_ps(*s), z0 = _mm512_set1_ps(*z);                                             \
            ptrdiff_t i = 0, head = (ptrdiff_t)(((uintptr_t)0 - (uintptr_t)y) / 4 % 16);                               \
            if (head && m >= 64) {                                                                                     \
                const __mmask16 k = (__mmask16)((1u << head) - 1);                                                     \
                _mm512_mask_storeu_ps(y, k, _mm512_mul_ps(_mm512_sub_ps(value(load(k, x)), z0), s0));                  \
                i = head;                                                                                              \
            }                                                                                                          \
            if (stream && m >= 64) {                                                                                   \
                for (; i + 64 <= m; i += 64) {                                                                         \
                    _mm_prefetch((const char *)(x + i + 2048), _MM_HINT_T0);                                           \
                    for (int j = 0; j < 64; j += 16) {                                                                 \
                        const __m512 v = value(load((__mmask16)0xFFFF, x + i + j));                                    \
                        _mm512_stream_ps(y + i + j, _mm512_mul_ps(_mm512_sub_ps(v, z0), s0));                          \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            for (; i + 16 <= m; i += 16) {                                                                             \
                const __m512 v = value(load((__mmask16)0xFFFF, x + i));                                                \
                _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_sub_ps(v, z0), s0));                                      \
            }                                                                                                          \
            if (i < m) {                                                                                               \
                const __mmask16 k = (__mmask16)((1u << (m - i)) - 1);                                                  \
                _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(_mm512_sub_ps(value(load(k, x + i)), z0), s0));          \
            }                                                                                                          \
        }                                                                                                              \
        if (stream) _mm_sfence();                                                                                      \
    }
#define QT_VALUE_INT8(v) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v))
#define QT_VALUE_UINT8(v) _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v))
#define QT_VALUE_INT16(v) _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(v))
#define QT_VALUE_UINT16(v) _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(v))
#define QT_VALUE_TABLE(v) _mm512_i32gather_ps(_mm512_cvtepu8_epi32(v), table, 4)
#define QT_VALUE_TABLE4(v) _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(v), low16)
QT_SINGLES(qt_singles_int8, int8_t, _mm_maskz_loadu_epi8, QT_VALUE_INT8)
QT_SINGLES(qt_singles_uint8, uint8_t, _mm_maskz_loadu_epi8, QT_VALUE_UINT8)
QT_SINGLES(qt_singles_int16, int16_t, _mm256_maskz_loadu_epi16, QT_VALUE_INT16)
QT_SINGLES(qt_singles_uint16, uint16_t, _mm256_maskz_loadu_epi16, QT_VALUE_UINT16)
QT_SINGLES(qt_singles_int32, int32_t, _mm512_maskz_loadu_epi32, _mm512_cvtepi32_ps)
QT_SINGLES(qt_singles_table, uint8_t, _mm_maskz_loadu_epi8, QT_VALUE_TABLE)
QT_SINGLES(qt_singles_table4, uint8_t, _mm_maskz_loadu_epi8, QT_VALUE_TABLE4)
#undef QT_VALUE_TABLE4
#undef QT_VALUE_TABLE
#undef QT_VALUE_UINT16
#undef QT_VALUE_INT16
#undef QT_VALUE_UINT8
#undef QT_VALUE_INT8
#undef QT_SINGLES

QT_TARGET static void qt_singles__avx512vnni(const void *x, int source, const float *table, const float *s,
                                             const float *z, ptrdiff_t block, int stream, ptrdiff_t start, ptrdiff_t n,
                                             float *y) {
    switch (source) {
    case QT_INT8: qt_singles_int8__avx512vnni((const int8_t *)x + start, table, s, z, block, stream, n, y); break;
    case QT_UINT8: qt_singles_uint8__avx512vnni((const uint8_t *)x + start, table, s, z, block, stream, n, y); break;
    case QT_INT16: qt_singles_int16__avx512vnni((const int16_t *)x + start, table, s, z, block, stream, n, y); break;
    case QT_UINT16: qt_singles_uint16__avx512vnni((const uint16_t *)x + start, table, s, z, block, stream, n, y); break;
    case QT_INT32: qt_singles_int32__avx512vnni((const int32_t *)x + start, table, s, z, block, stream, n, y); break;
    case QT_TABLE4: qt_singles_table4__avx512vnni((const uint8_t *)x + start, table, s, z, block, stream, n, y); break;
    default: qt_singles_table__avx512vnni((const uint8_t *)x + start, table, s, z, block, stream, n, y);
    }
}

#undef QT_FN
#undef QT_TARGET

static const qt_dequantize qt_dequantize_avx512vnni = {
    "dequantize__avx512vnni", QT_ISA_AVX512VNNI, qt_singles__avx512vnni, qt_halves__avx512vnni,
    qt_unpack__avx512vnni,
};

#endif
