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

#include "requantize_avx2.h"

#define QT_START(i) __m256i lo_##i = _mm256_setzero_si256(), hi_##i = _mm256_setzero_si256();
#define QT_STEP(i)                                                                                                     \
    {                                                                                                                  \
        const __m256i quad = _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)(a + 4 * (i))));    \
        lo_##i = _mm256_add_epi32(lo_##i, _mm256_madd_epi16(quad, b_lo));                                              \
        hi_##i = _mm256_add_epi32(hi_##i, _mm256_madd_epi16(quad, b_hi));                                              \
        QT_KEEP(lo_##i, hi_##i)                                                                                        \
    }
#define QT_STORE(i)                                                                                                    \
    {                                                                                                                  \
        __m256i *to = (__m256i *)(c + (i) * ldc);                                                                      \
        const __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(lo_##i, hi_##i), 0xD8);                         \
        _mm256_storeu_si256(to, first ? sum : _mm256_add_epi32(_mm256_loadu_si256(to), sum));                          \
    }

/* The first ROWS rows of a panel of A with 8 columns of B: c[ROWS][8] = (first ? 0 : c) + A * B. */
#define QT_DEFINE_PASS(ROWS)                                                                                           \
    static QT_TARGET_AVX2 __attribute__((noinline)) void qt_gemm_pass_##ROWS##x8c4__avx2(                              \
        ptrdiff_t kc, const int16_t *a, const uint8_t *b, int first, uint32_t *c, ptrdiff_t ldc) {                     \
        QT_ROWS_OF_##ROWS(QT_START)                                                                                    \
        for (const uint8_t *end = b + 16 * kc; b < end; b += 64, a += 24) {                                            \
            const __m256i b_lo = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));                            \
            const __m256i b_hi = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));                     \
            QT_ROWS_OF_##ROWS(QT_STEP)                                                                                 \
        }                                                                                                              \
        QT_ROWS_OF_##ROWS(QT_STORE)                                                                                    \
    }
QT_DEFINE_PASS(1)
QT_DEFINE_PASS(2)
QT_DEFINE_PASS(6)
#undef QT_DEFINE_PASS
#undef QT_START
#undef QT_STEP
#undef QT_STORE

static void qt_gemm_run_6x16c4__avx2(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    qt_gemm_pass_6x8c4__avx2(kc, (const int16_t *)a, (const uint8_t *)b, 0, c, ldc);
    qt_gemm_pass_6x8c4__avx2(kc, (const int16_t *)a, (const uint8_t *)b + 32, 0, c + 8, ldc);
}

static void qt_gemm_tile_6x16c4__avx2(const qt_tile *t) {
    const int16_t *a = (const int16_t *)t->a;
    for (int half = 0; half < 2; ++half) {
        const uint8_t *b = (const uint8_t *)t->b + 32 * half;
        uint32_t *acc = t->acc + 8 * half;
        if (t->rows > 2) qt_gemm_pass_6x8c4__avx2(t->kc, a, b, t->first, acc, 16);
        else if (t->rows > 1) qt_gemm_pass_2x8c4__avx2(t->kc, a, b, t->first, acc, 16);
        else qt_gemm_pass_1x8c4__avx2(t->kc, a, b, t->first, acc, 16);
    }
    if (t->earlier) qt_finish__avx2(t->earlier);
}

static const qt_gemm_u8s8 qt_gemm_u8s8_6x16c4__avx2 = {
    .name = "6x16c4__avx2",
    .isa = QT_ISA_AVX2,
    .mr = 6,
    .nr = 16,
    .kr = 4,
    .max_kc = PTRDIFF_MAX,
    .a_size = 2,
    .b_size = 1,
    .pack_a = qt_pack_a_6c4_16__avx2,
    .pack_b = qt_pack_b_16c4__avx2,
    .run = qt_gemm_run_6x16c4__avx2,
    .tile = qt_gemm_tile_6x16c4__avx2,
    .finish = qt_finish__avx2,
};

#endif
