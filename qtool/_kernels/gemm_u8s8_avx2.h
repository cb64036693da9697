/* Micro-kernel 6x16c4__avx2: VPMOVSXBW and VPMADDWD, 32 operations per instruction.
 *
 * A is packed as int16 (zero-extended), B as int8; layout in gemm_pack_avx2.h. One step: 16 bytes of B (4 columns of one
 * quad) are widened to int16, a quad of one row of A is broadcast (8 bytes), VPMADDWD leaves two partial sums for each
 * column side by side, which VPHADDD joins once at the end. 6 rows x 8 columns are 12 accumulators; with two operands of
 * B, one of A and a temporary they fill the sixteen registers, so the 16 columns of a panel are two passes over K.
 *
 * Limit: a VPMADDWD and a VPADDD for 16 products, on three ports, are 48 operations per cycle; widening takes a twelfth.
 * VPMADDUBSW would take bytes, but saturates pairs (255*127*2 > 32767).
 *
 * Exact: a pair is at most 2*255*128, and the sums are modulo 2^32 as the contract wants them.
 */
#ifndef QT_GEMM_U8S8_AVX2_H
#define QT_GEMM_U8S8_AVX2_H

#include "gemm_pack_avx2.h"

#define QT_ROW(i)                                                                                                      \
    a_##i = _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)(a + 4 * (i))));                     \
    lo_##i = _mm256_add_epi32(lo_##i, _mm256_madd_epi16(a_##i, b_lo));                                                 \
    hi_##i = _mm256_add_epi32(hi_##i, _mm256_madd_epi16(a_##i, b_hi));                                                 \
    QT_KEEP(lo_##i, hi_##i)
#define QT_STORE(i)                                                                                                    \
    {                                                                                                                  \
        __m256i *to = (__m256i *)(c + (i) * ldc);                                                                      \
        const __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(lo_##i, hi_##i), 0xD8);                         \
        _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), sum));                                        \
    }

static QT_TARGET_AVX2 __attribute__((noinline)) void qt_gemm_pass_6x8c4__avx2(ptrdiff_t kc, const int16_t *a,
                                                                              const uint8_t *b, uint32_t *c,
                                                                              ptrdiff_t ldc) {
    __m256i lo_0 = _mm256_setzero_si256(), lo_1 = lo_0, lo_2 = lo_0, lo_3 = lo_0, lo_4 = lo_0, lo_5 = lo_0;
    __m256i hi_0 = lo_0, hi_1 = lo_0, hi_2 = lo_0, hi_3 = lo_0, hi_4 = lo_0, hi_5 = lo_0;
    __m256i a_0, a_1, a_2, a_3, a_4, a_5;
    for (const uint8_t *end = b + 16 * kc; b < end; b += 64, a += 24) {
        const __m256i b_lo = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));
        const __m256i b_hi = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));
        QT_ROW(0) QT_ROW(1) QT_ROW(2) QT_ROW(3) QT_ROW(4) QT_ROW(5)
    }
    QT_STORE(0) QT_STORE(1) QT_STORE(2) QT_STORE(3) QT_STORE(4) QT_STORE(5)
}
#undef QT_ROW
#undef QT_STORE

static QT_TARGET_AVX2 void qt_gemm_run_6x16c4__avx2(ptrdiff_t kc, const void *a, const void *b, uint32_t *c,
                                                    ptrdiff_t ldc) {
    qt_gemm_pass_6x8c4__avx2(kc, (const int16_t *)a, (const uint8_t *)b, c, ldc);
    qt_gemm_pass_6x8c4__avx2(kc, (const int16_t *)a, (const uint8_t *)b + 32, c + 8, ldc);
}

static const qt_gemm_u8s8 qt_gemm_u8s8_6x16c4__avx2 = {
    .name = "6x16c4__avx2",
    .isa = QT_ISA_AVX2,
    .mr = 6,
    .nr = 16,
    .kr = 4,
    .max_kc = 65536,
    .a_size = 2,
    .b_size = 1,
    .pack_a = qt_pack_a_6c4_16__avx2,
    .pack_b = qt_pack_b_16c4__avx2,
    .run = qt_gemm_run_6x16c4__avx2,
};

#endif
