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

#include "gemm_pack_avx2.h"

#define QT_ROW(i)                                                                                                      \
    memcpy(&quad, a + 4 * (i), 4);                                                                                     \
    a_##i = _mm256_set1_epi32(quad);                                                                                   \
    lo_##i = _mm256_dpbusd_avx_epi32(lo_##i, a_##i, b_lo);                                                             \
    hi_##i = _mm256_dpbusd_avx_epi32(hi_##i, a_##i, b_hi);                                                             \
    QT_KEEP(lo_##i, hi_##i)
#define QT_ADD(to, sum)                                                                                                \
    _mm256_storeu_si256((__m256i *)(to), _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(to)), sum));
#define QT_STORE(i) QT_ADD(c + (i) * ldc, lo_##i) QT_ADD(c + (i) * ldc + 8, hi_##i)

static __attribute__((target("avx2,avxvnni"), noinline)) void qt_gemm_run_6x16c4__avxvnni(
    ptrdiff_t kc, const void *a_packed, const void *b_packed, uint32_t *c, ptrdiff_t ldc) {
    const uint8_t *a = (const uint8_t *)a_packed, *b = (const uint8_t *)b_packed;
    __m256i lo_0 = _mm256_setzero_si256(), lo_1 = lo_0, lo_2 = lo_0, lo_3 = lo_0, lo_4 = lo_0, lo_5 = lo_0;
    __m256i hi_0 = lo_0, hi_1 = lo_0, hi_2 = lo_0, hi_3 = lo_0, hi_4 = lo_0, hi_5 = lo_0;
    __m256i a_0, a_1, a_2, a_3, a_4, a_5;
    int32_t quad;
    for (const uint8_t *end = b + 16 * kc; b < end; b += 64, a += 24) {
        const __m256i b_lo = _mm256_loadu_si256((const __m256i *)b);
        const __m256i b_hi = _mm256_loadu_si256((const __m256i *)(b + 32));
        QT_ROW(0) QT_ROW(1) QT_ROW(2) QT_ROW(3) QT_ROW(4) QT_ROW(5)
    }
    QT_STORE(0) QT_STORE(1) QT_STORE(2) QT_STORE(3) QT_STORE(4) QT_STORE(5)
}
#undef QT_ROW
#undef QT_ADD
#undef QT_STORE

static const qt_gemm_u8s8 qt_gemm_u8s8_6x16c4__avxvnni = {
    .name = "6x16c4__avxvnni",
    .isa = QT_ISA_AVXVNNI,
    .mr = 6,
    .nr = 16,
    .kr = 4,
    .max_kc = 65536,
    .a_size = 1,
    .b_size = 1,
    .pack_a = qt_pack_a_6c4__avx2,
    .pack_b = qt_pack_b_16c4__avx2,
    .run = qt_gemm_run_6x16c4__avxvnni,
};

#endif
