/* Micro-kernel 6x16c4__avxvnni: VPDPBUSD on ymm (VEX encoding), 64 operations per instruction.
 *
 * Both operands are packed as bytes; layout in gemm_pack_avx2.h. One step: two vectors of B (8 columns of one quad each),
 * a quad of each of six rows of A broadcast (4 bytes), 12 VPDPBUSD. At two per cycle and five cycles of latency ten
 * accumulators keep the unit busy; there are 12, and 15 registers in use. Per step 8 loads in 6 cycles.
 *
 * Exact: VPDPBUSD (not VPDPBUSDS) adds four products of at most 255*128 modulo 2^32, without saturation in between.
 */
#ifndef QT_GEMM_U8S8_AVXVNNI_H
#define QT_GEMM_U8S8_AVXVNNI_H

#include "requantize_avx2.h"

#define QT_START(i) __m256i lo_##i = _mm256_setzero_si256(), hi_##i = _mm256_setzero_si256();
#define QT_STEP(i)                                                                                                     \
    {                                                                                                                  \
        int32_t bytes;                                                                                                 \
        memcpy(&bytes, a + 4 * (i), 4);                                                                                \
        const __m256i quad = _mm256_set1_epi32(bytes);                                                                 \
        lo_##i = _mm256_dpbusd_avx_epi32(lo_##i, quad, b_lo);                                                          \
        hi_##i = _mm256_dpbusd_avx_epi32(hi_##i, quad, b_hi);                                                          \
        QT_KEEP(lo_##i, hi_##i)                                                                                        \
    }
#define QT_ADD(to, sum)                                                                                                \
    _mm256_storeu_si256((__m256i *)(to),                                                                               \
                        first ? sum : _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(to)), sum));
#define QT_STORE(i) QT_ADD(c + (i) * ldc, lo_##i) QT_ADD(c + (i) * ldc + 8, hi_##i)

/* The first ROWS rows of a panel of A with 16 columns of B: c[ROWS][16] = (first ? 0 : c) + A * B. */
#define QT_DEFINE_KERNEL(ROWS)                                                                                         \
    static __attribute__((target("avx2,avxvnni"), noinline)) void qt_gemm_##ROWS##x16c4__avxvnni(                      \
        ptrdiff_t kc, const uint8_t *a, const uint8_t *b, int first, uint32_t *c, ptrdiff_t ldc) {                     \
        QT_ROWS_OF_##ROWS(QT_START)                                                                                    \
        for (const uint8_t *end = b + 16 * kc; b < end; b += 64, a += 24) {                                            \
            const __m256i b_lo = _mm256_loadu_si256((const __m256i *)b);                                               \
            const __m256i b_hi = _mm256_loadu_si256((const __m256i *)(b + 32));                                        \
            QT_ROWS_OF_##ROWS(QT_STEP)                                                                                 \
        }                                                                                                              \
        QT_ROWS_OF_##ROWS(QT_STORE)                                                                                    \
    }
QT_DEFINE_KERNEL(1)
QT_DEFINE_KERNEL(2)
QT_DEFINE_KERNEL(6)
#undef QT_DEFINE_KERNEL
#undef QT_START
#undef QT_STEP
#undef QT_ADD
#undef QT_STORE

static void qt_gemm_run_6x16c4__avxvnni(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    qt_gemm_6x16c4__avxvnni(kc, (const uint8_t *)a, (const uint8_t *)b, 0, c, ldc);
}

static void qt_gemm_tile_6x16c4__avxvnni(const qt_tile *t) {
    const uint8_t *a = (const uint8_t *)t->a, *b = (const uint8_t *)t->b;
    if (t->rows > 2) qt_gemm_6x16c4__avxvnni(t->kc, a, b, t->first, t->acc, 16);
    else if (t->rows > 1) qt_gemm_2x16c4__avxvnni(t->kc, a, b, t->first, t->acc, 16);
    else qt_gemm_1x16c4__avxvnni(t->kc, a, b, t->first, t->acc, 16);
    if (t->earlier) qt_finish__avx2(t->earlier);
}

static const qt_gemm_u8s8 qt_gemm_u8s8_6x16c4__avxvnni = {
    .name = "6x16c4__avxvnni",
    .isa = QT_ISA_AVXVNNI,
    .mr = 6,
    .nr = 16,
    .kr = 4,
    .max_kc = PTRDIFF_MAX,
    .a_size = 1,
    .b_size = 1,
    .pack_a = qt_pack_a_6c4__avx2,
    .pack_b = qt_pack_b_16c4__avx2,
    .run = qt_gemm_run_6x16c4__avxvnni,
    .tile = qt_gemm_tile_6x16c4__avxvnni,
    .finish = qt_finish__avx2,
};

#endif
